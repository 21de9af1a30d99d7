"""JAX: arrays that are sharded over several processes are clipped as on one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import calls
from support.jax_layouts import LAYOUTS, arrays
from support.kits import Kit
from support.processes import jax_sharded
from support.processes.worlds import World
from support.tiers import quick


@pytest.fixture
def world(kit: Kit, rank_worlds: Callable[[int], World]) -> World:
    """Two processes with two devices each."""
    if not kit.exact:
        pytest.skip("once is enough: these arrays always take the device path")
    return rank_worlds(2)


NUMPY = Kit()


@pytest.mark.parametrize("layout", quick(LAYOUTS, "mixed"))
def test_each_process_clips_as_on_one_device(world: World, layout: str) -> None:
    gradients = arrays()
    for found in world.run(jax_sharded.clip_by_each_function, layout):
        for name, (norm, results) in found.items():
            call, n = calls.CALLS[name], None
            if norm is not None and norm.ndim == 0 and call.given_norm is None:
                n = calls.check_norm(NUMPY, norm, gradients, call.p, exact=False)
            for shards, expected in zip(results, calls.expected_of(call, gradients, 1.5, n), strict=True):
                for index, part in shards:
                    calls.check_gradient(NUMPY, part, expected[index], exact=False)


def test_a_process_clips_its_own_arrays_alone(world: World) -> None:
    assert world.run(jax_sharded.norm_of_own) == [3.0, 4.0]


def test_nan_in_one_process_raises_in_all(world: World) -> None:
    for failure in world.attempt(jax_sharded.norm_with_nan):
        assert "NonFiniteNormError" in str(failure)
