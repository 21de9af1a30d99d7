"""Optimizers that clip sharded gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.processes import torch_sharded_training as training
from support.processes.worlds import World
from support.tiers import nightly

from unified_clip import ClipConfig

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


def test_norms_of_single_fsdp1_shards_are_rejected(world: World) -> None:
    for failure in world.attempt(training.train_sharded, "FSDP1", CONFIGS["each its own"]):
        assert "is a plain tensor. Other ranks may have other shards of this tensor" in str(failure)


def test_inf_norms_of_single_distributed_gradients_are_rejected(world: World) -> None:
    config = ClipConfig(rule="norm", threshold=0.02, family="paddle", norm_type=math.inf)
    for failure in world.attempt(training.train_sharded, "FSDP2", config):
        assert "norms of order inf per tensor are not supported for distributed gradients" in str(failure)


FLAT = [training.clip_in_place, training.clip_param_grads, training.clip_by_own_norms]


@pytest.mark.parametrize(
    ("use_orig_params", "clip"), [(True, clip) for clip in FLAT] + [(False, training.clip_in_place)]
)
def test_fsdp1_shards_without_ownership_are_rejected_on_several_ranks(
    world: World, use_orig_params: bool, clip: Callable[[Any], Any]
) -> None:
    for outcome in world.attempt(training.clip_fsdp1, use_orig_params, clip):
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
