"""Paddle: gradients on several ranks have the norm, and are clipped to the bits, of whole ones."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import paddle
import pytest
from support import reference
from support.processes import paddle_sharded
from support.processes.paddle_sharded import PLACEMENTS
from support.processes.worlds import World, of_any_size
from support.tiers import nightly

import unified_clip.numpy as whole
import unified_clip.paddle as uc

SIZES = [1, 2, *nightly(4)]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[int], World]]:
    with of_any_size(paddle_sharded.start) as of:
        yield of


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    """Sizes that no number of processes divides, one of them with a single row."""
    random = np.random.default_rng(3)
    shapes = [(7, 5), (53,), (1, 3), (129, 17), (2, 3, 4)]
    return [reference.array(random.standard_normal(shape) * 3.0**number, dtype) for number, shape in enumerate(shapes)]


COUNTER_EXAMPLE = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)
"""Its norm is just above the middle between two float32, where a float64 sum depends on who adds what."""


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("layout", [*PLACEMENTS, "mixed"])
@pytest.mark.parametrize("size", SIZES)
def test_the_norm_and_the_gradients_are_those_of_one_process(
    worlds: Callable[[int], World], size: int, layout: str, p: float
) -> None:
    expected = [array.copy() for array in arrays()]
    n = whole.clip_grad_norm_(expected, 1.5, p)
    assert float(n) == reference.norm(arrays(), p)
    for norm, kind, gradients, _ in worlds(size).run(paddle_sharded.clipped, arrays(), layout, p, 1.5):
        assert (norm, kind) == (float(n), "Tensor paddle.float32 True")
        for got, wanted in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("size", SIZES)
def test_the_last_bit_does_not_depend_on_who_adds_what(worlds: Callable[[int], World], size: int) -> None:
    assert reference.norm([COUNTER_EXAMPLE]) == 2.0**24 + 2
    for norm, _, _, calls in worlds(size).run(paddle_sharded.clipped, [COUNTER_EXAMPLE], "rows", 2.0, 1.0):
        assert norm == 2.0**24 + 2
        assert calls == ["all_reduce"] * (0 if size == 1 else 2)  # the first leaves a doubt


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("layout", ["rows", "copies of rows", "two dimensions", "mixed"])
def test_one_clip_takes_one_message(worlds: Callable[[int], World], layout: str, dtype: str) -> None:
    expected = reference.norm(arrays(dtype))
    for norm, _, _, calls in worlds(4).run(paddle_sharded.clipped, arrays(dtype), layout, 2.0, 1.5):
        assert norm == expected
        assert calls == ["all_reduce"]


def test_terms_of_a_sum_are_added_first(worlds: Callable[[int], World]) -> None:
    for _, _, _, calls in worlds(2).run(paddle_sharded.clipped, arrays(), "terms of a sum", 2.0, 1.5):
        assert calls == ["reshard"] * len(arrays()) + ["all_reduce"]


@pytest.mark.parametrize("kind", ["row", "rows", "beside"])
@pytest.mark.parametrize("size", SIZES)
def test_a_model_is_clipped_after_its_backward_pass(worlds: Callable[[int], World], size: int, kind: str) -> None:
    for norm, before, after, calls in worlds(size).run(paddle_sharded.perceptron_clipped, kind, 1.5):
        assert norm == reference.norm(before)
        expected = [array.copy() for array in before]
        assert whole.clip_grad_norm_(expected, 1.5) > 1.5
        for got, wanted in zip(after, expected, strict=bool(after)):
            np.testing.assert_array_equal(got, wanted, strict=True)
        assert calls == ["reshard"] * calls.count("reshard") + ["all_reduce"] * (size > 1)


@pytest.mark.parametrize(
    ("name", "limits"),
    [("GradientClipByGlobalNorm", (1.5,)), ("GradientClipByNorm", (1.5,)), ("GradientClipByValue", (0.5,))],
)
def test_optimizers_clip_distributed_parameters(
    worlds: Callable[[int], World], name: str, limits: tuple[float, ...]
) -> None:
    for before, after, calls in worlds(2).run(paddle_sharded.perceptron_stepped, name, *limits):
        expected = getattr(whole, name)(*limits)([("", array) for array in before])
        for got, (_, wanted) in zip(after, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)
        assert len(calls) == {"GradientClipByGlobalNorm": 1, "GradientClipByNorm": 2, "GradientClipByValue": 0}[name]


def test_functional_names_return_distributed_tensors(worlds: Callable[[int], World]) -> None:
    array = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]], np.float32)
    for found in worlds(2).run(paddle_sharded.asked, "clip_by_norm", [array], "rows", 1.0):
        assert found == f"{whole.clip_by_norm(array, 1.0).tolist()} [Shard(dim=0)]"
    for found in worlds(2).run(paddle_sharded.asked, "clip_by_value", [array], "columns", -1.0, 1.0):
        assert found == f"{array.clip(-1, 1).tolist()} [Shard(dim=1)]"
    expected, n = whole.clip_by_global_norm([array], 1.0)
    for found in worlds(2).run(paddle_sharded.asked, "clip_by_global_norm", [array], "rows", 1.0):
        assert found == [[f"{expected[0].tolist()} [Shard(dim=0)]"], f"{n.tolist()} None"]
    for function in ("global_norm", "get_total_norm"):
        assert worlds(2).run(paddle_sharded.asked, function, [array], "rows") == [f"{n.tolist()} None"] * 2


@pytest.mark.parametrize("layout", PLACEMENTS)
def test_copies_of_parts_count_once_in_the_norm_of_a_single_gradient(
    worlds: Callable[[int], World], layout: str
) -> None:
    array = np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [2.0, 5.0]], np.float32)
    for found in worlds(4).run(paddle_sharded.asked, "clip_by_norm", [array], layout, 1.0):
        assert found.startswith(str(whole.clip_by_norm(array, 1.0).tolist()))


def test_elements_are_clipped_by_value(worlds: Callable[[int], World]) -> None:
    for found in worlds(4).run(paddle_sharded.in_place, "clip_grad_value_", arrays(), "mixed", 0.5):
        for got, given in zip(found, arrays(), strict=True):
            np.testing.assert_array_equal(got, given.clip(-0.5, 0.5))


def test_terms_of_a_sum_are_not_clipped_by_value(worlds: Callable[[int], World]) -> None:
    found = worlds(2).attempt(paddle_sharded.in_place, "clip_grad_value_", arrays(), "terms of a sum", 0.5)
    found += worlds(2).attempt(paddle_sharded.configured_by_value, arrays(), "terms of a sum")
    assert len(found) == 4
    for error in found:
        assert "every rank has a partial sum of each element" in str(error)


def test_terms_of_anything_but_a_sum_are_refused(worlds: Callable[[int], World]) -> None:
    for found in worlds(2).attempt(paddle_sharded.of_a_mean):
        assert "the placements [Partial(reduce_type=AVG)], but Partial placements are only supported" in str(found)


def test_a_derivative_is_refused_on_two_meshes_where_paddle_would_end_the_process(
    worlds: Callable[[int], World],
) -> None:
    for found in worlds(2).attempt(paddle_sharded.with_derivative, "mixed"):
        assert "ValueError: Paddle records a derivative, and some of the tensors are on another" in str(found)
    assert worlds(2).run(paddle_sharded.with_derivative, "rows")


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning")  # of append_backward
def test_static_programs_are_refused() -> None:
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            loss = paddle.static.nn.fc(paddle.static.data("x", [2, 3], "float32"), 1).sum()
            clip = uc.GradientClipByGlobalNorm(1.0, process_group=object(), ownership="distinct")
            with pytest.raises(TypeError, match="distributed gradients are not supported in a static program"):
                paddle.optimizer.SGD(0.1, grad_clip=clip).minimize(loss)
    finally:
        paddle.disable_static()


# -- faults


@pytest.mark.parametrize("beside", [False, True])
def test_a_process_without_gradients_takes_part(worlds: Callable[[int], World], beside: bool) -> None:
    array = np.array([[3.0], [4.0], [0.0], [0.0]], np.float32)
    n = reference.norm([np.array([3.0, 4.0] + [3.0, 4.0] * beside, np.float32)])
    assert worlds(2).run(paddle_sharded.without_gradients, [1], [array], beside) == [n, n]


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("rank", [0, 3])
def test_what_is_not_finite_on_one_process_is_known_to_all(
    worlds: Callable[[int], World], rank: int, value: float, p: float
) -> None:
    array = np.ones((8, 2), np.float32)
    for norm, _ in worlds(4).run(paddle_sharded.spoiled, rank, value, [array], p, False):
        assert str(norm) == str(value)


def test_an_error_names_the_tensor_where_it_is_and_the_process_elsewhere(worlds: Callable[[int], World]) -> None:
    here, there = worlds(2).attempt(paddle_sharded.spoiled, 0, math.nan, [np.ones((8, 2), np.float32)], 2.0, True)
    assert re.search("NonFiniteNormError.*position 0", str(here))
    assert re.search("NonFiniteNormError.*rank 0", str(there))


def test_processes_that_disagree_are_told_about_what(worlds: Callable[[int], World]) -> None:
    for found in worlds(2).attempt(paddle_sharded.limited_by_rank, [1.0, 2.0], arrays()):
        assert re.search("the ranks disagree about .*threshold: 1.0 on rank 0; 2.0 on rank 1", str(found))
    for found in worlds(2).attempt(paddle_sharded.of_fewer, 1, arrays()):
        assert "the ranks disagree about the number of parameters: 5 on rank 0; 4 on rank 1" in str(found)


def test_meshes_of_some_processes_do_not_tell_what_the_others_hold(worlds: Callable[[int], World]) -> None:
    given = [np.full((4, 2), 1.0, np.float32), np.full((4, 2), 2.0, np.float32)]
    for found in worlds(4).attempt(paddle_sharded.on_first_half, given):
        assert "the gradients are on process meshes of 2 of the 4 ranks" in str(found)
    for found in worlds(4).attempt(paddle_sharded.on_first_half, given, "all"):
        assert "Pass ownership='replicated' if every rank has a copy" in str(found)
    n = reference.norm(given)
    assert worlds(4).run(paddle_sharded.on_first_half, given, "all", "distinct") == [n] * 4


@pytest.mark.nightly
def test_gradients_on_meshes_of_some_processes_are_clipped_on_those() -> None:
    """By the norms of the processes of their meshes, and by one norm."""
    given = [np.array([[3.0], [4.0]], np.float32), np.array([[6.0], [8.0]], np.float32)]
    world = World(paddle_sharded.start, 4)  # where no process has used a mesh that others have not
    each = [whole.clip_by_norm(array, 1.0) for array in given]
    try:
        for together, (low, high) in ((False, each), (True, whole.clip_by_global_norm(given, 1.0)[0])):
            wanted = [[low[:1], None], [low[1:], None], [None, high[:1]], [None, high[1:]]]
            found = world.run(paddle_sharded.clipped_on_halves, given, 1.0, together)
            np.testing.assert_equal(found, wanted)
    finally:
        world.close()


def test_what_is_no_group_is_refused(worlds: Callable[[int], World]) -> None:
    for found in worlds(2).attempt(paddle_sharded.plain_stated, [np.ones(2, np.float32)], "everyone", "distinct"):
        assert "TypeError: process_group is 'everyone'. Pass a group of paddle.distributed" in str(found)


def test_a_process_that_is_not_in_the_group_is_told_so(worlds: Callable[[int], World]) -> None:
    inside, outside = worlds(2).attempt(paddle_sharded.in_group_of_the_first)
    assert inside == 3.0
    assert "rank 1 is not in process_group, which has the ranks [0]" in str(outside)


def test_plain_tensors_do_not_tell_what_the_others_hold(worlds: Callable[[int], World]) -> None:
    given = [np.array([3.0, 4.0], np.float32)]
    for found in worlds(2).attempt(paddle_sharded.plain_stated, given, "all"):
        assert "is a plain tensor. Pass ownership='replicated'" in str(found)
    for ownership, n, number in (("replicated", 5.0, 2), ("distinct", reference.norm(given * 2), 4)):
        found = worlds(2).run(paddle_sharded.plain_stated, given, "all", ownership, number)
        assert found == [(n, ["all_reduce"])] * 2


def test_pairs_tell_by_their_parameters(worlds: Callable[[int], World]) -> None:
    """A process without a gradient takes part, as where it passes parameters."""
    given = [np.array([[3.0], [7.0]], np.float32), np.array([4.0], np.float32)]
    (_, high), (first, low) = (whole.clip_by_norm(np.float32([3.0, 4.0]), 1.0).tolist() for _ in range(2))
    assert worlds(2).run(paddle_sharded.in_pairs, given) == [[[first], [high]], [None, [low]]]


@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_plain_tensors_are_copies_only_where_all_ranks_have_the_same_bits(
    worlds: Callable[[int], World], size: int
) -> None:
    given = [np.array([[3.0], [4.0], [0.0], [0.0]], np.float32)]
    for found in worlds(size).attempt(paddle_sharded.beside_unequal, given, None):
        assert re.search("gradients at position 1 .*differ between ranks. .* Pass ownership='replicated'", str(found))
    n = reference.norm([*given, np.arange(size, dtype=np.float32)])
    assert worlds(size).run(paddle_sharded.beside_unequal, given, "distinct") == [n] * size


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_where_one_rank_rejects_all_raise(worlds: Callable[[int], World], p: float) -> None:
    given = [np.array([[3.0], [4.0]], np.float32)]
    for rank, (error, norm) in enumerate(worlds(2).run(paddle_sharded.rejecting, given, p)):
        reason = "TypeError: position 1 "
        assert error.startswith(reason if rank == 1 else f"ValueError: rank 1 rejected this call: {reason}"), error
        assert norm == 5.0, "the ranks are at the same call again"


@pytest.mark.parametrize("kind", ["copies", "plain", "attributes", "shards"])
def test_copies_that_drifted_are_named(worlds: Callable[[int], World], kind: str) -> None:
    norms = worlds(2).run(paddle_sharded.replicas, kind, None)
    for failure in worlds(2).attempt(paddle_sharded.replicas, kind, 1):
        if kind == "shards":
            assert failure == pytest.approx(norms[0]), "no process has a copy of another's shard"
        else:
            assert "(parameter 'layer1') on rank 1 differ from their copies on rank 0. Copies have" in str(failure)


def test_parameters_in_another_order_are_found(worlds: Callable[[int], World]) -> None:
    given = [np.ones((4, 2), np.float32), np.ones((8, 2), np.float32)]
    for found in worlds(2).attempt(paddle_sharded.in_another_order, given):
        assert re.search(r"the parameter at position 0 .*: \[4, 2\] .* on rank 0; \[8, 2\] .* on rank 1", str(found))


@pytest.mark.parametrize(("function", "attributes"), [("clip_by_norm", False), ("clip_", False), ("clip_", True)])
def test_the_own_norm_of_a_part_is_not_taken_for_that_of_the_whole(
    worlds: Callable[[int], World], function: str, attributes: bool
) -> None:
    for found in worlds(2).attempt(paddle_sharded.each_stated, function, attributes):
        assert "is a plain tensor, and other ranks may have other shards of it, so its own norm" in str(found)


@pytest.mark.parametrize("check", [None, True])
def test_attributes_tell_without_fleet(worlds: Callable[[int], World], check: bool | None) -> None:
    assert worlds(2).run(paddle_sharded.marked, check) == [13.0, 13.0]


@pytest.mark.parametrize(("ownership", "n", "norms"), [("distinct", 5.0, []), ("replicated", 3.0, [3.0])])
def test_norms_that_no_process_knows_are_not_recorded(
    worlds: Callable[[int], World], tmp_path: Path, ownership: str, n: float, norms: list[float]
) -> None:
    found = worlds(2).run(paddle_sharded.recorded_flat, str(tmp_path), ownership)
    assert found == [[n, norms, {"plain": 1}]] * 2


def test_plain_tensors_beside_distributed_ones_are_whole_in_a_stated_group(worlds: Callable[[int], World]) -> None:
    assert worlds(2).run(paddle_sharded.each_beside) == [[2.0], [2.0]]


def test_a_wrong_statement_is_found_by_the_number_of_elements(worlds: Callable[[int], World]) -> None:
    given = [np.array([3.0, 4.0], np.float32)]
    for found in worlds(2).attempt(paddle_sharded.plain_stated, given, "all", "distinct", True):
        assert "the ranks counted 4 gradient elements together, and check_numel expects 2" in str(found)


def test_gradients_of_data_parallel_models_are_clipped_without_a_message(worlds: Callable[[int], World]) -> None:
    assert worlds(2).run(paddle_sharded.data_parallel) == [([], True)] * 2


@pytest.mark.nightly
def test_when_a_process_ends_the_others_end_with_an_error() -> None:
    world = World(paddle_sharded.start, 2)
    try:
        world.run(paddle_sharded.clipped, arrays(), "rows", 2.0, 1.5)  # when both have connected
        began = time.monotonic()
        here, gone = world.attempt(paddle_sharded.ended, 1, arrays())
        assert time.monotonic() - began < 30  # Paddle's own limit, which cannot be set
        assert gone.exitcode == 3
        assert "RuntimeError" in str(here)
        assert "Rank 0 of 2 waited for the other ranks in call 2 of this process group" in str(here)
    finally:
        world.close()
