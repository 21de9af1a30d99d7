"""Paddle: gradients on several ranks are clipped to the same bits as on one rank."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
import paddle
import pytest
from support import reference
from support.paddle_programs import BACKWARD_WARNS
from support.processes import paddle_sharded
from support.processes.worlds import World
from support.rank_tables import rows_of
from support.tiers import nightly

import unified_clip.numpy as np_uc
import unified_clip.paddle as uc


@pytest.fixture
def worlds(rank_worlds: Callable[[int], World]) -> Callable[[int], World]:
    return rank_worlds


@pytest.mark.parametrize(
    ("name", "thresholds"),
    [("GradientClipByGlobalNorm", (1.5,)), ("GradientClipByNorm", (1.5,)), ("GradientClipByValue", (0.5,))],
)
def test_optimizers_clip_distributed_parameters(
    worlds: Callable[[int], World], name: str, thresholds: tuple[float, ...]
) -> None:
    for before, after, calls in worlds(2).run(paddle_sharded.step_perceptron, name, *thresholds):
        expected = getattr(np_uc, name)(*thresholds)([("", array) for array in before])
        for result, (_, expected_gradient) in zip(after, expected, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)
        assert len(calls) == {"GradientClipByGlobalNorm": 1, "GradientClipByNorm": 2, "GradientClipByValue": 0}[name]


def test_process_group_none_needs_complete_gradients(worlds: Callable[[int], World]) -> None:
    one_shard = "sharded, with copies"  # of 2 ranks, each has the first dimension of the mesh alone
    assert worlds(2).run(paddle_sharded.norm_on_this_rank, one_shard) == [5.0, 5.0]
    for failure in worlds(2).attempt(paddle_sharded.norm_on_this_rank, "FSDP"):
        assert "the gradient at position 0 is not complete on this rank" in str(failure)


def test_clipping_partial_sums_by_value_is_rejected(worlds: Callable[[int], World]) -> None:
    for by_config in (False, True):
        for failure in worlds(2).attempt(paddle_sharded.clip_by_value, by_config):
            assert "every rank has a partial sum of each element" in str(failure)


def test_partial_placements_other_than_sums_are_rejected(worlds: Callable[[int], World]) -> None:
    for failure in worlds(2).attempt(paddle_sharded.norm_of_a_mean):
        assert "the placements [Partial(reduce_type=AVG)], but Partial placements are only supported" in str(failure)


def test_a_derivative_over_two_meshes_is_rejected_because_paddle_would_crash(
    worlds: Callable[[int], World],
) -> None:
    for failure in worlds(2).attempt(paddle_sharded.differentiate_clip, "mixed"):
        assert "ValueError: the tensors are on different process meshes, so Paddle cannot record" in str(failure)
    assert worlds(2).run(paddle_sharded.differentiate_clip, "FSDP")


@BACKWARD_WARNS
def test_distributed_gradients_in_static_programs_are_rejected() -> None:
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            loss = paddle.static.nn.fc(paddle.static.data("x", [2, 3], "float32"), 1).sum()
            clip = uc.GradientClipByGlobalNorm(1.0, process_group=object(), ownership="distinct")
            with pytest.raises(TypeError, match="distributed gradients are not supported in a static program"):
                paddle.optimizer.SGD(0.1, grad_clip=clip).minimize(loss)
    finally:
        paddle.disable_static()


# -- errors


@pytest.mark.parametrize("beside", [False, True])
def test_a_process_without_gradients_takes_part(worlds: Callable[[int], World], beside: bool) -> None:
    array = np.array([[3.0], [4.0], [0.0], [0.0]], np.float32)
    n = reference.norm([np.array([3.0, 4.0] + [3.0, 4.0] * beside, np.float32)])
    assert worlds(2).run(paddle_sharded.norm_without_gradients, [1], [array], beside) == [n, n]


def test_gradients_on_meshes_of_some_processes_need_ownership(worlds: Callable[[int], World]) -> None:
    gradients = [np.full((4, 2), 1.0, np.float32), np.full((4, 2), 2.0, np.float32)]
    for failure in worlds(4).attempt(paddle_sharded.norm_on_halves, gradients):
        assert "the gradients are on process meshes with 2 of 4 ranks" in str(failure)
    for failure in worlds(4).attempt(paddle_sharded.norm_on_halves, gradients, "all"):
        assert "Pass ownership='replicated' if all ranks have the same parameters" in str(failure)
    n = reference.norm(gradients)
    assert worlds(4).run(paddle_sharded.norm_on_halves, gradients, "all", "distinct") == [n] * 4


def test_process_groups_of_other_types_are_rejected(worlds: Callable[[int], World]) -> None:
    for failure in worlds(2).attempt(paddle_sharded.norm_of_plain, [np.ones(2, np.float32)], "everyone", "distinct"):
        assert "TypeError: process_group is 'everyone'. Pass a paddle.distributed group" in str(failure)


def test_a_process_outside_of_the_group_raises_an_error(worlds: Callable[[int], World]) -> None:
    inside, outside = worlds(2).attempt(paddle_sharded.norm_in_group_of_the_first)
    assert inside == 3.0
    assert "rank 1 is not in process_group, which has the ranks [0]" in str(outside)


def test_plain_tensors_in_a_group_need_ownership(worlds: Callable[[int], World]) -> None:
    gradients = [np.array([3.0, 4.0], np.float32)]
    for failure in worlds(2).attempt(paddle_sharded.norm_of_plain, gradients, "all"):
        assert "is a plain tensor. Pass ownership='replicated'" in str(failure)
    for ownership, n, number in (("replicated", 5.0, 2), ("distinct", reference.norm(gradients * 2), 4)):
        results = worlds(2).run(paddle_sharded.norm_of_plain, gradients, "all", ownership, number)
        assert results == [(n, ["all_reduce"])] * 2


def test_in_param_grads_the_parameters_give_the_placements(worlds: Callable[[int], World]) -> None:
    """A process without a gradient takes part, as if it passed parameters."""
    gradients = [np.array([[3.0], [7.0]], np.float32), np.array([4.0], np.float32)]
    (_, high), (first, low) = (np_uc.clip_by_norm(np.float32([3.0, 4.0]), 1.0).tolist() for _ in range(2))
    assert worlds(2).run(paddle_sharded.clip_param_grads, gradients) == [[[first], [high]], [None, [low]]]


@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_plain_tensors_with_other_bits_on_a_rank_are_no_copies(worlds: Callable[[int], World], size: int) -> None:
    gradients = [np.array([[3.0], [4.0], [0.0], [0.0]], np.float32)]
    for failure in worlds(size).attempt(paddle_sharded.norm_beside_unequal_copies, gradients, None):
        assert re.search(r"plain gradients differ between ranks: position 1\b", str(failure))
        assert "Pass ownership='replicated'" in str(failure)
    n = reference.norm([*gradients, np.arange(size, dtype=np.float32)])
    assert worlds(size).run(paddle_sharded.norm_beside_unequal_copies, gradients, "distinct") == [n] * size


def test_check_replicas_compares_copies_that_attributes_declare(worlds: Callable[[int], World]) -> None:
    assert worlds(2).run(paddle_sharded.replicas_by_attributes, None) == [5.0, 5.0]
    for failure in worlds(2).attempt(paddle_sharded.replicas_by_attributes, 1):
        ((place, row),) = rows_of(str(failure)).items()
        assert "(parameter 'layer')" in place
        assert len(set(row.values())) == len(row) == 2


@pytest.mark.parametrize(("function", "attributes"), [("clip_by_norm", False), ("clip_", False), ("clip_", True)])
def test_clipping_a_plain_tensor_by_its_own_norm_in_a_group_is_rejected(
    worlds: Callable[[int], World], function: str, attributes: bool
) -> None:
    for failure in worlds(2).attempt(paddle_sharded.clip_plain_by_own_norm, function, attributes):
        assert "is a plain tensor. Other ranks may have other shards of this tensor, so its norm" in str(failure)


def test_plain_tensors_beside_distributed_ones_are_replicated(worlds: Callable[[int], World]) -> None:
    assert worlds(2).run(paddle_sharded.clip_plain_beside_distributed) == [[2.0], [2.0]]


def test_gradients_of_data_parallel_models_need_no_collective(worlds: Callable[[int], World]) -> None:
    assert worlds(2).run(paddle_sharded.clip_data_parallel) == [([], True)] * 2


@pytest.mark.nightly
def test_if_a_process_ends_the_others_raise_an_error() -> None:
    world = World(paddle_sharded.start, 2)
    try:
        began = time.monotonic()
        here, gone = world.attempt(paddle_sharded.end_before_the_second_clip, 1)
        assert time.monotonic() - began < 45  # connecting, and Paddle's own limit, which cannot be set
        assert gone.exitcode == 3
        assert "RuntimeError" in str(here)
        assert "Rank 0 of 2 waited for the other ranks in call 2 on this process group" in str(here)
    finally:
        world.close()


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("half", "process mesh with the ranks [0, 1, 2, 3], but process_group"),
        ("another half", "is not in process_group, which has the ranks ["),
        ("no group", "a gradient is sharded over the ranks ["),
    ],
)
def test_groups_that_do_not_fit_are_an_error_on_every_process(
    worlds: Callable[[int], World], group: str, message: str
) -> None:
    for failure in worlds(4).attempt(paddle_sharded.norm_over, group):
        assert message in str(failure)
