"""PyTorch: recordings of clips of sharded gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.processes import torch_sharded_training as training
from support.processes.worlds import World
from support.rank_tables import rows_of

import unified_clip
from unified_clip.compare import recordings as compare
from unified_clip.recording import runs


@pytest.fixture(scope="module")
def world(torch_worlds: Callable[[int], World]) -> World:
    return torch_worlds(2)


@pytest.mark.parametrize("rule", ["global_norm", "norm"])
def test_a_sharded_run_is_recorded_as_on_one_process_with_its_ranks(world: World, tmp_path: Path, rule: str) -> None:
    config = unified_clip.ClipConfig(rule=rule, threshold=0.05, family="pytorch")
    model = training.model()
    config.attach_to(optimizer := torch.optim.SGD(model.parameters(), lr=0.5))
    with unified_clip.record(tmp_path / "one.jsonl", norms=True, names=model):
        training.train(model, optimizer)
    world.run(training.train_and_record, config, str(tmp_path), True)
    for rank in (0, 1):
        run = runs.read(tmp_path / f"rank{rank}.jsonl")
        assert {(line.ranks, line.rank) for line in run.lines} == {(2, rank)}
        assert run.lines[0].layout == {"Shard(dim=0) over 0=2": 6}
        assert not compare.compare(tmp_path / "one.jsonl", tmp_path / f"rank{rank}.jsonl").findings
        assert run.lines[-1].parameters["0.weight"].shape == (9, 6)


def test_one_rank_may_record_alone_without_norms(world: World, tmp_path: Path) -> None:
    config = unified_clip.ClipConfig(rule="global_norm", threshold=0.05, family="pytorch")
    world.run(training.train_and_record, config, str(tmp_path), False, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.jsonl"]
    for failure in world.attempt(training.train_and_record, config, str(tmp_path / "new"), True, 0):
        assert rows_of(str(failure))["norms= of unified_clip.record"] == {0: "True", 1: "False"}


def test_unknown_norms_of_single_gradients_are_left_out(world: World, tmp_path: Path) -> None:
    assert world.run(training.record_shards, str(tmp_path)) == [5.0, 5.0]
    for rank in (0, 1):
        (line,) = runs.read(tmp_path / f"rank{rank}.jsonl").lines
        assert (line.norm, line.parameters) == (5.0, {})


def test_each_rank_leaves_out_the_norms_that_it_lacks(world: World, tmp_path: Path) -> None:
    assert world.run(training.record_beside_plain, str(tmp_path)) == [6.0, 6.0]
    for rank in (0, 1):
        lines = runs.read(tmp_path / f"rank{rank}.jsonl").lines
        norms = [{name: parameter.norm for name, parameter in line.parameters.items()} for line in lines]
        assert norms == [{"a": 4.0}, {"b": 4.0}]


@pytest.mark.parametrize(("norms", "only"), [(False, None), (True, None), (False, 0)])
def test_pytorchs_clip_of_sharded_gradients_is_recorded_with_the_total_norm(
    world: World, tmp_path: Path, norms: bool, only: int | None
) -> None:
    alone = world.run(training.record_pytorchs_clip, str(tmp_path), norms, -1)
    assert world.run(training.record_pytorchs_clip, str(tmp_path), norms, only) == alone
    model = training.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) and None)
    with unified_clip.record(tmp_path / "one.jsonl"):
        training.train(model, optimizer)
    for rank in (0, 1) if only is None else (only,):
        run = runs.read(tmp_path / f"rank{rank}.jsonl")
        assert [line.count for line in run.lines] == [6] * training.STEPS
        assert len(run.optimizer_steps) == training.STEPS
        kinds = {finding.kind for finding in compare.compare(tmp_path / "one.jsonl", run.path).findings}
        assert kinds <= {"rounding", "rounding noise", "rounding that has grown"}
