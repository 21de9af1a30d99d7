"""PyTorch: training with sharded gradients: optimizers that clip, adaptive thresholds, and recordings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.processes import torch_sharded
from support.processes import torch_sharded_training as training
from support.processes.worlds import World
from support.rank_tables import rows_of
from support.tiers import nightly

import unified_clip
from unified_clip import ClipConfig
from unified_clip.compare import recordings as compare
from unified_clip.recording import runs

CONFIGS = {
    "one norm": ClipConfig(rule="global_norm", threshold=0.05, family="pytorch"),
    "each its own": ClipConfig(rule="norm", threshold=0.02, family="paddle"),
    "by value": ClipConfig(rule="value", threshold=0.001),
    "skipped": ClipConfig(rule="global_norm", threshold=0.05, family="pytorch", nonfinite="skip"),
    "parts by name": ClipConfig(
        rule="norm",
        threshold=0.02,
        family="paddle",
        groups=[
            {"name": "last", "include": ["4.*"], "rule": "norm", "threshold": 0.05, "family": "paddle"},
            {"name": "biases", "include": ["*.bias"], "rule": "global_norm", "threshold": 0.01, "family": "pytorch"},
        ],
    ),
}


@pytest.fixture(scope="module", params=[1, 2, *nightly(4)])
def world(request: pytest.FixtureRequest, torch_worlds: Callable[[int], World]) -> World:
    return torch_worlds(request.param)


def test_inf_norms_of_single_distributed_gradients_are_rejected(world: World) -> None:
    config = ClipConfig(rule="norm", threshold=0.02, family="paddle", norm_type=math.inf)
    for failure in world.attempt(training.train_sharded, "FSDP2", config):
        assert "norms of order inf per tensor are not supported for distributed gradients" in str(failure)


def test_fsdp1_shards_without_ownership_are_rejected_on_several_ranks(world: World) -> None:
    for clip in (training.clip_in_place, training.clip_param_grads, training.clip_by_own_norms):
        for outcome in world.attempt(training.clip_fsdp1, clip is not training.clip_in_place, clip):
            if world.size == 1:
                assert outcome > 0
            else:
                assert "These are FSDP1 flat parameters, which carry no placement" in str(outcome)


def test_fsdp1_shards_need_no_ownership_for_clips_without_a_norm(world: World) -> None:
    for before, after in world.run(training.clip_fsdp1, True, training.clip_in_two_steps):
        assert before > training.THRESHOLD
        assert after == pytest.approx(training.THRESHOLD, rel=2e-3)  # eps is 1e-6
    maxima = world.run(training.clip_fsdp1, True, training.clip_by_value)
    assert max(maxima) == pytest.approx(training.THRESHOLD)


@pytest.mark.parametrize(
    ("kind", "name"),
    [*itertools.product(["FSDP2"], CONFIGS), ("FSDP1", "one norm"), ("FSDP1", "by value"), ("FSDP1", "skipped")],
)
def test_training_of_shards_equals_that_of_one_process(world: World, kind: str, name: str) -> None:
    torch.manual_seed(0)
    model = training.model()
    handle = CONFIGS[name].attach_to(optimizer := torch.optim.SGD(model.named_parameters(), lr=0.5))
    training.train(model, optimizer)
    expected = [parameter.detach().numpy() for parameter in model.parameters()]
    for norm, weights in world.run(training.train_sharded, kind, CONFIGS[name]):
        assert norm == handle.last.norm
        for result, expected_weights in zip(weights, expected, strict=True):
            np.testing.assert_array_equal(result, expected_weights, strict=True)


# -- adaptive thresholds: every rank has the same state, that of the total norm, or all raise

NORMS = [1.0, 2.0, 1.5, 1.25, 40.0, 1.0]


ZCLIP = {"rule": "global_norm", "adaptive": {"rule": "zclip", "warmup_steps": 3}}


def test_every_rank_has_the_state_of_the_total_norms(torch_worlds: Callable[[int], World]) -> None:
    clip = ClipConfig(**ZCLIP).clipper()
    for norm in NORMS:
        results = clip([np.array([0.6 * n, 0.8 * n], np.float32) for n in (norm, 3 * norm)])
    expected = clip.state_dict(), [array.tolist() for array in results]
    assert torch_worlds(2).run(torch_sharded.adaptive_state, ZCLIP, NORMS) == [expected] * 2


def test_ranks_with_different_states_raise(torch_worlds: Callable[[int], World]) -> None:
    ((state, _), _) = torch_worlds(2).run(torch_sharded.adaptive_state, ZCLIP, NORMS)
    other_state = {**state, "adaptive": {"": {"rule": "zclip", "state": {"steps": 6.0, "mean": 9.0, "var": 1.0}}}}
    for failure in torch_worlds(2).attempt(torch_sharded.adaptive_state, ZCLIP, [1.0], [state, other_state]):
        assert "'mean': 9.0" in str(failure)


@pytest.mark.nightly  # its checkpoints take seconds
def test_an_interrupted_run_resumes_with_another_number_of_ranks(
    torch_worlds: Callable[[int], World], tmp_path: Path
) -> None:
    config = ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "ratio": 1.0, "warmup_steps": 3})

    def train(size: int, folder: str, steps: range) -> Any:
        return torch_worlds(size).run(training.train_and_resume, config, str(tmp_path / folder), steps)

    uninterrupted, *other_ranks = train(2, "whole", range(9))
    interrupted = train(2, "first", range(5))
    resumed = [train(size, "first", range(5, 9)) for size in (2, 1)]
    assert other_ranks == [uninterrupted]
    assert interrupted[0] == interrupted[1] != uninterrupted
    assert resumed == [[uninterrupted] * 2, [uninterrupted]]
    (state, _) = uninterrupted
    assert state["step"] == state["adaptive"][""]["state"]["steps"] == 9


# -- recordings


@pytest.fixture(scope="module")
def two_ranks(torch_worlds: Callable[[int], World]) -> World:
    return torch_worlds(2)


@pytest.mark.parametrize("rule", ["global_norm", "norm"])
def test_a_sharded_run_is_recorded_as_on_one_process_with_ranks(two_ranks: World, tmp_path: Path, rule: str) -> None:
    config = ClipConfig(rule=rule, threshold=0.05, family="pytorch")
    model = training.model()
    config.attach_to(optimizer := torch.optim.SGD(model.parameters(), lr=0.5))
    with unified_clip.record(tmp_path / "one.jsonl", norms=True, names=model):
        training.train(model, optimizer)
    two_ranks.run(training.train_and_record, config, str(tmp_path), True)
    for rank in (0, 1):
        run = runs.read(tmp_path / f"rank{rank}.jsonl")
        assert {(line.ranks, line.rank) for line in run.lines} == {(2, rank)}
        assert run.lines[0].layout == {"Shard(dim=0) over 0=2": 6}
        assert not compare.compare(tmp_path / "one.jsonl", tmp_path / f"rank{rank}.jsonl").findings
        assert run.lines[-1].parameters["0.weight"].shape == (9, 6)


def test_one_rank_may_record_alone_without_norms(two_ranks: World, tmp_path: Path) -> None:
    config = ClipConfig(rule="global_norm", threshold=0.05, family="pytorch")
    two_ranks.run(training.train_and_record, config, str(tmp_path), False, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.jsonl"]
    for failure in two_ranks.attempt(training.train_and_record, config, str(tmp_path / "new"), True, 0):
        assert rows_of(str(failure))["norms= of unified_clip.record"] == {0: "True", 1: "False"}


def test_unknown_norms_of_single_gradients_are_left_out(two_ranks: World, tmp_path: Path) -> None:
    assert two_ranks.run(training.record_shards, str(tmp_path)) == [5.0, 5.0]
    for rank in (0, 1):
        (line,) = runs.read(tmp_path / f"rank{rank}.jsonl").lines
        assert (line.norm, line.parameters) == (5.0, {})


def test_each_rank_leaves_out_the_norms_that_it_lacks(two_ranks: World, tmp_path: Path) -> None:
    assert two_ranks.run(training.record_beside_plain, str(tmp_path)) == [6.0, 6.0]
    for rank in (0, 1):
        lines = runs.read(tmp_path / f"rank{rank}.jsonl").lines
        norms = [{name: parameter.norm for name, parameter in line.parameters.items()} for line in lines]
        assert norms == [{"a": 4.0}, {"b": 4.0}]


@pytest.mark.parametrize(("norms", "only"), [(False, None), (True, None), (False, 0)])
def test_pytorchs_clip_of_sharded_gradients_is_recorded_with_the_total_norm(
    two_ranks: World, tmp_path: Path, norms: bool, only: int | None
) -> None:
    alone = two_ranks.run(training.record_pytorchs_clip, str(tmp_path), norms, -1)
    assert two_ranks.run(training.record_pytorchs_clip, str(tmp_path), norms, only) == alone
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
