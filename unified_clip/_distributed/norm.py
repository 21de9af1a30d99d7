"""Norms over gradients that several ranks hold; `consensus` has the consensus_of_group between ranks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .._core.distributed import DistributedSpec, Measure, PartialSums
from .._core.path import Path
from .._core.types import Leaf, Scalar, Tensor
from . import consensus
from .consensus import Call, Consensus, Group, Sum
from .differences import ELEMENTS


class NormGroup(NamedTuple):
    """A parameter whose gradient is clipped by its own norm."""

    at: int | None
    """The index of its gradient; None where there is none here."""

    groups: Sequence[Group]
    """Over which its parts are spread, one after the other."""

    leaf: Leaf
    label: str | None = None
    """Name and shape, equal on the ranks of its groups. None where they are not known here."""


class SingleProcess:
    """A group of one process, which holds everything."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.ranks, self.key = [0], self

    def total(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    greatest = total


class LocalShards(ABC):
    """`Shards` of one call. A subclass knows the placements of its framework's tensors."""

    values: list[Tensor]

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        """`parameters`: with those that have no gradient."""
        self._leaves, self._parameters, self._spec = list(gradients), list(parameters), spec
        self._measured: list[tuple[Path, Consensus]] = []

    # -- what the placements imply

    @abstractmethod
    def elements(self, index: int) -> int:
        """Return the number of elements of a gradient, over all its shards."""

    @abstractmethod
    def group(self) -> Group:
        """Return the ranks that add up. Raise ValueError if they cannot be inferred."""

    @abstractmethod
    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the local tensors of gradients that this rank counts: one rank counts each element."""

    @abstractmethod
    def copies(self) -> list[tuple[Leaf, Tensor]]:
        """Return the gradients, of those last `counted`, that are taken for copies without a declaration."""

    @abstractmethod
    def rows(self, known_only: bool = False) -> list[NormGroup]:
        """Return all parameters in the order that all ranks have.

        Raise ValueError if the own norm of one cannot be computed, or leave it out with `known_only`.
        """

    @abstractmethod
    def whole(self, index: int) -> Tensor:
        """Return what this rank counts of one gradient for its own norm; of a `Partial` one, of the sum."""

    @abstractmethod
    def layouts(self) -> Iterable[str]:
        """Return the placements of each gradient in words: `Shard(dim=0) over dp=4`."""

    @abstractmethod
    def world(self) -> Group:
        """Return the group of all ranks."""

    def awaits_sums(self) -> bool:
        """Return whether collectives precede that of the norm, so that a rank cannot reject the call there."""
        return False

    # -- what follows

    @property
    def numel(self) -> int | None:
        """The number of elements that must be counted on all ranks together; None without a check."""
        return self._spec.expected_numel(lambda: sum(map(self.elements, range(len(self._leaves)))))

    @property
    def parameters(self) -> int | None:
        """The number of parameters, with a gradient or without; None if each rank may list other ones."""
        return self._spec.comparable(self._parameters)

    def labels(self) -> list[tuple[Leaf, str]] | None:
        """Return name and shape of each parameter; None if ranks list other ones, or a shape is unknown here."""
        known = [(leaf, text) for leaf in self._parameters if (text := label(leaf)) is not None]
        return known if self.parameters is not None and len(known) == len(self._parameters) else None

    def missing(self) -> list[Leaf]:
        """Return the parameters without a gradient."""
        positions = {leaf.position for leaf in self._leaves}
        return [leaf for leaf in self._parameters if leaf.position not in positions]

    def metadata(self) -> dict[str, Any]:
        world = self.world()
        return {"ranks": world.size, "rank": world.rank, "layout": dict(Counter(self.layouts()))}

    def norm(
        self,
        path: Path,
        indices: Sequence[int],
        p: float,
        must_match: Mapping[str, Any],
        measure: Measure,
        *,
        function: str,
        is_first: bool,
    ) -> Scalar:
        counted = self.counted(indices)
        arguments = {**must_match, "norm_type": float(p), "the number of parameters": self.parameters}
        if is_first:
            call = self._first_call(arguments, counted, measure, function)
        else:
            call = Call(arguments, remarks=lambda: {"function": function})
        consensus_of_group = Consensus(self.group(), call)
        self._measured.append((path, consensus_of_group))
        n, path.norm_dtype = _norm(measure(counted), consensus_of_group, p)
        return path.xp.asarray(n)

    def _first_call(
        self, arguments: dict[str, Any], counted: Sequence[Tensor], measure: Measure, function: str
    ) -> Call:
        """Return a call that also compares the parameters of the ranks, and counts their elements."""
        numel, copies = self.numel, self.copies()

        def checksum(tensors: Sequence[Tensor]) -> int:
            return measure(tensors).checksum()

        return Call(
            {**arguments, ELEMENTS: numel},
            layout=self.labels(),
            copies=[(leaf, partial(checksum, [tensor])) for leaf, tensor in copies],
            checksum=checksum([tensor for _, tensor in copies]) if copies else 0,
            counted=0 if numel is None else sum(math.prod(tensor.shape) for tensor in counted),
            remarks=lambda: self._remarks(function),
        )

    def _remarks(self, function: str) -> dict[str, str]:
        remarks, missing = {"function": function}, self.missing()
        if missing and self.numel is not None:
            few = ", ".join(leaf.place for leaf in missing[:3]) + ", ..." * (len(missing) > 3)
            remarks["missing"] = f"no gradient for {len(missing)} of the parameters ({few})"
        return remarks

    def nonfinite_elsewhere(self, path: Path) -> list[tuple[str, int, int]]:
        agreed = next((each for measured, each in self._measured if measured is path), None)
        if agreed is None:
            return []
        counts = zip(*path.nonfinite_counts(), strict=True)
        nans, infs = (agreed.all_gather(sum(each)) for each in (*counts, (), ())[:2])
        ranks = enumerate(zip(nans, infs, strict=True))
        return [(f"rank {rank}", *each) for rank, each in ranks if rank != agreed.group.rank and any(each)]

    def tensor_norms(
        self, p: int, must_match: Mapping[str, Any], measure: Measure, *, known_only: bool = False, function: str = ""
    ) -> dict[int, float]:
        rows = self.rows(known_only)
        parts = [measure([] if row.at is None else [self.whole(row.at)]) for row in rows]
        norms: dict[int, float] = {}
        for exactly in (False, True):
            left = [number for number in range(len(rows)) if number not in norms]
            sums = {number: (parts[number].power_sum(p, exactly), parts[number].norm_dtype) for number in left}
            compared = None if exactly else {**must_match, "norm_type": f"{p} of each gradient"}
            _add_up(sums, rows, compared, function)
            norms.update((number, n) for number in left if (n := sums[number][0].root(p, sums[number][1])) is not None)
        return {row.at: norms[number] for number, row in enumerate(rows) if row.at is not None}

    def send_rejection(self, error: Exception) -> None:
        if not self.awaits_sums():  # whose collectives a rank cannot leave out
            consensus.send_rejection(error, self.group)


def label(leaf: Leaf) -> str | None:
    """Return name and shape of a parameter, to be compared across ranks; None if its shape is unknown."""
    tensor = leaf.parameter if hasattr(leaf.parameter, "shape") else leaf.tensor
    if tensor is None:
        return None
    name = leaf.name if leaf.name != getattr(leaf.parameter, "name", None) else None  # a framework numbers its own
    return f"{list(tensor.shape)}" if name is None else f"{name!r} {list(tensor.shape)}"


def _add_up(
    sums: dict[int, Sum], rows: Sequence[NormGroup], must_match: Mapping[str, Any] | None, function: str
) -> None:
    """Along the first group of each row, then along the second; all rows of a group at once.

    After an error this rank rejects the call in the groups that are left, so that no rank waits.
    """
    difference: ValueError | None = None
    for depth in range(max((len(row.groups) for row in rows), default=0)):
        members: dict[Group, list[int]] = {}
        for number in sums:
            if len(rows[number].groups) > depth:
                members.setdefault(rows[number].groups[depth], []).append(number)
        for group, numbers in members.items():
            consensus_of_group = Consensus(
                group, _call_of([rows[number] for number in numbers], must_match or {}, function)
            )
            if difference is not None:
                consensus_of_group.reject(difference)
                continue
            try:
                if must_match is not None:
                    consensus_of_group.compare()
            except ValueError as error:
                difference = error
            else:
                sums.update(
                    zip(numbers, consensus_of_group.power_sums([sums[number] for number in numbers]), strict=True)
                )
    if difference is not None:
        raise difference


def _call_of(rows: Sequence[NormGroup], must_match: Mapping[str, Any], function: str) -> Call:
    """What the ranks of a group compare before they add up the sums of some rows."""
    labels = [(row.leaf, row.label) for row in rows if row.label is not None]
    return Call(
        {**must_match, "the number of parameters": len(rows)},
        layout=labels if len(labels) == len(rows) else None,
        remarks=lambda: {"function": function},
    )


def _norm(own: PartialSums, consensus_of_group: Consensus, p: float) -> tuple[float, str]:
    """Return the norm over all processes, and its dtype."""
    if p in (1, 2):
        n, dtype = _power_norm(own, consensus_of_group, int(p), exactly=False)
        if n is None:
            n, dtype = _power_norm(own, consensus_of_group, int(p), exactly=True)
        assert n is not None, "an exact sum has no slack"
        return n, dtype
    top, dtype = consensus_of_group.greatest(own, p)
    if p == math.inf or top == 0 or not math.isfinite(top):
        return top, dtype
    return own.general_root(consensus_of_group.relative_sum(own.relative_sum(p, top)), p, top, dtype), dtype


def _power_norm(own: PartialSums, consensus_of_group: Consensus, p: int, *, exactly: bool) -> tuple[float | None, str]:
    total, dtype = consensus_of_group.power_sum(own.power_sum(p, exactly), own.norm_dtype)
    return total.root(p, dtype), dtype
