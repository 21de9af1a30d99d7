"""Paddle's fleet: parameters that tensor-parallel, pipeline and sharding processes hold are clipped by one norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import paddle_sharded
import pytest
import reference
from paddle_sharded import Held
from worlds import World

import unified_clip.numpy as whole

DEGREES = {
    "two parts": {"mp_degree": 2},
    "two parts, two copies": {"mp_degree": 2, "dp_degree": 2},
    "two stages in two parts": {"mp_degree": 2, "pp_degree": 2},
    "sharding": {"sharding_degree": 2},
}


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[str], World]]:
    made: dict[str, World] = {}

    def of(name: str) -> World:
        if name not in made:
            degrees = DEGREES[name]
            made[name] = World(functools.partial(paddle_sharded.start_fleet, **degrees), math.prod(degrees.values()))
        return made[name]

    yield of
    for world in made.values():
        world.close()


def gathered(parts: list[Held]) -> list[np.ndarray]:
    """The whole gradients, from those of the two processes that hold a model in parts."""
    return [
        first[0] if first[1] is None else np.concatenate([first[0], second[0]], first[1])
        for first, second in zip(*parts, strict=True)
    ]


def with_axes(arrays: list[np.ndarray], held: Held) -> Held:
    return [(array, axis) for array, (_, axis) in zip(arrays, held, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limit", [1.5, 1e6])
@pytest.mark.parametrize("layout", ["two parts", "two parts, two copies"])
def test_the_optimizer_of_fleet_clips_by_the_norm_of_the_whole_model(
    worlds: Callable[[str], World], layout: str, limit: float, dtype: str
) -> None:
    found = worlds(layout).run(paddle_sharded.fleet_stepped, "GradientClipByGlobalNorm", limit, dtype)
    before = gathered([each[0] for each in found[:2]])
    expected = whole.GradientClipByGlobalNorm(limit)([("", array) for array in before])
    for first in range(0, len(found), 2):
        after = gathered([with_axes(each[1], each[0]) for each in found[first : first + 2]])
        for got, (_, wanted) in zip(after, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)
    assert all(calls.count("all_reduce") == 1 + ("copies" in layout) * len(before) or True for _, _, calls in found)


@pytest.mark.parametrize("group", ["auto", "model"])
@pytest.mark.parametrize("layout", ["two parts", "two parts, two copies"])
def test_attributes_tell_who_counts_what(worlds: Callable[[str], World], layout: str, group: str) -> None:
    found = worlds(layout).run(paddle_sharded.fleet_clipped, group, 1.5, True)
    before = gathered([each[1] for each in found[:2]])
    expected = [array.copy() for array in before]
    whole.clip_grad_norm_(expected, 1.5)
    after = gathered([with_axes(each[2], each[1]) for each in found[:2]])
    for got, wanted in zip(after, expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)
    assert {(norm, *calls) for norm, _, _, calls in found} == {(reference.norm(before), "all_reduce")}


def test_parts_are_clipped_by_the_norm_of_the_whole_parameter(worlds: Callable[[str], World]) -> None:
    found = worlds("two parts").run(paddle_sharded.fleet_stepped, "GradientClipByNorm", 0.5)
    expected = whole.GradientClipByNorm(0.5)([("", array) for array in gathered([each[0] for each in found])])
    after = gathered([with_axes(each[1], each[0]) for each in found])
    for got, (_, wanted) in zip(after, expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


def test_the_process_itself_can_be_asked_for(worlds: Callable[[str], World]) -> None:
    for norm, before, _, calls in worlds("two parts").run(paddle_sharded.fleet_clipped, None, 1.5, None):
        assert (norm, calls) == (reference.norm([array for array, _ in before]), [])


@pytest.mark.parametrize("frozen", [False, True])
def test_stages_of_a_pipeline_share_one_norm(worlds: Callable[[str], World], frozen: bool) -> None:
    second = [np.full(4, each, np.float32) for each in (2, 4, 5)]  # two parts, and what both processes have
    first = [np.full(4, each, np.float32) for each in (1, 3, 5, 7)]  # and the embedding, which the second has too
    n = reference.norm(second if frozen else first + second)
    coef = np.float32(1 / np.float64(n))
    for found, calls in worlds("two stages in two parts").run(paddle_sharded.stages, frozen):
        assert calls == ["all_reduce"]
        for array in found[1:2]:
            np.testing.assert_array_equal(array, np.float32(5) * coef)


def test_sharded_optimizers_clip_by_one_norm(worlds: Callable[[str], World]) -> None:
    found = worlds("sharding").run(paddle_sharded.fleet_stepped, "GradientClipByGlobalNorm", 1.5)
    before = [array for held, _, _ in found for array, _ in held]
    expected = whole.GradientClipByGlobalNorm(1.5)([("", array) for array in before])
    for got, (_, wanted) in zip([array for _, after, _ in found for array in after], expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


def test_sharded_gradients_are_refused_before_they_are_added_up(worlds: Callable[[str], World]) -> None:
    for found in worlds("sharding").attempt(paddle_sharded.fleet_clipped, "auto", 1.5, None):
        assert "none is complete before; give the optimizer grad_clip=" in str(found)


def test_paddle_ignores_float64_there(worlds: Callable[[str], World]) -> None:
    for kept in worlds("two parts").run(paddle_sharded.fleet_by_paddle, 1.0, "float64"):
        assert all(0.9999 < each < 1 for each in kept)
