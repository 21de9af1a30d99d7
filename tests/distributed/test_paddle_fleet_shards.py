"""Paddle's fleet: parameters that tensor-parallel, pipeline and sharding processes hold are clipped by one norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.processes import paddle_sharded
from support.processes.paddle_sharded import Held
from support.processes.worlds import World

import unified_clip.numpy as whole

DEGREES = {
    "two parts": {"mp_degree": 2},
    "two stages": {"pp_degree": 2},
    "sharding": {"sharding_degree": 2},
    "two parts, copied": {"mp_degree": 2, "dp_degree": 2},
    "two parts of two stages": {"mp_degree": 2, "pp_degree": 2},
    "two parts, sharded": {"mp_degree": 2, "sharding_degree": 2},
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
def test_the_optimizer_of_fleet_clips_by_the_norm_of_the_whole_model(
    worlds: Callable[[str], World], limit: float, dtype: str
) -> None:
    found = worlds("two parts").run(paddle_sharded.fleet_stepped, "GradientClipByGlobalNorm", limit, dtype)
    before = gathered([each[0] for each in found[:2]])
    expected = whole.GradientClipByGlobalNorm(limit)([("", array) for array in before])
    for first in range(0, len(found), 2):
        after = gathered([with_axes(each[1], each[0]) for each in found[first : first + 2]])
        for got, (_, wanted) in zip(after, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)
    assert [calls for _, _, calls in found] == [["all_reduce"]] * 2


@pytest.mark.parametrize("group", ["auto", "model"])
def test_attributes_tell_who_counts_what(worlds: Callable[[str], World], group: str) -> None:
    found = worlds("two parts").run(paddle_sharded.fleet_clipped, group, 1.5, True)
    before = gathered([each[1] for each in found[:2]])
    expected = [array.copy() for array in before]
    whole.clip_grad_norm_(expected, 1.5)
    after = gathered([with_axes(each[2], each[1]) for each in found[:2]])
    for got, wanted in zip(after, expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)
    assert {(norm, *calls) for norm, _, _, calls in found} == {(reference.norm(before), "all_reduce")}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "group", "models"),
    [
        ("two parts, copied", "auto", [[0], [0], [1], [1]]),
        ("two parts, copied", "model", [[0], [0], [1], [1]]),
        ("two parts of two stages", "auto", [[0, 1]] * 4),
        ("two parts of two stages", "model", [[0], [0], [1], [1]]),
    ],
)
def test_a_group_of_fleet_is_some_of_four_processes(
    worlds: Callable[[str], World], name: str, group: str, models: list[list[int]]
) -> None:
    """`models`: for each process, which pairs of processes have the gradients of its norm."""
    found = worlds(name).run(paddle_sharded.fleet_clipped, group, 1.5, None)
    before = [gathered([each[1] for each in found[2 * pair : 2 * pair + 2]]) for pair in range(2)]
    for rank, (norm, held, after, calls) in enumerate(found):
        arrays = [array for pair in models[rank] for array in before[pair]]
        assert norm == reference.norm(arrays)
        assert calls == ["all_reduce"]
        expected = [array.copy() for array, _ in held]
        whole.clip_grads_with_norm_(expected, 1.5, norm)
        for got, wanted in zip(after, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.nightly
def test_the_group_of_copies_lacks_shards(worlds: Callable[[str], World]) -> None:
    for rank, found in enumerate(worlds("two parts, copied").attempt(paddle_sharded.fleet_clipped, "data", 1.5, None)):
        first = rank // 2 * 2
        assert f"the ranks [{first}, {first + 1}] have shards of the gradient at position 0" in str(found)


@pytest.mark.nightly
def test_sharded_optimizers_of_four_processes_clip_by_one_norm(worlds: Callable[[str], World]) -> None:
    found = worlds("two parts, sharded").run(paddle_sharded.fleet_stepped, "GradientClipByGlobalNorm", 1.5)
    assert [calls for _, _, calls in found] == [["all_reduce"]] * 4
    arrays = [array for pair in (0, 2) for array in gathered([each[0] for each in found[pair : pair + 2]])]
    norm = reference.norm(arrays)
    for held, after, _ in found:
        expected = [array for array, _ in held]
        coef = reference.coefficient(norm, 1.5, 0.0)
        for got, before in zip(after, expected, strict=True):
            np.testing.assert_array_equal(got, reference.scaled(before, coef))


def test_parts_are_clipped_by_the_norm_of_the_whole_parameter(worlds: Callable[[str], World]) -> None:
    found = worlds("two parts").run(paddle_sharded.fleet_stepped, "GradientClipByNorm", 0.5)
    expected = whole.GradientClipByNorm(0.5)([("", array) for array in gathered([each[0] for each in found])])
    after = gathered([with_axes(each[1], each[0]) for each in found])
    for got, (_, wanted) in zip(after, expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


def test_a_configuration_clips_by_the_same_norm(worlds: Callable[[str], World]) -> None:
    for found, expected in worlds("two parts").run(paddle_sharded.fleet_by_config, 1.0):
        assert found == expected > 1


def test_the_process_itself_can_be_asked_for(worlds: Callable[[str], World]) -> None:
    for norm, before, _, calls in worlds("two parts").run(paddle_sharded.fleet_clipped, None, 1.5, None):
        assert (norm, calls) == (reference.norm([array for array, _ in before]), [])


def test_a_group_that_lacks_shards_of_a_parameter_is_an_error(worlds: Callable[[str], World]) -> None:
    for found in worlds("two parts").attempt(paddle_sharded.fleet_clipped, "data", 1.5, None):
        assert "the ranks [0, 1] have shards of the gradient at position 0" in str(found)
        assert "Pass a group of all ranks that have the model, such as hcg.get_check_parallel_group()" in str(found)


@pytest.mark.parametrize("name", ["get_total_norm", "global_norm", "clip_by_global_norm"])
def test_gradients_alone_do_not_show_what_other_processes_have(worlds: Callable[[str], World], name: str) -> None:
    for found in worlds("two parts").attempt(paddle_sharded.fleet_functional, name, "auto"):
        assert "fleet shards the model over the ranks [0, 1], and gradients without their parameters" in str(found)
    for norm, gradients in worlds("two parts").run(paddle_sharded.fleet_functional, name, None):
        assert norm == reference.norm(gradients)


@pytest.mark.parametrize("frozen", [False, True])
def test_stages_of_a_pipeline_share_one_norm(worlds: Callable[[str], World], frozen: bool) -> None:
    """What both have is counted by the first."""
    first, second = ([np.full(4, each, np.float32) for each in pair] for pair in ((3, 7), (4, 7)))
    counted = second[:1] if frozen else [*first, second[0]]
    n = reference.norm(counted)
    given = [[] if frozen else first, second]
    for (found, calls), own in zip(worlds("two stages").run(paddle_sharded.stages, frozen), given, strict=True):
        assert calls == ["all_reduce"]
        expected, _ = whole.clip_by_global_norm(own, 1.0, n)
        np.testing.assert_array_equal(found, expected)


def test_sharded_optimizers_clip_by_one_norm(worlds: Callable[[str], World]) -> None:
    found = worlds("sharding").run(paddle_sharded.fleet_stepped, "GradientClipByGlobalNorm", 1.5)
    assert [calls for _, _, calls in found] == [["all_reduce"]] * 2
    before = [array for held, _, _ in found for array, _ in held]
    expected = whole.GradientClipByGlobalNorm(1.5)([("", array) for array in before])
    for got, (_, wanted) in zip([array for _, after, _ in found for array in after], expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("name", ["clip_grad_value_", "GradientClipByNorm"])
def test_sharded_gradients_are_not_clipped_one_by_one_before_they_are_added_up(
    worlds: Callable[[str], World], name: str
) -> None:
    for found in worlds("sharding").attempt(paddle_sharded.fleet_in_place, name):
        assert "not complete before the step. Pass grad_clip= to the optimizer" in str(found)


def test_norms_of_whole_parameters_are_recorded(worlds: Callable[[str], World], tmp_path: Path) -> None:
    found = worlds("two parts").run(paddle_sharded.fleet_recorded, str(tmp_path))
    before = gathered([each[0] for each in found])
    for _, norm, norms in found:
        assert norm == reference.norm(before)
        assert list(norms.values()) == [reference.norm([array]) for array in before]


def test_sharded_gradients_are_refused_before_they_are_added_up(worlds: Callable[[str], World]) -> None:
    for found in worlds("sharding").attempt(paddle_sharded.fleet_clipped, "auto", 1.5, None):
        assert "not complete before the step. Pass grad_clip= to the optimizer" in str(found)


def test_paddle_ignores_float64_there(worlds: Callable[[str], World]) -> None:
    for kept in worlds("two parts").run(paddle_sharded.fleet_by_paddle, 1.0, "float64"):
        assert all(0.9999 < each < 1 for each in kept)
