"""Paddle's fleet: parameters of tensor-parallel, pipeline and sharding processes are clipped by one total norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.processes import paddle_fleet
from support.processes.paddle_fleet import ShardedGradients
from support.processes.worlds import World

import unified_clip.numpy as np_uc

DEGREES = {
    "tensor parallel": {"mp_degree": 2},
    "two stages": {"pp_degree": 2},
    "sharding": {"sharding_degree": 2},
    "tensor parallel, copied": {"mp_degree": 2, "dp_degree": 2},
    "tensor parallel, two stages": {"mp_degree": 2, "pp_degree": 2},
}


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[str], World]]:
    started: dict[str, World] = {}

    def of(name: str) -> World:
        if name not in started:
            degrees = DEGREES[name]
            started[name] = World(functools.partial(paddle_fleet.start, **degrees), math.prod(degrees.values()))
        return started[name]

    yield of
    for world in started.values():
        world.close()


def join_shards(processes: list[ShardedGradients]) -> list[np.ndarray]:
    return [
        first[0] if first[1] is None else np.concatenate([first[0], second[0]], first[1])
        for first, second in zip(*processes, strict=True)
    ]


def with_axes(arrays: list[np.ndarray], sharded: ShardedGradients) -> ShardedGradients:
    return [(array, axis) for array, (_, axis) in zip(arrays, sharded, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threshold", [1.5, 1e6])
def test_the_optimizer_of_fleet_clips_by_the_norm_of_the_whole_model(
    worlds: Callable[[str], World], threshold: float, dtype: str
) -> None:
    results = worlds("tensor parallel").run(paddle_fleet.step_optimizer, "GradientClipByGlobalNorm", threshold, dtype)
    before = join_shards([step[0] for step in results[:2]])
    expected = np_uc.GradientClipByGlobalNorm(threshold)([("", array) for array in before])
    for first in range(0, len(results), 2):
        after = join_shards([with_axes(step[1], step[0]) for step in results[first : first + 2]])
        for result, (_, expected_gradient) in zip(after, expected, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)
    assert [calls for _, _, calls in results] == [["all_reduce"]] * 2


@pytest.mark.parametrize("group", ["auto", "model"])
def test_attributes_of_parameters_decide_which_process_counts_them(worlds: Callable[[str], World], group: str) -> None:
    results = worlds("tensor parallel").run(paddle_fleet.clip_model, group, 1.5, True)
    before = join_shards([clip[1] for clip in results[:2]])
    expected = [array.copy() for array in before]
    np_uc.clip_grad_norm_(expected, 1.5)
    after = join_shards([with_axes(clip[2], clip[1]) for clip in results[:2]])
    for result, expected_gradient in zip(after, expected, strict=True):
        np.testing.assert_array_equal(result, expected_gradient, strict=True)
    assert {(norm, *calls) for norm, _, _, calls in results} == {(reference.norm(before), "all_reduce")}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "group", "models"),
    [
        ("tensor parallel, copied", "auto", [[0], [0], [1], [1]]),
        ("tensor parallel, copied", "model", [[0], [0], [1], [1]]),
        ("tensor parallel, two stages", "auto", [[0, 1]] * 4),
        ("tensor parallel, two stages", "model", [[0], [0], [1], [1]]),
    ],
)
def test_a_group_of_fleet_may_have_some_of_four_processes(
    worlds: Callable[[str], World], name: str, group: str, models: list[list[int]]
) -> None:
    """models: For each process, the pairs of processes whose gradients its norm covers."""
    results = worlds(name).run(paddle_fleet.clip_model, group, 1.5, None)
    before = [join_shards([clip[1] for clip in results[2 * pair : 2 * pair + 2]]) for pair in range(2)]
    for rank, (norm, sharded, after, calls) in enumerate(results):
        arrays = [array for pair in models[rank] for array in before[pair]]
        assert norm == reference.norm(arrays)
        assert calls == ["all_reduce"]
        expected = [array.copy() for array, _ in sharded]
        np_uc.clip_grads_with_norm_(expected, 1.5, norm)
        for result, expected_gradient in zip(after, expected, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)


def test_shards_are_clipped_by_the_norm_of_the_whole_parameter(worlds: Callable[[str], World]) -> None:
    results = worlds("tensor parallel").run(paddle_fleet.step_optimizer, "GradientClipByNorm", 0.5)
    expected = np_uc.GradientClipByNorm(0.5)([("", array) for array in join_shards([step[0] for step in results])])
    after = join_shards([with_axes(step[1], step[0]) for step in results])
    for result, (_, expected_gradient) in zip(after, expected, strict=True):
        np.testing.assert_array_equal(result, expected_gradient, strict=True)


def test_a_configuration_reports_the_norm_of_the_function(worlds: Callable[[str], World]) -> None:
    for norm, expected in worlds("tensor parallel").run(paddle_fleet.norms_by_config, 1.0):
        assert norm == expected > 1


def test_with_process_group_none_each_process_has_its_own_norm(worlds: Callable[[str], World]) -> None:
    for norm, before, _, calls in worlds("tensor parallel").run(paddle_fleet.clip_model, None, 1.5, None):
        assert (norm, calls) == (reference.norm([array for array, _ in before]), [])


def test_a_group_that_lacks_shards_of_a_parameter_is_an_error(worlds: Callable[[str], World]) -> None:
    for failure in worlds("tensor parallel").attempt(paddle_fleet.clip_model, "data", 1.5, None):
        assert "the ranks [0, 1] have shards of the gradient at position 0" in str(failure)
        assert "Pass a group of all ranks that have the model, such as hcg.get_check_parallel_group()" in str(failure)


@pytest.mark.parametrize("name", ["get_total_norm", "global_norm", "clip_by_global_norm"])
def test_gradients_without_parameters_are_rejected_unless_process_group_is_none(
    worlds: Callable[[str], World], name: str
) -> None:
    for failure in worlds("tensor parallel").attempt(paddle_fleet.norm_of_gradients, name, "auto"):
        assert "fleet shards the model over the ranks [0, 1]. unified_clip needs the parameters" in str(failure)
    for norm, gradients in worlds("tensor parallel").run(paddle_fleet.norm_of_gradients, name, None):
        assert norm == reference.norm(gradients)


@pytest.mark.parametrize("frozen", [False, True])
def test_stages_of_a_pipeline_share_one_norm(worlds: Callable[[str], World], frozen: bool) -> None:
    """The first stage owns the embedding that both stages have."""
    first, second = ([np.full(4, value, np.float32) for value in pair] for pair in ((3, 7), (4, 7)))
    counted = second[:1] if frozen else [*first, second[0]]
    n = reference.norm(counted)
    gradients = [[] if frozen else first, second]
    for (clipped, calls), own_gradients in zip(
        worlds("two stages").run(paddle_fleet.clip_stages, frozen), gradients, strict=True
    ):
        assert calls == ["all_reduce"]
        expected, _ = np_uc.clip_by_global_norm(own_gradients, 1.0, n)
        np.testing.assert_array_equal(clipped, expected)


def test_sharded_optimizers_clip_by_one_norm(worlds: Callable[[str], World]) -> None:
    results = worlds("sharding").run(paddle_fleet.step_optimizer, "GradientClipByGlobalNorm", 1.5)
    assert [calls for _, _, calls in results] == [["all_reduce"]] * 2
    before = [array for sharded, _, _ in results for array, _ in sharded]
    expected = np_uc.GradientClipByGlobalNorm(1.5)([("", array) for array in before])
    for result, (_, expected_gradient) in zip(
        [array for _, after, _ in results for array in after], expected, strict=True
    ):
        np.testing.assert_array_equal(result, expected_gradient, strict=True)


@pytest.mark.parametrize("name", ["clip_grad_value_", "GradientClipByNorm", "clip_grad_norm_"])
def test_sharded_gradients_are_rejected_before_they_are_reduced(worlds: Callable[[str], World], name: str) -> None:
    for failure in worlds("sharding").attempt(paddle_fleet.clip_in_place, name):
        assert "completes the gradients by an all-reduce. Pass grad_clip= to the optimizer" in str(failure)


def test_norms_of_whole_parameters_are_recorded(worlds: Callable[[str], World], tmp_path: Path) -> None:
    results = worlds("tensor parallel").run(paddle_fleet.record_clip, str(tmp_path))
    before = join_shards([result[0] for result in results])
    for _, norm, norms in results:
        assert norm == reference.norm(before)
        assert list(norms.values()) == [reference.norm([array]) for array in before]
