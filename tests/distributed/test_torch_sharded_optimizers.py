"""Optimizers that clip gradients which several processes hold."""

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


def test_the_norm_of_one_gradient_in_parts_that_do_not_tell_is_not_known(world: World) -> None:
    for found in world.attempt(training.sharded, "FSDP1", CONFIGS["each its own"]):
        assert "is a plain tensor, and other ranks may have other shards" in str(found)


def test_the_greatest_magnitude_of_one_gradient_in_parts_is_not_known(world: World) -> None:
    config = ClipConfig(rule="norm", threshold=0.02, family="paddle", norm_type=math.inf)
    for found in world.attempt(training.sharded, "FSDP2", config):
        assert "norms of order inf per tensor are not supported for distributed gradients" in str(found)


FLAT = [training.in_place, training.in_pairs, training.each]


@pytest.mark.parametrize(("use_orig_params", "clip"), [(True, clip) for clip in FLAT] + [(False, training.in_place)])
def test_shards_that_do_not_tell_so_are_refused_unless_one_process_has_all(
    world: World, use_orig_params: bool, clip: Callable[[Any], Any]
) -> None:
    for found in world.attempt(training.clipped_flat, use_orig_params, clip):
        if world.size == 1:
            assert found > 0
        else:
            assert "These are FSDP1 flat parameters, which carry no placement" in str(found)


def test_shards_need_not_tell_where_nothing_has_to_be_measured(world: World) -> None:
    for before, after in world.run(training.clipped_flat, True, training.in_two_steps):
        assert before > training.LIMIT
        assert after == pytest.approx(training.LIMIT, rel=2e-3)  # eps is 1e-6
    found = world.run(training.clipped_flat, True, training.by_value)
    assert max(found) == pytest.approx(training.LIMIT)


@pytest.mark.parametrize(
    ("kind", "name"),
    [*itertools.product(["FSDP2"], CONFIGS), ("FSDP1", "one norm"), ("FSDP1", "by value"), ("FSDP1", "skipped")],
)
def test_training_is_that_of_one_process(world: World, kind: str, name: str) -> None:
    torch.manual_seed(0)
    model = training.model()
    handle = CONFIGS[name].attach_to(optimizer := torch.optim.SGD(model.named_parameters(), lr=0.5))
    training.train(model, optimizer)
    expected = [parameter.detach().numpy() for parameter in model.parameters()]
    for norm, weights in world.run(training.sharded, kind, CONFIGS[name]):
        assert norm == handle.last.norm
        for got, wanted in zip(weights, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)
