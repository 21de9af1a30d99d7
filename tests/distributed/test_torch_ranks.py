"""PyTorch on several ranks: what `test_each_rank.py` has no word for, such as derivatives, groups and ownership."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support import reference
from support.processes import torch_cases as cases
from support.processes import torch_sharded
from support.processes.torch_cases import NORMS, PATIENCE, REJECTED, Outcome
from support.processes.worlds import Failure, World, record_calls
from support.rank_tables import check_differs, ranks_by_value, rows_of
from support.tiers import nightly
from torch import Tensor

from unified_clip._backends.torch import device_path
from unified_clip._backends.torch.backend import BACKEND
from unified_clip._backends.torch.device_path import LocalSums
from unified_clip._compute import checksums
from unified_clip._distributed.agreement import CALLS

Worlds = Callable[[int], World]

nan, inf = math.nan, math.inf

SOON = 20
"""The number of seconds in which an error must arrive. The process groups of these worlds wait for 60 seconds."""

FIVE = [pytest.approx([0.6, 0.8])]
EXPECTED: dict[str, Any] = {
    "twice": (5.0, FIVE * 2),
    "tied": (5.0, FIVE * 2),
    "tied by memory": (5.0, FIVE * 2),
    "left out": (5.0, [*FIVE, [100.0]]),
    "sparse": (13.0, [pytest.approx([3 / 13, 4 / 13]), [[0.0], [pytest.approx(12 / 13)], [0.0], [0.0]]]),
    "without dimensions": (5.0, [pytest.approx(0.6), [pytest.approx(0.8)]]),
    "by PyTorch's norm": (13.0, [pytest.approx([3 / 13, 4 / 13]), pytest.approx([12 / 13, 0.0])]),
    "by PyTorch's maximum": (12.0, [pytest.approx([3 / 12, 4 / 12]), pytest.approx([1.0, 0.0])]),
}


@pytest.mark.parametrize("name", cases.CASES)
def test_gradients_of_every_kind_count_once(torch_worlds: Worlds, name: str) -> None:
    assert torch_worlds(2).run(cases.run_case, name) == [EXPECTED.get(name, (5.0, FIVE))] * 2


@pytest.mark.parametrize(("by_own_norms", "n"), [(False, math.sqrt(153)), (True, None)])
def test_in_param_grads_the_parameters_give_the_placements(
    torch_worlds: Worlds, by_own_norms: bool, n: float | None
) -> None:
    """The second rank has no gradient for the first parameter. Its shard would be the 4 of `[3, 4]`."""
    bias = pytest.approx([12 / n if n else 1.0])
    first, second = torch_worlds(2).run(cases.clip_pairs, by_own_norms)
    assert first == [pytest.approx([3 / n if n else 1.0]), bias]
    assert second == [None, bias]


@pytest.mark.parametrize("read", ["gradient", "local tensor"])
def test_backward_raises_if_a_saved_gradient_was_clipped(torch_worlds: Worlds, read: str) -> None:
    for message in torch_worlds(2).run(cases.clip_saved, read):
        assert "modified by an inplace operation" in message


def test_a_compiled_function_clips_outside_its_graph(torch_worlds: Worlds) -> None:
    assert torch_worlds(2).run(cases.clip_compiled) == [[(10.0, FIVE[0])] * 2] * 2


def test_results_have_derivatives(torch_worlds: Worlds) -> None:
    for norm, derivative in torch_worlds(2).run(cases.differentiate_clip):
        assert (type(norm), norm.tolist()) == (Tensor, 5.0)
        assert derivative == pytest.approx([0.032, -0.024], rel=1e-5)


@pytest.mark.parametrize(
    ("p", "values", "expected", "derivative"),
    [
        (1.0, (3.0, -4.0), 7.0, [1.0, -1.0]),
        (2.0, (3.0, 4.0), 5.0, pytest.approx([0.6, 0.8])),
        (inf, (4.0, 3.0), 4.0, [1.0, 0.0]),
        (3.0, (-3.0,), 3.0, [-1.0]),
        (inf, (-3.0,), 3.0, [-1.0]),
        (inf, (3.0, nan), nan, None),
    ],
)
def test_a_norm_with_a_derivative_is_one_number(
    torch_worlds: Worlds, p: float, values: Any, expected: float, derivative: Any
) -> None:
    """PyTorch's inf norm differs between ranks, may lack a NaN, and is an error for an empty shard."""
    for norm, result in torch_worlds(2).run(cases.differentiate_norm, p, *values):
        assert (type(norm), str(norm.item())) == (Tensor, str(expected))
        assert derivative is None or result == derivative


@pytest.mark.parametrize("name", NORMS)
def test_ranks_may_lack_gradients_that_they_do_not_own(torch_worlds: Worlds, name: str) -> None:
    assert torch_worlds(4).run(cases.norm_of, name) == [float(np.float32(NORMS[name][1] ** 0.5))] * 4


# -- rejected calls


def check_rejected(outcomes: Sequence[Outcome], *errors: str) -> None:
    """Check the errors of rank 0 and of the others, or the error of all ranks."""
    for rank, outcome in enumerate(outcomes):
        assert re.match(errors[rank > 0 and len(errors) > 1], outcome.error), f"rank {rank}: {outcome.error}"
        assert outcome.is_unchanged
        assert outcome.seconds < SOON


@pytest.mark.parametrize("name", REJECTED)
def test_ambiguous_or_invalid_calls_are_rejected(torch_worlds: Worlds, name: str) -> None:
    case = REJECTED[name]
    outcomes = torch_worlds(case.size).run(cases.reject, name)
    check_rejected(outcomes, *([case.error] if isinstance(case.error, str) else case.error))
    if name.startswith(("unequal", "terms")):
        for outcome in outcomes:
            check_differs(outcome.error, "position ")


def test_a_rank_does_not_wait_in_calls_without_collectives(torch_worlds: Worlds) -> None:
    first_rank, second_rank = torch_worlds(2).run(cases.reject_alone)
    assert (len(first_rank), second_rank) == (5, [])
    for outcome in first_rank:
        check_rejected([outcome], "(TypeError|ValueError): ")


@pytest.mark.nightly
@pytest.mark.parametrize("everywhere", [False, True])
def test_an_error_reaches_the_ranks_of_a_copy_or_with_the_group_of_all_ranks_all(
    torch_worlds: Worlds, everywhere: bool
) -> None:
    errors = [outcome.error for outcome in torch_worlds(4).run(cases.reject_in_one_copy, everywhere)]
    own, others = "ValueError: max_norm is nan", "ValueError: rank 1 rejected this call: ValueError: max_norm is nan"
    assert [error[: len(others)] for error in errors] == [
        others, errors[1][: len(others)], *([others] * 2 if everywhere else ["", ""])
    ]  # fmt: skip
    assert errors[1].startswith(own)


@pytest.mark.parametrize("kind", ["threshold", "integers"])
def test_no_rank_of_a_mesh_waits_for_ranks_that_have_raised(torch_worlds: Worlds, kind: str) -> None:
    outcomes = torch_worlds(4).run(cases.clip_on_two_dimensions, kind)
    if kind == "threshold":
        check_rejected(outcomes, r"ValueError: (rank \d rejected this call: .*)?the ranks disagree about threshold")
    else:
        check_rejected(outcomes, "TypeError: .*int32", "ValueError: .*rejected this call: .*int32")


def test_ranks_at_different_calls_raise_until_they_have_a_new_group(torch_worlds: Worlds) -> None:
    for first, second, fresh in torch_worlds(2).run(cases.clip_out_of_step):
        assert "Restart all ranks from the same checkpoint" in first.error
        assert rows_of(first.error)[CALLS] == {0: "1", 1: "2"}
        assert rows_of(second.error)[CALLS] == {0: "2", 1: "3"}
        assert not fresh.error


def test_all_ranks_use_process_groups_in_the_same_order(torch_worlds: Worlds) -> None:
    for outcome, clipped in torch_worlds(2).run(cases.clip_in_order_of_groups):
        assert (outcome.error, clipped) == ("", [[0.5, 0.5], [0.5, 0.5]])


def test_a_shard_on_one_rank_and_a_copy_on_another_are_an_error(torch_worlds: Worlds) -> None:
    for outcome in torch_worlds(2).run(cases.clip_with_other_placements):
        row = {0: "[4] (Replicate(),)", 1: "[4] (Shard(dim=0),)"}
        assert rows_of(outcome.error) == {"the parameter at position 0": row}


def test_check_numel_names_a_rank_without_gradients(torch_worlds: Worlds) -> None:
    for outcome in torch_worlds(2).run(cases.clip_without_gradients, True):
        rows = rows_of(outcome.error)
        assert rows["the number of gradient elements"] == {0: "24", 1: "0"}
        assert rows["parameters without a gradient"][1].startswith("3 (position 0, position 1, ")
    assert [outcome.error for outcome in torch_worlds(2).run(cases.clip_without_gradients, False)] == ["", ""]


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2, *nightly(4)])
@pytest.mark.parametrize("case", ["late", "dying"])
def test_no_rank_waits_longer_than_the_timeout_of_the_group(case: str, size: int) -> None:
    """PyTorch raises the error. A note says which call waited."""
    world = World(torch_sharded.start, size)
    try:
        first, *waiting = world.attempt(cases.wait_in_vain, case)
    finally:
        world.close()
    assert isinstance(first, Failure) == (case == "dying")
    for outcome in waiting:
        assert outcome.error.startswith("RuntimeError: ")
        assert f"of {size} waited for the other ranks in call 1 on this process group" in outcome.error
        assert (outcome.is_unchanged, outcome.seconds < PATIENCE + 2) == (True, True)


# -- groups of a configuration

NUMEL = {"sharded": 8, "copied": 4, "terms": 4, "plain": 4}


@pytest.mark.parametrize("second", NUMEL)
@pytest.mark.parametrize("first", ["sharded", "terms"])
def test_each_group_is_clipped_by_its_own_norm(torch_worlds: Worlds, first: str, second: str) -> None:
    """Each of two ranks has 4 elements of a gradient, which are 1. A sum of terms has elements of 2."""
    numel = NUMEL[first] + NUMEL[second]
    for outcome, after, _ in torch_worlds(2).run(cases.clip_by_groups, [first, second]):
        assert not outcome.error
        for kind, clipped in zip((first, second), after, strict=True):
            norm = NUMEL[kind] ** 0.5 * (2 if kind == "terms" else 1)
            np.testing.assert_array_equal(clipped, np.float32(reference.coefficient(np.float32(norm), 1.0, 1e-6)))
    for outcome, *_ in torch_worlds(2).run(cases.clip_by_groups, [first, second], numel):
        assert not outcome.error
    for outcome, *_ in torch_worlds(2).run(cases.clip_by_groups, [first, second], numel + 1):
        assert f"own {numel} gradient elements together, and check_numel expects {numel + 1}" in outcome.error


def test_all_ranks_raise_if_ownership_of_a_later_group_raises_on_one_rank(torch_worlds: Worlds) -> None:
    for rank, (first, second) in enumerate(torch_worlds(2).run(cases.reject_in_second_group)):
        reason = "LookupError: no stage"
        check_rejected([first], reason if rank else f"ValueError: rank 1 rejected this call: {reason}")
        assert (second.error, second.is_unchanged) == ("", True)


def test_copies_of_later_groups_are_compared(torch_worlds: Worlds) -> None:
    for outcome, after, collectives in torch_worlds(2).run(cases.clip_by_groups, ["sharded", "unequal"]):
        assert "plain gradients differ between ranks: position 1 (parameter '1'). " in outcome.error
        assert ranks_by_value(outcome.error, "position 1 (parameter '1')") == [[0], [1]]
        np.testing.assert_array_equal(after[0], 1)
        assert collectives


# -- sums outside of the CPU's memory


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(7, 5).T, torch.randn(9, dtype=torch.float64), torch.randn(5).bfloat16(),
        torch.randn(4, dtype=torch.complex64), torch.zeros(0),
        *(torch.arange(chunks * checksums.CHUNK + more, dtype=torch.float32)
          for chunks in (1, device_path.ROWS, 2 * device_path.ROWS + 1) for more in (-1, 0, 1)),
    ],
)  # fmt: skip
def test_a_device_computes_the_checksum_of_the_host(tensor: Tensor) -> None:
    tensors = [torch.ones(3), tensor, torch.zeros(0)]
    with record_calls(torch.Tensor, ("tolist", "item", "cpu")) as calls:
        checksum = LocalSums(BACKEND, tensors).checksum()
    assert calls == ["tolist"], "the device is read once"
    assert checksum == checksums.checksum([BACKEND.host_view(each) for each in tensors])


def norm_by_device(tensors: list[Tensor], p: int) -> float | None:
    """Return the norm from the fast sum. If it may round either way, use the exact sum."""
    sums = LocalSums(BACKEND, tensors)
    n = sums.power_sum(p, False).root(p, sums.norm_dtype)
    return sums.power_sum(p, True).root(p, sums.norm_dtype) if n is None else n


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_a_device_computes_the_norm_of_the_host(dtype: str, p: int) -> None:
    random, kit = np.random.default_rng(0), torch_sharded.KIT
    for length in (0, 1, device_path.BLOCK, device_path.BLOCK + 1, device_path.CHUNK + 1):
        array = reference.array(random.standard_normal(min(length, 999)), dtype)
        array = np.concatenate([np.zeros(length - len(array), array.dtype), array])
        assert norm_by_device([kit.from_array(array), torch.ones(3)], p) == reference.norm(
            [array[-999:], np.ones(3, np.float32)], float(p)
        )
    for values, norm in (((inf, 1.0), inf), ((1.0, -inf), inf), ((nan, 1.0), nan), ((nan, inf), nan)):
        assert str(norm_by_device([torch.ones(3), kit.tensor(values, dtype)], p)) == str(norm)
