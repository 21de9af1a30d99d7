"""The ranks of a process group as threads, for tests of norms over ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unified_clip._backends import numpy
from unified_clip._compute.host import HOST, HostPath
from unified_clip._core.distributed import INFERRED
from unified_clip._core.types import Leaf
from unified_clip._distributed.agreement import Compared, Replica, presence
from unified_clip._distributed.groups import NormGroup
from unified_clip._distributed.norm import DistributedGradients
from unified_clip._distributed.owners import Copies

TIMEOUT = 10


class Meeting:
    def __init__(self, size: int) -> None:
        self.numbers: list[Sequence[int]] = [()] * size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.calls = 0


class Member:
    """A rank in a thread, as a process group. Sums have to fit int64, and all ranks send equally many numbers."""

    name = ""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size, self.key = meeting, rank, len(meeting.numbers), self
        self.ranks: Sequence[int] = range(self.size)

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        return self.all_reduce(numbers, sum)

    def all_reduce_max(self, numbers: Sequence[int]) -> list[int]:
        return self.all_reduce(numbers, max)

    def all_reduce(self, numbers: Sequence[int], combine: Callable[[Any], int]) -> list[int]:
        self._meeting.numbers[self.rank] = numbers
        self._meeting.calls += self.rank == 0
        self._meeting.barrier.wait()
        results = [combine(column) for column in zip(*self._meeting.numbers, strict=True)]
        assert all(-(2**63) <= number < 2**63 for number in results)
        self._meeting.barrier.wait()
        return results


class Sums(HostPath):
    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(numpy.BACKEND, arrays)


def leaf(position: int) -> Leaf:
    return Leaf(None, position)


class RankShards(DistributedGradients):
    """Gradients without placements. Each rank owns all of its own."""

    parameters: int | None = None  # type: ignore[assignment]
    numel: int | None = None  # type: ignore[assignment]
    checks_replicas = _counts_by_placement = False

    def __init__(self, group: Any, arrays: Sequence[np.ndarray], **options: Any) -> None:
        self._group, self.values = group, [np.asarray(array) for array in arrays]
        self.parameters, self.numel = options.get("parameters"), options.get("numel")
        self._names, self._copies = options.get("names"), options.get("copies", ())
        self._without = options.get("without", ())
        self._all = options.get("leaves") or [leaf(index) for index in range(len(self.values))]
        self.stored_rows = {index: lambda rows=rows: rows for index, rows in enumerate(options.get("rows", ()))}
        self._replicas, self.checks_replicas = options.get("replicas", []), "replicas" in options
        self._identities = options.get("identities")
        self._assumed_copies, self._spec = [], options.get("spec", INFERRED)

    def presence(self, indices: Sequence[int], measure: Any) -> list[Compared]:
        place = lambda index: self._all[index].place if self.values[index].any() else None  # noqa: E731
        return [presence(Copies.on_all(self._group), self._identities, place)] if self._identities else []

    def labels(self) -> list[tuple[Leaf, str]] | None:
        return None if self._names is None else [(leaf(index), name) for index, name in enumerate(self._names)]

    def missing(self) -> list[Leaf]:
        return [leaf(index) for index in self._without]

    def copies(self) -> list[tuple[Leaf, Any]]:
        return [(self._all[index], self.values[index]) for index in self._copies]

    def replicas(self, indices: Sequence[int]) -> list[Replica]:
        if isinstance(self._replicas, Exception):
            raise self._replicas
        return [
            Replica(self._all[index], self.values[index], Copies(key, number, is_first))
            for index, (key, number, is_first) in enumerate(self._replicas)
        ]

    def group(self) -> Any:
        return self._group

    def owned(self, indices: Sequence[int]) -> list[Any]:
        return [self.values[index] for index in indices]

    def owns(self, index: int) -> bool:
        return True

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        return [
            NormGroup(index if array.size else None, [self._group], leaf(index), self._names and self._names[index])
            for index, array in enumerate(self.values)
        ]

    def owned_alone(self, index: int) -> Any:
        return self.values[index]

    def elements(self, index: int) -> int:
        return int(self.values[index].size)


RankShards.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # what would read placements


def run_ranks(size: int, run: Callable[[Member], Any]) -> tuple[list[Any], int]:
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: run(Member(meeting, rank)), range(size))), meeting.calls


def norm_of(
    group: Any, arrays: Sequence[np.ndarray], p: float, compared: Any = None, **options: Any
) -> tuple[float, str]:
    path: Any = SimpleNamespace(xp=HOST, norm_dtype="")
    shards: Any = RankShards(group, arrays, **options)
    n = shards.norm(path, range(len(arrays)), p, compared or {}, Sums, function="clip", is_first=True)
    return n, path.norm_dtype


ONES = np.ones(3, np.float32)


def common_error(size: int, run: Callable[[Member], Any]) -> str:
    def message(group: Member) -> str:
        with pytest.raises(ValueError) as caught:
            run(group)
        return str(caught.value)

    (error,) = set(run_ranks(size, message)[0])
    return error


def norm_of_ones(group: Any, **options: Any) -> tuple[float, str]:
    return norm_of(group, [np.ones(2, np.float32)], options.pop("p", 2.0), **options)


class BrokenGroup:
    def __init__(self, group: Member) -> None:
        self.rank, self.size, self.ranks, self.key = group.rank, group.size, group.ranks, group

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        raise ConnectionError("the network is down")

    all_reduce_max = all_reduce_sum


# -- rejections
