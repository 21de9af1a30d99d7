"""PyTorch: if one rank rejects a call, or makes another call, all ranks raise an error with the reason."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from support import reference
from support.processes import torch_sharded_rejections as rejections
from support.processes.torch_sharded_rejections import ARRAYS, Attempt
from support.processes.worlds import World, record_calls
from support.rank_tables import check_differs, rows_of
from support.tiers import nightly

from unified_clip._backends.torch import local_sums
from unified_clip._backends.torch.backend import BACKEND
from unified_clip._backends.torch.local_sums import LocalSums
from unified_clip._compute import checksums
from unified_clip._distributed.agreement import CALLS

Worlds = Callable[[int], World]

SOON = 20
"""The number of seconds in which an error must arrive. The process groups of these worlds wait for 60 seconds."""


@pytest.fixture
def worlds(torch_worlds: Worlds) -> Worlds:
    return torch_worlds


def check_attempt(attempt: Attempt, message: str) -> None:
    assert re.search(message, attempt.error), attempt.error
    assert attempt.seconds < SOON


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("ownership", "LookupError: this parameter is not in the table"),
        ("dtype", "TypeError: position 1 .*int32"),
        ("configuration", "TypeError: .*complex64"),
    ],
)
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_all_ranks_raise_if_one_rejects_the_call(worlds: Worlds, size: int, kind: str, reason: str, p: float) -> None:
    attempts = worlds(size).run(rejections.reject, kind, p)
    for rank, (first, second) in enumerate(attempts):
        check_attempt(first, f"^{reason}" if rank == 1 else f"^ValueError: rank 1 rejected this call: {reason}")
        assert second.norm == reference.norm(ARRAYS), "the ranks are at the same call again"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("max_norm", "ValueError: max_norm is -1.0"),
        ("norm_type", "ValueError: norm_type"),
        ("max_norm and an entry", "TypeError: position 3 is a str"),
        ("check_numel", "TypeError: check_numel is '4'"),
        ("ownership", "ValueError: ownership is 'shared'"),
        ("order", "ValueError: norm_type"),
        ("clip_norm", "ValueError: clip_norm is nan"),
        ("entry", "TypeError: position 3 is a str"),
        ("the first entry", "TypeError: position 0 is a str"),
        ("an entry of a dict", r"TypeError: position 0 \(parameter 'x'\) is a str"),
        ("gradient", "TypeError: position 3 is a str"),
        ("main_grad", "ValueError: position 3 has a gradient in main_grad"),
        ("overlap", "ValueError: the gradient at position 3 and the gradient at position 4 overlap"),
        ("need_clip", "LookupError: this parameter is not in the table"),
        ("an entry, norms of each", "TypeError: position 3 is a str"),
        ("overlap, norms of each", "ValueError: the gradient at position 3 and the gradient at position 4 overlap"),
        ("need_clip, norms of each", "LookupError: this parameter is not in the table"),
        ("a threshold for one gradient", "ValueError: clip_norm is nan"),
        ("one gradient", "TypeError: .*int32"),
    ],
)
def test_all_ranks_raise_if_one_rejects_an_argument(worlds: Worlds, argument: str, reason: str) -> None:
    for rank, (first, second) in enumerate(worlds(2).run(rejections.reject_argument, argument)):
        check_attempt(first, f"^{reason}" if rank == 1 else f"^ValueError: rank 1 rejected this call: {reason}")
        assert second.norm == reference.norm(ARRAYS), "the ranks are at the same call again"


@pytest.mark.nightly
def test_all_ranks_of_a_copy_raise_or_with_the_group_of_all_ranks_those_of_all_copies(worlds: Worlds) -> None:
    """HSDP has two copies on two ranks each. By default, the ranks of the other copy clip."""
    for keywords, copies in (({}, 1), ({"process_group": "WORLD"}, 2)):
        for rank, (first, second) in enumerate(worlds(4).run(rejections.reject_in_one_copy, keywords)):
            if rank == 1:
                check_attempt(first, "^ValueError: max_norm is nan")
            elif rank < 2 * copies:
                check_attempt(first, "^ValueError: rank 1 rejected this call: ValueError: max_norm is nan")
            else:
                assert first.norm == reference.norm(ARRAYS)
            assert second.error == ""


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["beside Replicate", "left out"])
def test_a_rank_sends_its_error_to_the_waiting_ranks(worlds: Worlds, case: str) -> None:
    """The group is read also from entries after the invalid one, and not from parameters that are not clipped."""
    for rank, (first, second) in enumerate(worlds(4).run(rejections.reject_beside_other_parameters, case)):
        if rank == 1:
            check_attempt(first, "^TypeError: position 2 is a str")
        elif rank == 0:
            check_attempt(first, "^ValueError: rank 1 rejected this call: TypeError: position 2 is a str")
        assert rank < 2 or first.error == ""
        assert second.error == ""


def test_a_rank_does_not_wait_in_calls_without_collectives(worlds: Worlds) -> None:
    first_rank, second_rank = worlds(2).run(rejections.reject_alone)
    assert len(first_rank) == 7
    for attempt in first_rank:
        check_attempt(attempt, "^(TypeError|ValueError): ")
    assert second_rank == []


def test_ranks_at_different_calls_raise_until_they_have_a_new_group(worlds: Worlds) -> None:
    for first, second, fresh in worlds(2).run(rejections.clip_out_of_step):
        check_attempt(first, "Restart all ranks from the same checkpoint")
        check_attempt(second, "pass a new process group, whose calls")
        assert rows_of(first.error)[CALLS] == {0: "1", 1: "2"}
        assert rows_of(second.error)[CALLS] == {0: "2", 1: "3"}
        assert fresh.norm == reference.norm(ARRAYS)


def test_the_step_of_a_configuration_is_the_same_on_all_ranks(worlds: Worlds) -> None:
    for attempt in worlds(2).run(rejections.clip_at_steps, [3, 4]):
        check_attempt(attempt, "the ranks disagree about step")
        assert rows_of(attempt.error)["step"] == {0: "3", 1: "4"}
    assert [attempt.error for attempt in worlds(2).run(rejections.clip_at_steps, [3, 3])] == ["", ""]


@pytest.mark.parametrize("by_own_norms", [False, True])
@pytest.mark.parametrize(
    ("names", "order", "row"),
    [
        ([], [0, 1], ("the parameter at position 0$", r"^\[7\] \S+$", r"^\[5, 3\] \S+$")),
        (
            ["a", "b"],
            [0, 2],
            (r"the parameter at position 0 \(parameter 'a'\)", r"^'a' \[7\] \S+$", r"^'b' \[7\] \S+$"),
        ),
    ],
)
def test_parameters_in_another_order_are_an_error(
    worlds: Worlds, names: list[str], order: list[int], row: tuple[str, ...], by_own_norms: bool
) -> None:
    for attempt in worlds(2).run(rejections.clip_in_order, names, by_own_norms, order):
        check_attempt(attempt, "the ranks disagree about the parameter at position 0")
        check_differs(attempt.error, *row)


def test_all_ranks_use_process_groups_in_the_same_order(worlds: Worlds) -> None:
    for attempt, clipped in worlds(2).run(rejections.clip_in_order_of_groups):
        assert attempt.error == ""
        assert clipped == [[0.5, 0.5], [0.5, 0.5]]


def test_a_shard_on_one_rank_and_a_copy_on_another_are_an_error(worlds: Worlds) -> None:
    """Its norm would count the copy of one rank, and only a shard of the other."""
    for attempt in worlds(2).run(rejections.clip_with_other_placements):
        check_attempt(attempt, "the ranks disagree about the parameter at position 0")
        row = {0: "[4] (Replicate(),)", 1: "[4] (Shard(dim=0),)"}
        assert rows_of(attempt.error) == {"the parameter at position 0": row}


def test_shapes_of_missing_gradients_are_not_compared(worlds: Worlds) -> None:
    for attempt in worlds(2).run(rejections.call_without_a_gradient, "get_total_norm"):
        assert attempt.error == ""


def test_no_rank_of_a_mesh_waits_for_ranks_that_have_raised(worlds: Worlds) -> None:
    for attempt in worlds(4).run(rejections.differ_on_two_dimensions):
        check_attempt(attempt, "the ranks disagree about threshold")
        assert rows_of(attempt.error)["threshold"][0] == "2.0"


def test_no_rank_of_a_mesh_waits_for_a_rank_that_rejected_the_call(worlds: Worlds) -> None:
    rejecting, *waiting = worlds(4).run(rejections.reject_on_two_dimensions)
    check_attempt(rejecting, "^TypeError: .*int32")
    for attempt in waiting:
        check_attempt(attempt, "rejected this call: .*int32")


def test_check_numel_names_a_rank_without_gradients(worlds: Worlds) -> None:
    for attempt in worlds(2).run(rejections.clip_without_gradients, True):
        check_attempt(attempt, "the ranks disagree about the number of gradient elements")
        rows = rows_of(attempt.error)
        assert rows["the number of gradient elements"] == {0: "29", 1: "0"}
        assert rows["parameters without a gradient"][1].startswith("3 (position 0, position 1, ")
        assert "leave check_numel out" in attempt.error
    assert {attempt.error for attempt in worlds(2).run(rejections.clip_without_gradients, False)} == {""}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2 * checksums.CHUNK + 5), torch.randn(7, 5).T, torch.randn(9, dtype=torch.float64),
        torch.randn(3).half(), torch.randn(5).bfloat16(), torch.randn(4, dtype=torch.complex64), torch.zeros(0),
    ],
)  # fmt: skip
def test_a_device_computes_the_checksum_of_the_host(tensor: torch.Tensor) -> None:
    assert LocalSums(BACKEND, [tensor]).checksum() == checksums.checksum([BACKEND.host_view(tensor)])


@pytest.mark.parametrize("chunks", [1, local_sums.ROWS, 2 * local_sums.ROWS + 1])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_device_computes_the_checksum_of_many_chunks(chunks: int, more: int) -> None:
    tensor = torch.arange(chunks * checksums.CHUNK + more, dtype=torch.float32)
    assert LocalSums(BACKEND, [tensor]).checksum() == checksums.checksum([BACKEND.host_view(tensor)])


def test_the_checksum_of_several_tensors_reads_the_device_once() -> None:
    tensors = [torch.randn(3), torch.zeros(0), torch.randn(checksums.CHUNK + 1).half()]
    with record_calls(torch.Tensor, ("tolist", "item", "cpu")) as calls:
        checksum = LocalSums(BACKEND, tensors).checksum()
    assert checksum == checksums.checksum([BACKEND.host_view(tensor) for tensor in tensors])
    assert calls == ["tolist"]
