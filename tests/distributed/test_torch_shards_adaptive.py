"""Adaptive thresholds of sharded gradients: every rank has the same state, that of the total norm, or all raise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.processes import torch_sharded
from support.processes import torch_sharded_training as training
from support.processes.worlds import World

from unified_clip import ClipConfig

NORMS = [1.0, 2.0, 1.5, 1.25, 40.0, 1.0]


def test_every_rank_has_the_state_of_the_total_norm(torch_worlds: Callable[[int], World]) -> None:
    clip = ClipConfig(rule="global_norm", adaptive={"rule": "zclip", "warmup_steps": 3}).clipper()
    for norm in NORMS:
        clip([np.array([0.6 * norm, 0.8 * norm], np.float32)])
    states = torch_worlds(2).run(torch_sharded.adaptive_state, NORMS, [None, None])
    assert states == [clip.state_dict()] * 2


def test_ranks_with_different_states_raise(torch_worlds: Callable[[int], World]) -> None:
    (state, _) = torch_worlds(2).run(torch_sharded.adaptive_state, NORMS, [None, None])
    other_state = {**state, "adaptive": {"": {"rule": "zclip", "state": {"steps": 6.0, "mean": 9.0, "var": 1.0}}}}
    for failure in torch_worlds(2).attempt(torch_sharded.adaptive_state, [1.0], [state, other_state]):
        assert "'mean': 9.0" in str(failure)


def test_every_rank_has_the_state_of_its_tensors_total_norms(torch_worlds: Callable[[int], World]) -> None:
    clip = ClipConfig(rule="norm", adaptive={"rule": "adagc", "warmup_steps": 3}).clipper()
    for norm in NORMS:
        grads = [np.array([0.6 * size, 0.8 * size], np.float32) for size in (norm, 3 * norm)]
        results = [array.tolist() for array in clip(grads)]
    states = torch_worlds(2).run(torch_sharded.adagc_state, NORMS)
    assert states == [(clip.state_dict(), results)] * 2


ADAGC = ClipConfig(rule="norm", adaptive={"rule": "adagc", "warmup_steps": 3, "warmup_threshold": 0.5})


@pytest.mark.nightly  # its checkpoints take seconds
def test_an_interrupted_run_resumes_with_another_number_of_ranks(
    torch_worlds: Callable[[int], World], tmp_path: Path
) -> None:
    (uninterrupted, *other_ranks) = torch_worlds(2).run(
        training.train_and_resume, ADAGC, str(tmp_path / "whole"), range(9)
    )
    interrupted = torch_worlds(2).run(training.train_and_resume, ADAGC, str(tmp_path / "first"), range(5))
    resumed = [
        torch_worlds(size).run(training.train_and_resume, ADAGC, str(tmp_path / "first"), range(5, 9))
        for size in (2, 1)
    ]
    assert other_ranks == [uninterrupted]
    assert interrupted[0] == interrupted[1] != uninterrupted
    assert resumed == [[uninterrupted] * 2, [uninterrupted]]
    (state, _) = uninterrupted
    assert state["step"] == state["adaptive"][""]["state"]["steps"] == 9
    assert len({*state["adaptive"][""]["state"]["norms"]}) == 6
