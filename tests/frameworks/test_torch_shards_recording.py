"""PyTorch: what is recorded where several processes hold the gradients, and the table of what PyTorch's own norm is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_sharded
import torch_sharded_training as training
from worlds import World

import unified_clip
import unified_clip.torch as uc
from unified_clip.parity import parting, runs

NATIVES = Path(__file__).parents[2] / "parity/sharded_natives.py"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(torch_sharded.start, 2)
    yield made
    made.close()


@pytest.mark.parametrize("rule", ["global_norm", "norm"])
def test_a_run_is_that_of_one_process_and_says_how_many_had_it(world: World, tmp_path: Path, rule: str) -> None:
    config = unified_clip.ClipConfig(rule=rule, threshold=0.05, family="pytorch")
    model = training.model()
    config.attach_to(optimizer := torch.optim.SGD(model.parameters(), lr=0.5))
    with unified_clip.record(tmp_path / "one.jsonl", norms=True, names=model):
        training.train(model, optimizer)
    world.run(training.recorded, config, str(tmp_path), True)
    for rank in (0, 1):
        run = runs.read(tmp_path / f"rank{rank}.jsonl")
        assert {(line.ranks, line.rank) for line in run.lines} == {(2, rank)}
        assert run.lines[0].layout == {"Shard(dim=0) over 0=2": 6}
        assert not parting.compare(tmp_path / "one.jsonl", tmp_path / f"rank{rank}.jsonl").findings
        assert run.lines[-1].parameters["0.weight"].shape == (9, 6)


def test_one_process_may_record_alone_but_for_norms(world: World, tmp_path: Path) -> None:
    config = unified_clip.ClipConfig(rule="global_norm", threshold=0.05, family="pytorch")
    world.run(training.recorded, config, str(tmp_path), False, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.jsonl"]
    for found in world.attempt(training.recorded, config, str(tmp_path / "new"), True, 0):
        assert "disagree about norms= of unified_clip.record: True on rank 0; False on rank 1" in str(found)


def recorded_flat(directory: str) -> float:
    """The norm of plain parts of a gradient, which do not tell each other's norms."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([3.0 + dist.get_rank()])
    with unified_clip.record(Path(directory) / f"rank{dist.get_rank()}.jsonl", norms=True):
        norm = uc.clip_grad_norm_([weight], 1.0, process_group=dist.group.WORLD, ownership="distinct")
    return float(norm)


def test_norms_that_no_process_knows_are_left_out(world: World, tmp_path: Path) -> None:
    assert world.run(recorded_flat, str(tmp_path)) == [5.0, 5.0]
    for rank in (0, 1):
        (line,) = runs.read(tmp_path / f"rank{rank}.jsonl").lines
        assert (line.norm, line.parameters) == (5.0, {})


def recorded_beside_flat(directory: str) -> float:
    """The norm of gradients that all hold together, and of one that the first process has beside them; in two groups,
    both of which tell what they are."""
    both = torch_sharded.parameters([np.full((2, 2), 2, np.float32)] * 2, "FSDP")
    given = dict(zip("ab", both, strict=True))
    if dist.get_rank() == 0:
        given["c"] = torch.nn.Parameter(torch.zeros(1))
        given["c"].grad = torch.tensor([2.0])
    group = {"name": "a", "include": ["a"], "threshold": 2.0}
    config = unified_clip.ClipConfig(rule="global_norm", threshold=1.0, groups=[group])
    with unified_clip.record(Path(directory) / f"rank{dist.get_rank()}.jsonl", norms=True):
        return float(config.clipper(ownership="distinct").clip_(given))


def test_norms_are_left_out_one_by_one(world: World, tmp_path: Path) -> None:
    """The processes need not know alike of which."""
    assert world.run(recorded_beside_flat, str(tmp_path)) == [6.0, 6.0]
    for rank in (0, 1):
        lines = runs.read(tmp_path / f"rank{rank}.jsonl").lines
        told = [{name: each.norm for name, each in line.parameters.items()} for line in lines]
        assert told == [{"a": 4.0}, {"b": 4.0}]


def sharded_natives() -> Any:
    """`parity/sharded_natives.py`."""
    if "sharded_natives" not in sys.modules:
        spec = importlib.util.spec_from_file_location("sharded_natives", NATIVES)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["sharded_natives"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["sharded_natives"]


def measured(scenarios: list[tuple[Any, ...]]) -> dict[tuple[str, str], str]:
    module = sharded_natives()
    found: dict[tuple[str, str], str] = module.measured([module.Scenario(*each) for each in scenarios])
    return found


def test_the_table_says_what_the_norms_of_several_processes_come_to(world: World) -> None:
    array = np.array([[3.0], [4.0]], np.float32)
    found = world.run(
        measured,
        [
            ("rows", [array]),
            ("meshes", [array, array], ("rows", "hybrid")),
            ("plain", [array, array], ("rows", "plain")),
            ("greatest", [np.array([[2.0], [-3.0]], np.float32)], ("rows",), np.inf),
        ],
    )
    told = {key: sharded_natives().together([each[key] for each in found]) for key in found[0]}
    assert {told[name, "ours"] for name, whose in told if whose == "ours"} == {"exact"}
    assert told["rows", "native"] == "exact"
    assert told["greatest", "native"] == "exact"
    for name in ("meshes", "plain"):  # what PyTorch raises, or that it does no longer
        assert told[name, "native"].startswith("`") or told[name, "native"] == "exact"


def test_a_distance_and_processes_that_part_are_told_in_words() -> None:
    module = sharded_natives()
    scenario = module.Scenario("", [np.array([3.0, 4.0], np.float32)])
    spoiled = module.Scenario("", [np.array([2.0, np.nan], np.float32)], p=np.inf)
    assert module.said(spoiled, [], lambda gradients, p: torch.tensor(2.0)) == "2 in place of NaN"
    assert module.said(spoiled, [], lambda gradients, p: torch.tensor(torch.nan)) == "exact"
    off = module.said(scenario, [], lambda gradients, p: torch.tensor(5.0).nextafter(torch.tensor(6.0)))
    assert off == "1 ulp (9.5e-08)"
    assert module.together([off, off]) == off
    assert module.together(["exact", off, "exact"]) == f"rank 0, 2: exact; rank 1: {off}"
