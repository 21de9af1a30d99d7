"""What processes tell each other, with threads in their place: one norm, whoever holds what."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference

from unified_clip._api import functions
from unified_clip._backends import numpy
from unified_clip._compute import checksums, kernels
from unified_clip._compute.host import HostPath
from unified_clip._compute.scalars import HOST
from unified_clip._core import entry
from unified_clip._core.backend import Distributed
from unified_clip._core.distributed import AWAITED, DistributedSpec
from unified_clip._core.exact import WORDS
from unified_clip._core.gradients import GradientList
from unified_clip._core.types import Leaf
from unified_clip._distributed import consensus, waiting
from unified_clip._distributed.consensus import Call, Consensus
from unified_clip._distributed.groups import NormGroup, SingleProcess
from unified_clip._distributed.norm import LocalShards
from unified_clip._distributed.replicas import Replica

PAYLOAD = WORDS + 1 + consensus.CHECKED + 2 + consensus.COMPARED
"""The number of integers in the first all-reduce of a call."""

LIMIT = 10
"""Seconds that one may wait for the others."""


class Meeting:
    """Where the members of a group leave what they have."""

    def __init__(self, size: int) -> None:
        self.left: list[Sequence[int]] = [()] * size
        self.all_there = threading.Barrier(size, timeout=LIMIT)
        self.calls = 0


class Member:
    """A `Group` in a thread: what it adds up has to fit int64, and to be of one length everywhere."""

    leaves_norms, name = False, ""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size, self.key = meeting, rank, len(meeting.left), self
        self.ranks: Sequence[int] = range(self.size)

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        return self._found(numbers, sum)

    def all_reduce_max(self, numbers: Sequence[int]) -> list[int]:
        return self._found(numbers, max)

    def _found(self, numbers: Sequence[int], how: Callable[[Any], int]) -> list[int]:
        self._meeting.left[self.rank] = numbers
        self._meeting.calls += self.rank == 0
        self._meeting.all_there.wait()
        found = [how(column) for column in zip(*self._meeting.left, strict=True)]
        assert all(-(2**63) <= number < 2**63 for number in found)
        self._meeting.all_there.wait()
        return found


class Sums(HostPath):
    """`PartialSums` of arrays."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(numpy.BACKEND, arrays)


def leaf(position: int) -> Leaf:
    return Leaf(None, position)


class Held(LocalShards):
    """The shards of one process."""

    parameters: int | None = None  # type: ignore[assignment]
    numel: int | None = None  # type: ignore[assignment]
    checks_replicas = declares_owners = is_only_declared = False

    def __init__(self, group: Any, arrays: Sequence[np.ndarray], **told: Any) -> None:
        self._group, self.values = group, [np.asarray(array) for array in arrays]
        self.parameters, self.numel = told.get("parameters"), told.get("numel")
        self._names, self._copies = told.get("names"), told.get("copies", ())
        self._without = told.get("without", ())
        self._labels = told.get("labels")
        self._all = told.get("leaves") or [leaf(at) for at in range(len(self.values))]
        self.stored_rows = {at: lambda rows=rows: rows for at, rows in enumerate(told.get("rows", ()))}
        self._replicas, self.checks_replicas = told.get("replicas", []), "replicas" in told
        self._measured = []

    def labels(self) -> list[tuple[Leaf, str]] | None:
        return None if self._names is None else [(leaf(at), name) for at, name in enumerate(self._names)]

    def missing(self) -> list[Leaf]:
        return [leaf(at) for at in self._without]

    def copies(self) -> list[tuple[Leaf, Any]]:
        return [(self._all[at], self.values[at]) for at in self._copies]

    def replicas(self, indices: Sequence[int]) -> list[Replica]:
        if isinstance(self._replicas, Exception):
            raise self._replicas
        labels = self._labels or [f"layer{at}" for at in indices]
        return [
            Replica(self._all[at], labels[at], self.values[at], key, number, is_first)
            for at, (key, number, is_first) in enumerate(self._replicas)
        ]

    def group(self) -> Any:
        return self._group

    def counted(self, indices: Sequence[int]) -> list[Any]:
        return [self.values[index] for index in indices]

    def count_elements(self) -> int:
        return sum(array.size for array in self.values)

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        return [
            NormGroup(index if array.size else None, [self._group], leaf(index), self._names and self._names[index])
            for index, array in enumerate(self.values)
        ]

    def counted_alone(self, index: int) -> Any:
        return self.values[index]

    def elements(self, index: int) -> int:
        return int(self.values[index].size)

    def layouts(self) -> list[str]:
        return []

    def world(self) -> Any:
        return self._group


def together(size: int, run: Callable[[Member], Any]) -> tuple[list[Any], int]:
    """What each of so many processes found, and how often they called."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: run(Member(meeting, rank)), range(size))), meeting.calls


def norm_of(group: Any, arrays: Sequence[np.ndarray], p: float, agreed: Any = None, **told: Any) -> tuple[float, str]:
    path: Any = SimpleNamespace(xp=HOST, norm_dtype="")
    held: Any = Held(group, arrays, **told)
    n = held.norm(path, range(len(arrays)), p, agreed or {}, Sums, function="", is_first=True)
    return n, path.norm_dtype


ONES = np.ones(3, np.float32)

HSDP = [("a", 2, True), ("b", 2, True), ("a", 2, False), ("b", 2, False)]
"""The shards of four ranks: two copies of two shards."""


def replicas_of(
    gradients: Sequence[Sequence[np.ndarray]], sets: Sequence[Any], p: float = 2.0
) -> tuple[list[str], int]:
    """The error of each rank with these gradients, and the number of collectives. `sets`: of each rank's gradients."""

    def run(member: Member) -> str:
        try:
            norm_of(member, gradients[member.rank], p, replicas=[sets[member.rank]] * len(gradients[member.rank]))
        except ValueError as error:
            return str(error)
        return ""

    return together(len(gradients), run)


@pytest.mark.parametrize(("p", "calls"), [(1.0, 1), (2.0, 1), (math.inf, 2)])
def test_equal_replicas_are_compared_in_the_all_reduce_of_the_norm(p: float, calls: int) -> None:
    gradients = [[ONES, 2 * ONES], [3 * ONES, ONES], [ONES, 2 * ONES], [3 * ONES, ONES]]
    assert replicas_of(gradients, HSDP, p) == ([""] * 4, calls)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("rank", range(4))
def test_the_rank_and_the_tensor_that_drifted_are_named(rank: int, p: float) -> None:
    gradients = [[ONES, ONES.copy()] for _ in range(4)]
    gradients[rank][1][2] = np.nextafter(np.float32(1), np.float32(2))
    errors, _ = replicas_of(gradients, HSDP, p)
    assert len(set(errors)) == 1
    left, right = sorted([rank, (rank + 2) % 4])
    assert (
        f"the gradients at position 1 on rank {right} differ from their copies on rank {left}. Copies have" in errors[0]
    )


def test_the_minority_of_the_copies_is_named() -> None:
    gradients = [[ONES], [ONES], [2 * ONES], [ONES], [2 * ONES], [ONES], [3 * ONES]]
    errors, _ = replicas_of(gradients, [("a", 7, rank == 0) for rank in range(7)])
    assert (
        "position 0 on ranks 2, 4 differ from their copies on ranks 0, 1, 3, 5; 1 other differs, too. Cop" in errors[0]
    )


def test_two_sets_that_differ_are_named() -> None:
    gradients = [[ONES], [ONES], [2 * ONES], [3 * ONES]]
    errors, _ = replicas_of(gradients, HSDP)
    assert "rank 2 differ from their copies on rank 0. The gradients at position 0 on rank 3 differ from" in errors[0]


def test_a_replica_without_a_gradient_is_named() -> None:
    errors, _ = replicas_of([[ONES, ONES], [ONES, ONES], [ONES], [ONES, ONES]], HSDP)
    assert "position 1 on rank 2 differ from their copies on rank 0 (position 1 is missing on rank 2)" in errors[0]
    errors, _ = replicas_of([[ONES], [ONES], [], [ONES]], HSDP)
    message = "1 rank has a copy of the gradient at position 0, and 2 should. Pass an ownership"
    assert [error[: len(message)] for error in errors] == [message] * 4


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_drift_is_not_reported_for_a_norm_of_nan(p: float) -> None:
    nan = np.array([math.nan], np.float32)
    assert replicas_of([[nan], [nan], [-nan], [-nan]], HSDP, p)[0] == [""] * 4


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_two_sets_whose_contents_are_exchanged_differ(p: float) -> None:
    errors, _ = replicas_of([[ONES], [2 * ONES], [2 * ONES], [ONES]], HSDP, p)
    message = (
        "rank 2 differ from their copies on rank 0. The gradients at position 0 on rank 3 differ from their copies"
    )
    assert all(message in error for error in errors)


def drift_of(size: int, told: Callable[[int], dict[str, Any]]) -> str:
    """The error of ranks with a copy of one gradient of ones. `told`: what differs by rank."""

    def run(member: Member) -> Any:
        options = {"replicas": [("a", size, member.rank == 0)], **told(member.rank)}
        return norm_of(member, options.pop("arrays", [ONES]), 2.0, **options)

    return refused(size, run)


def test_replicas_of_another_shape_differ() -> None:
    message = drift_of(2, lambda rank: {"labels": ["'w' [3, 1]" if rank else "'w' [3]"]})
    assert message.startswith("the gradients at position 0 on rank 1 differ from their copies on rank 0. Copies")


def test_replicas_in_another_order_differ() -> None:
    leaves = [Leaf(None, 0, "a"), Leaf(None, 1, "b")]
    message = drift_of(
        2,
        lambda rank: {
            "arrays": [ONES, ONES],
            "leaves": leaves[:: -1 if rank else 1],
            "labels": ["b", "a"] if rank else ["a", "b"],
            "replicas": [("a", 2, rank == 0)] * 2,
        },
    )
    places = "position 1 (parameter 'b'), position 0 (parameter 'a')"
    assert message.startswith(f"the gradients at {places} on rank 1 differ from their copies on rank 0 in their order")


def test_replicas_of_another_dtype_differ() -> None:
    """The bits are equal."""
    arrays = [np.ones(3, np.float32), np.ones(3, np.float32).view(np.int32)]
    message = drift_of(2, lambda rank: {"leaves": [Leaf(arrays[rank], 0)]})
    assert message.startswith("the gradients at position 0 on rank 1 differ from their copies on rank 0. Copies")


def test_replicas_with_other_stored_rows_differ() -> None:
    message = drift_of(2, lambda rank: {"rows": [np.array([[rank]])]})
    assert message.startswith("the gradients at position 0 on rank 1 differ from their copies on rank 0. Copies")


def test_only_gradients_that_drifted_are_named_if_positions_differ() -> None:
    """Another rank has one more parameter before them."""
    drifted = np.nextafter(ONES, 2)

    def told(rank: int) -> dict[str, Any]:
        leaves = [Leaf(None, at + rank, name) for at, name in enumerate("ab")]
        arrays, sets = [ONES, drifted if rank else ONES], [("a", 2, rank == 0)] * 2
        return {"leaves": leaves, "arrays": arrays, "replicas": sets}

    message = drift_of(2, told)
    assert message.startswith(
        "the gradients at position 2 (parameter 'b') on rank 1 differ from their copies on rank 0."
    )


@pytest.mark.parametrize(
    ("firsts", "message"),
    [
        ([True, False, False], "3 ranks have a copy of the gradient at position 0, and 2 should. Pass an ownership"),
        ([True, True], "the ranks disagree about which of them is the first with a copy of the gradient. Make meshes"),
    ],
)
def test_copies_that_are_equal_and_not_those_declared_are_an_error(firsts: list[bool], message: str) -> None:
    errors, _ = replicas_of([[ONES]] * len(firsts), [("a", 2, is_first) for is_first in firsts])
    assert [error[: len(message)] for error in errors] == [message] * len(firsts)


def test_messages_have_global_ranks() -> None:
    def run(member: Member) -> str:
        member.ranks = [4, 6, 9]
        with pytest.raises(ValueError) as drifted:
            norm_of(member, [(1 + member.rank // 2) * ONES], 2.0, replicas=[("a", 3, member.rank == 0)])
        with pytest.raises(ValueError) as differing:
            norm_of(member, [ONES], 2.0, {"threshold": float(member.rank == 2)})
        assert "on rank 9 differ from their copies on ranks 4, 6." in str(drifted.value)
        assert "threshold: 0.0 on ranks 4, 6; 1.0 on rank 9" in str(differing.value)
        held, path = Held(member, [math.nan * ONES]), path_over([math.nan * ONES])
        held.norm(path, range(1), 2.0, {}, Sums, function="", is_first=False)
        return str([rank for rank, *_ in held.nonfinite_elsewhere(path)])

    assert together(3, run)[0] == ["['rank 6', 'rank 9']", "['rank 4', 'rank 9']", "['rank 4', 'rank 6']"]


def test_a_rank_whose_copies_are_unknown_rejects_the_call_after_its_sums() -> None:
    """Before them, the other ranks would wait for a sum, not for a rejection."""

    def run(member: Member) -> str:
        held = Held(member, [ONES], replicas=ValueError("unknown") if member.rank else [("a", 2, True)])
        held.awaits_sums = lambda measures: True  # type: ignore[method-assign]
        path: Any = SimpleNamespace(xp=HOST)

        def call() -> None:
            AWAITED.send_rejection = partial(held.send_rejection, "total")
            held.norm(path, range(1), 2.0, {}, Sums, function="", is_first=True)

        with pytest.raises(ValueError) as raised:
            entry.run_eagerly(call)
        return str(raised.value)

    first, second = together(2, run)[0]
    assert first.startswith("rank 1 rejected this call: ValueError: unknown")
    assert second == "unknown"


@pytest.mark.parametrize("value", [1, 0, 1.0, None, "yes", np.bool_(True), np.ones(2)])
def test_check_replicas_is_a_bool(value: Any) -> None:
    with pytest.raises(TypeError, match=r"check_replicas is .*\. Pass True or False"):
        DistributedSpec(check_replicas=value)


def test_a_rank_that_does_not_compare_replicas_is_named() -> None:
    def run(member: Member) -> str:
        told = {"replicas": [("a", 2, False)]} if member.rank else {}
        with pytest.raises(ValueError, match="check_replicas") as raised:
            norm_of(member, [ONES], 2.0, **told)
        return str(raised.value)

    (first, second), _ = together(2, run)
    assert first == second
    assert "check_replicas: None on rank 0; True on rank 1" in first


def test_another_error_comes_before_drift() -> None:
    def run(member: Member) -> str:
        given = {"threshold": float(member.rank)}
        with pytest.raises(ValueError, match="threshold: ") as raised:
            norm_of(member, [member.rank * ONES], 2.0, given, replicas=[("a", 2, member.rank == 0)])
        return str(raised.value)

    assert len(set(together(2, run)[0])) == 1


def parted(array: np.ndarray, size: int, random: np.random.Generator) -> list[np.ndarray]:
    """Every element with one process, in any order; some processes have none."""
    owners = random.integers(0, size, array.size)
    return [random.permutation(array[owners == rank]) for rank in range(size)]


NUMBERS = {
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "complex64": st.complex_numbers(width=64, allow_nan=False, allow_infinity=False),
    "complex128": st.complex_numbers(allow_nan=False, allow_infinity=False),
}


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", NUMBERS)
@given(data=st.data(), size=st.integers(1, 5), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_norm_does_not_depend_on_who_holds_what(dtype: str, data: Any, size: int, seed: int) -> None:
    """The largest and the smallest numbers of a dtype are among those."""
    array = np.array(data.draw(st.lists(NUMBERS[dtype], max_size=40)), dtype)
    parts = parted(array, size, np.random.default_rng(seed))
    for p in (1.0, 2.0, math.inf):
        found, _ = together(size, lambda group, p=p: norm_of(group, [parts[group.rank]], p))
        assert set(found) == {(reference.norm([array], p), reference.norm_dtype([dtype]))}
    if array.size and not np.iscomplexobj(array):
        found, calls = together(size, lambda group: norm_of(group, [parts[group.rank]], 3.0))
        assert len(set(found)) == 1
        n = kernels.general_norm([(array, dtype)], 3.0, dtype)
        assert found[0][0] == pytest.approx(n, rel=1e-15 if dtype == "float64" else 2e-7)
        assert calls <= 2


def test_one_process_with_a_wider_gradient_makes_the_norm_wider() -> None:
    arrays = [np.array([3.0], np.float32), np.array([1e-12])]
    for p in (1.0, 2.0, 3.0, math.inf):
        found, _ = together(2, lambda group, p=p: norm_of(group, [arrays[group.rank]], p))
        assert {dtype for _, dtype in found} == {"float64"}


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_a_norm_may_exceed_the_largest_number_of_its_dtype(p: float) -> None:
    arrays = [np.full(2, 3e38, np.float32), np.full(2, 3e38, np.float32)]
    assert together(2, lambda group: norm_of(group, [arrays[group.rank]], p))[0] == [(math.inf, "float32")] * 2


@pytest.mark.parametrize(("p", "calls"), [(1.0, 1), (2.0, 1), (math.inf, 1), (3.0, 2)])
def test_few_calls_are_made(p: float, calls: int) -> None:
    assert together(3, lambda group: norm_of(group, [np.ones(3, np.float32)], p))[1] == calls


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_sum_that_leaves_a_doubt_is_made_again_by_all(size: int) -> None:
    array = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)
    parts = np.array_split(array, size)
    found, calls = together(size, lambda group: norm_of(group, [parts[group.rank]], 2.0))
    assert found == [(2.0**24 + 2, "float32")] * size
    assert calls == 2


def test_a_process_alone_has_it_all() -> None:
    assert norm_of(SingleProcess(), [np.array([3.0, 4.0], np.float32)], 2.0) == (5.0, "float32")
    assert norm_of(SingleProcess(), [np.array([3.0, 4.0], np.float32)], math.inf) == (4.0, "float32")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_what_is_not_finite_reaches_all(p: float, value: float) -> None:
    found, _ = together(3, lambda group: norm_of(group, [np.array([1.0, value if group.rank == 1 else 2.0])], p))
    assert [str(n) for n, _ in found] == [str(value)] * 3


def refused(size: int, run: Callable[[Member], Any]) -> str:
    """The message that all raise."""

    def message(group: Member) -> str:
        with pytest.raises(ValueError) as caught:
            run(group)
        return str(caught.value)

    (found,) = set(together(size, message)[0])
    return found


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        ({"agreed": {"threshold": 1.0}}, {"agreed": {"threshold": 1.0 + 2**-52}}, "threshold: 1.0000000000000002 on r"),
        ({"agreed": {"threshold": 1.0}}, {}, "threshold: None on ranks 1, 2; 1.0 on rank 0"),
        ({"agreed": {"error_if_nonfinite": True}}, {"agreed": {"error_if_nonfinite": False}}, "True on rank 0"),
        ({"parameters": 7}, {"parameters": 8}, "the number of parameters: 8 on ranks 1, 2; 7 on rank 0"),
        ({"parameters": 7}, {}, "the number of parameters: None on ranks 1, 2; 7 on rank 0"),
        ({"numel": 2**40}, {"numel": 2**40 + 1}, f"the number of gradient elements: {2**40 + 1} on ranks 1, 2"),
    ],
)  # fmt: skip
def test_what_differs_is_told_with_who_has_what(p: float, own: Any, other: Any, told: str) -> None:
    array = np.ones(2, np.float32)
    message = refused(3, lambda group: norm_of(group, [array], p, **(other if group.rank else own)))
    assert message.startswith("the ranks disagree about ")
    assert told in message


@pytest.mark.parametrize(
    "orders",
    [(2.0, math.inf), (math.inf, 2.0), (3.0, 1.0), (None, 2.0), (2.0, None), (None, math.inf), (math.inf, None)],
)
@pytest.mark.parametrize("how", [sum, max])
def test_orders_that_differ_are_found_whatever_is_done_with_the_numbers(
    orders: Any, how: Any, monkeypatch: Any
) -> None:
    """Some add up while others compare, or find norms of single gradients (None); which is done is the transport's
    choice."""

    def total(member: Member, numbers: Sequence[int]) -> list[int]:
        return member._found(numbers, how if len(numbers) == PAYLOAD else sum)  # the rest is for all alike

    monkeypatch.setattr(Member, "all_reduce_max", lambda member, numbers: member._found(numbers, how))
    monkeypatch.setattr(Member, "all_reduce_sum", total)
    array = np.ones(2, np.float32)

    def run(group: Member) -> Any:
        p = orders[group.rank > 0]
        return Consensus(group, Call()).compare() if p is None else norm_of(group, [array], p)

    assert f"norm_type: {orders[1]} on ranks 1, 2; {orders[0]} on rank 0" in refused(3, run)


@pytest.mark.parametrize("orders", [(1.0, 2.0), (3.0, math.inf), (2.5, 3.0)])
def test_orders_that_differ_are_found(orders: Any) -> None:
    array = np.ones(2, np.float32)
    message = refused(3, lambda group: norm_of(group, [array], orders[group.rank > 0]))
    assert f"norm_type: {orders[1]} on ranks 1, 2; {orders[0]} on rank 0" in message


def test_many_processes_are_told_of_in_short() -> None:
    message = refused(40, lambda group: norm_of(group, [np.ones(1)], 2.0, {"threshold": float(group.rank % 9)}))
    assert "0.0 on ranks 0, 9, 18, 27 and others; 1.0 on ranks 1, 10, 19, 28 and others; " in message
    assert "5.0 on rank" not in message
    assert len(message) < 500


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_elements_are_counted(p: float) -> None:
    parts = np.array_split(np.ones(7), 3)
    for expected in (7, 8):
        run = lambda group: norm_of(group, [parts[group.rank]], p, numel=expected)  # noqa: B023, E731
        if expected == 7:
            together(3, run)
        else:
            assert refused(3, run).startswith("the ranks counted 7 gradient elements together, and check")


@given(size=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_norms_of_single_gradients_are_found_together(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    doubtful = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)
    whole = [random.standard_normal(size * 4).astype(np.float32), doubtful]
    parts = [np.array_split(array, size) for array in whole]

    def run(group: Member) -> dict[int, float]:
        return Held(group, [cut[group.rank] for cut in parts]).tensor_norms(2, {"threshold": 1.0}, Sums)

    found, calls = together(size, run)
    assert found == [{index: reference.norm([array]) for index, array in enumerate(whole)}] * size
    assert calls == 3  # to compare, to add up, and once more for the second


@pytest.mark.parametrize(
    ("keywords", "is_given"),
    [
        ({}, False),
        ({"process_group": None}, False),
        ({"check_numel": False}, False),
        ({"check_numel": True}, True),
        ({"check_numel": 0}, True),
        ({"ownership": "distinct"}, True),
        ({"ownership": bool}, True),
        ({"process_group": "a group"}, True),
    ],
)
def test_a_spec_is_given_if_a_keyword_declares_something(keywords: dict[str, Any], is_given: bool) -> None:
    assert DistributedSpec(**keywords).is_given == is_given


@pytest.mark.parametrize(
    ("ownership", "number"),
    [
        (None, 2),
        ("replicated", 2),
        ("distinct", None),
        (bool, None),
        ({"*": "replicated"}, 2),
        ({"*": "distinct"}, None),
    ],
)
def test_ranks_compare_parameters_that_may_not_differ(ownership: Any, number: int | None) -> None:
    assert DistributedSpec(ownership=ownership).comparable([leaf(0), leaf(1)]) == number


def test_a_statement_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ownership is 'owned'. Pass 'replicated', 'distinct', None, or a"):
        DistributedSpec(ownership="owned")
    with pytest.raises(
        ValueError, match=r"pass a dict from patterns of names to these values, as in \{'\*\.experts\.\*': 'dist"
    ):
        DistributedSpec(ownership={"*": "owned"})
    with pytest.raises(TypeError, match=r"check_numel is '5'. Pass a bool, a whole number, or None"):
        DistributedSpec(check_numel="5")  # type: ignore[arg-type]
    for ownership in ("replicated", "distinct", bool):  # as with a group of all that is not made yet
        with pytest.raises(ValueError, match=r"process_group is None, .* after init_process_group"):
            DistributedSpec(process_group=None, ownership=ownership)


def test_a_copied_spec_has_the_same_process_group() -> None:
    """Process groups cannot be copied."""
    spec = DistributedSpec(process_group=threading.Lock(), ownership="distinct")
    assert copy.deepcopy(spec) is spec


def path_over(arrays: Sequence[np.ndarray]) -> Any:
    counts = [(int(np.isnan(each).sum()), int(np.isinf(each).sum())) for each in arrays]
    return SimpleNamespace(xp=HOST, nonfinite_counts=lambda: counts)


def test_who_holds_what_is_not_finite_is_told() -> None:
    """To those that do not; a process that holds nothing counts too."""
    values = [np.array([1.0, math.nan, math.inf]), np.array([math.inf]), np.array([1.0])]

    def elsewhere(group: Member) -> list[tuple[str, int, int]]:
        arrays = [values[group.rank]] if group.rank < 2 else []
        held, path, other = Held(group, arrays), path_over(arrays), path_over(arrays)
        assert held.nonfinite_elsewhere(path) == [], "no rank waits before a norm is known"
        assert math.isnan(held.norm(path, range(len(arrays)), 2.0, {}, Sums, function="", is_first=False))
        assert held.nonfinite_elsewhere(other) == [], "no rank waits for a norm of this rank alone"
        return held.nonfinite_elsewhere(path)

    first, second = ("rank 0", 1, 1), ("rank 1", 0, 1)
    assert together(3, elsewhere)[0] == [[second], [first], [first, second]]


def test_slices_of_a_gradient_that_several_ranks_hold_have_no_norms() -> None:
    gradients: Any = GradientList.__new__(GradientList)
    gradients.shards = Held(SingleProcess(), [np.ones((2, 2))])
    with pytest.raises(ValueError, match="`axes` is not supported for distributed gradients"):
        gradients.slices(0, [0])


# -- what ranks compare


def alike(group: Any, **told: Any) -> tuple[float, str]:
    return norm_of(group, [np.ones(2, np.float32)], told.pop("p", 2.0), **told)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_another_parameter_is_named(p: float) -> None:
    message = refused(3, lambda group: alike(group, p=p, names=["a [2]", "b [3]" if group.rank else "c [3]"]))
    assert "the parameter at position 1: b [3] on ranks 1, 2; c [3] on rank 0" in message


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_only_ranks_that_know_their_parameters_compare_them(p: float) -> None:
    known = ["a [2]", "b [3]"]
    found, _ = together(3, lambda group: alike(group, p=p, names=None if group.rank == 1 else known))
    assert len(set(found)) == 1
    assert "at position 1" in refused(
        3, lambda group: alike(group, p=p, names=[known, None, ["a [2]", "b"]][group.rank])
    )
    assert len(set(together(2, lambda group: alike(group, p=p))[0])) == 1


def of_copies(group: Any, p: float, arrays: Sequence[np.ndarray]) -> tuple[float, str]:
    """The norm of gradients that each rank has, taken for copies, so that the first counts."""
    path: Any = SimpleNamespace(xp=HOST, norm_dtype="")
    held: Any = Held(group, arrays, copies=range(len(arrays)))
    held.counted = lambda indices: arrays if group.rank == 0 else []
    n = held.norm(path, range(len(arrays)), p, {}, Sums, function="", is_first=True)
    return n, path.norm_dtype


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_copies_have_the_same_bits_on_all_ranks(p: float) -> None:
    found, calls = together(3, lambda group: of_copies(group, p, [np.full(2, 3.0, np.float32)]))
    assert len(set(found)) == 1
    assert calls == (2 if p == 3 else 1), "they are compared in the same collective"
    other = np.nextafter(np.float32(3.0), np.float32(4.0))
    for at in range(3):
        run = lambda group: of_copies(group, p, [np.array([3.0, other if group.rank == at else 3.0], np.float32)])  # noqa: B023, E731
        assert refused(3, run).startswith(
            "the gradients at position 0 differ between ranks. They are plain tensors beside"
        )


@pytest.mark.parametrize("told", [{"rows": [np.array([[0]])]}, {"leaves": [Leaf(np.ones(3, np.int32), 0)]}])
def test_copies_with_other_stored_rows_or_another_dtype_differ(told: dict[str, Any]) -> None:
    message = refused(2, lambda group: alike(group, copies=[0], **(told if group.rank else {})))
    assert message.startswith("the gradients at position 0 differ between ranks. They are plain tensors beside")


def test_copies_are_compared_by_name() -> None:
    """Another rank has one more parameter before them."""

    def run(group: Member) -> Any:
        leaves = [Leaf(None, at + group.rank, name) for at, name in enumerate("ab")]
        return norm_of(group, [ONES, ONES + group.rank], 2.0, copies=[0, 1], leaves=leaves)

    assert refused(2, run).startswith("the gradients at position 1 (parameter 'b') differ between ranks. They are")


def test_up_to_four_copies_that_differ_are_named() -> None:
    message = refused(2, lambda group: of_copies(group, 2.0, [np.full(1, float(group.rank))] * 6))
    assert message.startswith("the gradients at position 0, position 1, position 2, position 3 and 2 more differ")
    message = refused(2, lambda group: of_copies(group, 2.0, [np.ones(1)] * (2 - group.rank)))
    assert message.startswith(
        "the gradients at position 1 differ between ranks. No such gradient on rank 1: position 1. They"
    )


def test_copies_that_are_not_numbers_may_have_other_bits() -> None:
    """Then the norm is NaN on all ranks."""
    other = np.array([0x7FC00001], np.uint32).view(np.float32)
    for p in (2.0, math.inf):
        found, _ = together(
            2, lambda group, p=p: of_copies(group, p, [other if group.rank else np.full(1, math.nan, np.float32)])
        )
        assert all(math.isnan(n) for n, _ in found)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_copies_that_agree_need_one_checksum_for_all(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device waits at each."""
    computed: list[int] = []
    checksum = Sums.checksum

    def counting(sums: Sums) -> int:
        computed.append(len(sums._tensors))
        return checksum(sums)

    monkeypatch.setattr(Sums, "checksum", counting)
    together(2, lambda group: of_copies(group, p, [np.ones(2, np.float32)] * 5))
    assert computed == [5, 5]


def test_a_checksum_depends_on_every_bit_and_on_the_order() -> None:
    array = np.random.default_rng(0).standard_normal(3 * checksums.CHUNK // 2).astype(np.float32)
    found = {checksums.checksum([array])}
    changes = [-array, array[::-1], np.roll(array, 1), np.roll(array, checksums.CHUNK), array[:-1], np.append(array, 0)]
    for at in range(32):  # each bit of one number, and of two, where sums would be the same
        for places in ([5], [5, 9], [checksums.CHUNK + 5, 5]):
            bits = array.copy().view(np.uint32)
            bits[places] ^= np.uint32(1 << at)
            changes.append(bits.view(np.float32))
    for first, second in ((0, 1), (0, 2), (7, 3 * checksums.CHUNK // 2 - 1)):
        swapped = array.copy()
        swapped[[first, second]] = swapped[[second, first]]
        changes.append(swapped)
    found |= {checksums.checksum([change]) for change in changes}
    assert len(found) == 1 + len(changes)
    assert checksums.checksum([array[:7], array[7:]]) != checksums.checksum([array[:8], array[8:]])
    assert checksums.checksum([np.zeros(1, np.float16)]) != checksums.checksum([np.zeros(2, np.float16)])


def test_the_names_that_were_called_are_told() -> None:
    def call(group: Member) -> None:
        name = "clip_by_global_norm" if group.rank else "clip_grad_norm_"
        Consensus(group, Call({"eps": 1e-6 if group.rank else 0.0}, remarks=lambda: {"function": name})).compare()

    message = refused(3, call)
    assert "eps: 1e-06 on ranks 1, 2; 0.0 on rank 0. ranks 1, 2 called clip_by_global_norm, rank 0 called" in message


def test_gradients_that_are_missing_are_named_where_elements_are_counted() -> None:
    def call(group: Member) -> Any:
        return alike(group, numel=0 if group.rank == 1 else 4, without=range(5) if group.rank == 1 else ())

    message = refused(2, call)
    assert "the number of gradient elements: 4 on rank 0; 0 on rank 1. rank 1 has no gradient for 5 of the" in message
    assert "(position 0, position 1, position 2, ...): set gradients of zeros for these parameters, or leave" in message


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_calls_are_counted_by_group_so_that_one_that_failed_alone_is_found(p: float) -> None:
    def run(group: Member) -> list[str]:
        found = []
        if group.rank == 1:
            with pytest.raises(ConnectionError) as caught:
                alike(Broken(group), p=p)
            assert "Rank 1 of 3 waited for the other ranks" in str(caught.value.__notes__)
        for _ in range(2):
            with pytest.raises(ValueError) as differing:
                alike(group, p=p)
            found.append(str(differing.value))
        return found

    for first, second in together(3, run)[0]:
        assert "the number of this call in its process group: 1 on ranks 0, 2; 2 on rank 1. A rank skipped a" in first
        assert "the number of this call in its process group: 2 on ranks 0, 2; 3 on rank 1. A rank skipped a" in second


class Broken:
    """A group whose network is down."""

    leaves_norms = False

    def __init__(self, group: Member) -> None:
        self.rank, self.size, self.ranks, self.key = group.rank, group.size, group.ranks, group

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        raise ConnectionError("the network is down")

    all_reduce_max = all_reduce_sum


# -- rejections


def rejected(find_groups: Callable[[], Any], body: Callable[[], Any]) -> Exception:
    """Run a call for which other ranks wait, and return its error."""

    def call() -> None:
        AWAITED.send_rejection = partial(consensus.send_rejection, find_groups=find_groups)
        body()

    with pytest.raises(Exception) as caught:
        entry.run_eagerly(call)
    assert AWAITED.send_rejection is None
    return caught.value


def awaited(group: Any, error: Exception) -> list[str]:
    """Reject a call that others wait for; the notes that the error has then."""

    def body() -> None:
        raise error

    assert rejected(group if callable(group) else lambda: [group], body) is error
    return list(getattr(error, "__notes__", []))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_where_one_rank_rejects_the_others_raise_with_its_reason(p: float) -> None:
    def run(group: Member) -> str:
        if group.rank == 1:
            assert awaited(group, TypeError("no gradient")) == []
        else:
            with pytest.raises(ValueError) as caught:
                alike(group, p=p)
            assert "rank 1 rejected this call: TypeError: no gradient. Correct the call on rank 1." in str(caught.value)
        return str(alike(group, p=p)[0])

    assert len(set(together(3, run)[0])) == 1, "the ranks are at the same call again"


def test_all_ranks_may_reject_a_call() -> None:
    assert together(3, lambda group: awaited(group, TypeError(f"{group.rank}")))[0] == [[]] * 3


def test_a_rank_rejects_alone_where_no_other_waits() -> None:
    assert awaited(SingleProcess(), TypeError()) == []
    assert awaited(Broken(Member(Meeting(2), 0)), consensus.undeclared("nothing declares it")) == []


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_a_rank_that_cannot_measure_can_still_reject(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(method: str) -> Callable[..., Any]:
        own = getattr(Sums, method)

        def call(sums: Sums, *args: Any, **kwargs: Any) -> Any:
            if any(array.size == 7 for array, _ in sums._parts):
                raise MemoryError("7 numbers are too many")
            return own(sums, *args, **kwargs)

        return call

    for method in ("power_sum", "max_abs", "relative_sum"):
        monkeypatch.setattr(Sums, method, failing(method))

    def run(group: Member) -> float:
        if group.rank == 1:
            error = rejected(lambda: [group], lambda: norm_of(group, [np.ones(7, np.float32)], p))
            assert isinstance(error, MemoryError)
        else:
            with pytest.raises(ValueError, match="rank 1 rejected this call: MemoryError: 7 numbers"):
                alike(group, p=p)
        return alike(group, p=p)[0]

    assert len(set(together(2, run)[0])) == 1


def test_a_rejection_that_cannot_be_sent_is_a_note() -> None:
    (note,) = awaited(Broken(Member(Meeting(2), 0)), TypeError())
    assert note == "Sending this error to the other ranks failed: ConnectionError: the network is down"


def test_an_error_without_a_group_has_no_note_about_the_group() -> None:
    """FSDP1's parameters without keywords, for example: the error has its own remedy."""

    def find() -> Any:
        raise ValueError("no tensor shows which ranks have the gradients")

    assert awaited(find, RuntimeError("these are FSDP1 flat parameters")) == []


def test_a_rank_that_waits_for_long_with_an_error_logs_it(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(waiting, "REJECTION_PATIENCE", 0.0)
    awaited(slow_group(caplog), TypeError("no gradient"))
    assert caplog.text.count("to raise this error on all ranks: TypeError('no gradient')") == 1


def test_a_rank_that_waits_for_long_logs_the_number_of_its_call(monkeypatch: Any, caplog: Any) -> None:
    """JAX waits for half an hour before it raises."""
    group = slow_group(caplog)
    call(SimpleNamespace(**{**vars(group), "all_reduce_sum": list}))
    assert caplog.text == "", "it has not waited for long"
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    call(group)
    assert caplog.messages == [
        "Rank 0 of 2 waits for the other ranks in call 2 of this process group. Make the same calls on every rank, "
        "also on ranks without a gradient, and look for a rank that has ended."
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_forked_process_logs_its_own_waits(monkeypatch: Any, caplog: Any) -> None:
    """Threads do not survive a fork."""
    monkeypatch.setattr(waiting, "_WATCH", [threading.Thread()])
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    call(slow_group(caplog))
    assert "in call 1 of this process group" in caplog.text


def call(group: Any) -> None:
    with suppress(Exception):  # of numbers that no rank has added up
        norm_of(group, [np.ones(2)], 2.0)


def slow_group(caplog: Any) -> Any:
    """A process group whose collectives return when something is logged, or after two seconds."""

    def slow(numbers: Sequence[int]) -> list[int]:
        until = time.monotonic() + 2 * waiting.INTERVAL
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.01)
        return list(numbers)

    return SimpleNamespace(
        rank=0, size=2, ranks=range(2), key=threading.Event(), all_reduce_sum=slow, leaves_norms=False
    )


def test_norms_of_single_gradients_that_differ_leave_no_rank_waiting() -> None:
    """The ranks of a mesh of two rows and two columns, along which gradients are spread."""
    rows, columns = [Meeting(2) for _ in range(2)], [Meeting(2) for _ in range(2)]

    def run(group: Member) -> str:
        at, to = divmod(group.rank, 2)
        held = Held(None, [np.ones(2)])
        groups = [Member(rows[at], to), Member(columns[to], at)]
        held.norm_groups = lambda known_only=False: [NormGroup(0, groups, leaf(0), "[2]")]  # type: ignore[method-assign]
        with pytest.raises(ValueError) as caught:
            held.tensor_norms(2, {"threshold": float(group.rank == 0)}, Sums)
        return str(caught.value)

    first, second, third, fourth = together(4, run)[0]
    for message in (first, second):
        assert message.startswith("the ranks disagree about threshold: 1.0 on rank 0; 0.0 on rank 1")
    for message in (third, fourth):
        assert message.startswith("rank 0 rejected this call: ValueError: the ranks disagree about threshold")


class Ranked(type(numpy.BACKEND), Distributed):  # type: ignore[misc]
    """NumPy with gradients of several ranks, which are those of a list of parameters."""

    def __init__(self, fails: bool = False) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self._fails = fails

    parameters = SimpleNamespace(gradient_of=lambda array: array if array.size else None)

    def has_ranks(self) -> bool:
        return True

    def shards(self, gradients: Any, parameters: Any, spec: Any, *, differentiable: bool) -> Any:
        if self._fails:
            raise ConnectionError("the process group is gone")
        counts = len(gradients), len(parameters), spec.ownership

        def send_rejection(measures: str, error: Exception) -> None:
            self.sent.append((measures, *counts, differentiable, str(error)))

        return SimpleNamespace(send_rejection=send_rejection)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("function", "arguments", "message", "sent"),
    [
        (functions.clip_grad_norm_, (-1.0,), "max_norm is -1.0", (1, 2, False)),
        (functions.clip_grad_norm_, (1.0, 0.0), "norm_type", (1, 2, False)),
        (functions.get_total_norm, (math.nan,), "norm_type", (2, 2, True)),
        (functions.clip_by_global_norm, (math.nan,), "clip_norm is nan", (2, 2, True)),
    ],
)  # fmt: skip
def test_the_error_of_an_argument_reaches_the_ranks_that_wait(
    function: Any, arguments: tuple[Any, ...], message: str, sent: tuple[Any, ...], fails: bool
) -> None:
    backend, arrays = Ranked(fails), [np.ones(2), np.zeros(0), "no tensor"]
    with pytest.raises(ValueError, match=message) as caught:
        entry.run_eagerly(function, backend, arrays, *arguments, ownership="distinct")
    assert backend.sent == ([] if fails else [("total", *sent[:2], "distinct", sent[2], str(caught.value))])
    assert AWAITED.send_rejection is None


def test_a_norm_that_the_caller_passes_compares_no_replicas() -> None:
    with pytest.raises(ValueError, match=r"check_replicas compares copies .* with use_norm the call measures none"):
        functions.clip_by_global_norm(Ranked(), [np.ones(2)], 1.0, use_norm=2.0, check_replicas=True)


def test_a_norm_that_the_caller_passes_needs_no_other_rank() -> None:
    backend = Ranked()
    with pytest.raises(ValueError, match="clip_norm is -1"):
        entry.run_eagerly(functions.clip_by_global_norm, backend, [np.ones(2)], -1.0, use_norm=2.0)
    assert backend.sent == []
