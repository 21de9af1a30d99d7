"""Gradients that several processes hold together, and one norm over them; `consensus` has what ranks exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from .consensus import ELEMENTS, Call, Exchange, Group, Sum
from .containers import Leaf
from .exact import Accumulator
from .ops import Path, Scalar, Tensor

REPLICATED, DISTINCT = "replicated", "distinct"


@dataclass(frozen=True)
class Across:
    """What a caller states about the processes that hold the gradients; see `clip_grad_norm_`."""

    process_group: Any = "auto"
    ownership: Any = None
    check_numel: bool | int | None = None

    def __post_init__(self) -> None:
        if self.ownership not in (None, REPLICATED, DISTINCT) and not callable(self.ownership):
            raise ValueError(
                f"ownership is {self.ownership!r}; it has to be {REPLICATED!r}, {DISTINCT!r}, a function of a "
                "parameter, or None"
            )
        if not isinstance(self.check_numel, int | None):
            raise TypeError(f"check_numel is {self.check_numel!r}; it has to be a bool, a whole number, or None")
        if self.process_group is None and self.ownership is not None:
            raise ValueError(
                f"ownership is {self.ownership!r}, and process_group is None: this process alone, which counts all it "
                "has; pass a group, once it is made (before init_process_group, WORLD of PyTorch is None), or leave "
                "ownership out"
            )

    def __deepcopy__(self, memo: object) -> Across:
        """Itself: what is stated are processes, and parameters, of which a copy has the same."""
        return self

    @property
    def is_stated(self) -> bool:
        """Whether it says more than that all is here, or that the tensors tell."""
        is_asked = self.check_numel is not None and self.check_numel is not False
        return self.process_group not in (None, "auto") or self.ownership is not None or is_asked

    def elements(self, count: Callable[[], int]) -> int | None:
        """How many have to be counted: as many as the caller says, or as the gradients have; None where nobody asks."""
        if self.check_numel is None or self.check_numel is False:
            return None
        return count() if self.check_numel is True else int(self.check_numel)

    def comparable(self, parameters: Sequence[Any]) -> int | None:
        """How many parameters there are; None where every process may have its own."""
        return None if self.ownership == DISTINCT or callable(self.ownership) else len(parameters)


HERE_OR_TOLD = Across()
"""All gradients are here, or tell by themselves who holds them."""


class Row(NamedTuple):
    """A parameter whose gradient is clipped by its own norm."""

    at: int | None
    """The index of its gradient; None where there is none here."""

    groups: Sequence[Group]
    """Over which its parts are spread, one after the other."""

    leaf: Leaf
    label: str | None = None
    """Name and shape, equal on the ranks of its groups. None where they are not known here."""


class Shards(Protocol):
    """The gradients of a call, some of which are only held in part here."""

    values: list[Tensor]
    """What this process holds of each, in the gradients' own memory; sparse ones are merged after they are found."""

    @property
    def numel(self) -> int | None:
        """How many elements have to be counted, of all gradients on all processes; None where nobody asks."""

    @property
    def parameters(self) -> int | None:
        """How many there are, with a gradient or without; None where every process has its own."""

    def labels(self) -> list[tuple[Leaf, str]] | None:
        """Name and shape of each parameter. None where ranks have different ones, or a shape is not known here."""

    def missing(self) -> list[Leaf]:
        """The parameters without a gradient."""

    def group(self) -> Group:
        """Who adds up. ValueError where that cannot be told."""

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        """What this process counts, of what it holds of some of them: each element is counted by one process."""

    def copies(self) -> list[tuple[Leaf, Tensor]]:
        """Of the gradients last `counted`, those taken for copies though nothing declares it."""

    def awaits_sums(self) -> bool:
        """Whether collectives come before the norm's own, so that a rank cannot reject the call there."""

    def rows(self, known_only: bool = False) -> list[Row]:
        """All parameters, in the order that all processes have. ValueError where the own norm of one cannot be known;
        `known_only`: such are left out."""

    def whole(self, index: int) -> Tensor:
        """What this process counts of a gradient for its row; where every process holds a term: of their sum."""

    def check_by_value(self) -> None:
        """ValueError where elements cannot be clipped one by one."""

    def told(self) -> dict[str, Any]:
        """For a recording: `ranks`, how many processes there are; `rank`, which one this is; `layout`, how many
        gradients are held in which way."""

    def restored(self, index: int, value: Tensor) -> Any:
        """A value as part of a gradient like the one that it was computed from."""


class Alone:
    """A group of one process, which holds everything."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.ranks, self.key = [0], self

    def total(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    greatest = total


class Measuring(Protocol):
    """What a path can do for `SharedPath`: sums on the host, before the root."""

    norm_dtype: str

    def power_sum(self, p: int, exactly: bool) -> Accumulator: ...

    def greatest(self, dtype: str) -> float:
        """The greatest magnitude, rounded to a dtype; NaN if there is any."""

    def checksum(self) -> int:
        """Of the values' bits in their order, 64 bits."""

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        """The sum of (|g| / top)**p, as that of two numbers."""

    def general_root(self, total: tuple[float, float], p: float, top: float, dtype: str) -> float:
        """The norm, from such a sum over all gradients."""


class SharedPath:
    """A path over what this process holds of some gradients, whose norm is that of the whole ones."""

    def __init__(
        self,
        local: Path,
        shards: Shards,
        indices: Sequence[int],
        agreed: Mapping[str, Any],
        measuring: Callable[[Sequence[Tensor]], Measuring],
        *,
        function: str = "",
        is_first: bool = False,
    ) -> None:
        """`is_first`: of the paths of a call, and over all gradients."""
        self._local: Any = local
        self._shards, self._indices, self._agreed, self._measuring = shards, indices, agreed, measuring
        self._function, self._is_first = function, is_first
        self._exchange: Exchange | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def norm(self, p: float) -> Scalar:
        counted = self._shards.counted(self._indices)
        self._exchange = Exchange(self._shards.group(), self._call(p, counted))
        n, self._local.norm_dtype = _norm(self._measuring(counted), self._exchange, p)
        return self._local.constant(n)

    def _call(self, p: float, counted: Sequence[Tensor]) -> Call:
        arguments = {**self._agreed, "norm_type": float(p), "the number of parameters": self._shards.parameters}
        if not self._is_first:
            return Call(arguments, remarks=lambda: {"function": self._function})
        numel, copies = self._shards.numel, self._shards.copies()
        return Call(
            {**arguments, ELEMENTS: numel},
            layout=self._shards.labels(),
            copies=[(leaf, partial(self._checksum, [tensor])) for leaf, tensor in copies],
            checksum=self._checksum([tensor for _, tensor in copies]) if copies else 0,
            counted=0 if numel is None else sum(math.prod(tensor.shape) for tensor in counted),
            remarks=self._remarks,
        )

    def _checksum(self, tensors: Sequence[Tensor]) -> int:
        return self._measuring(tensors).checksum()

    def _remarks(self) -> dict[str, str]:
        remarks, missing = {"function": self._function}, self._shards.missing()
        if missing and self._shards.numel is not None:
            few = ", ".join(leaf.place for leaf in missing[:3]) + ", ..." * (len(missing) > 3)
            remarks["missing"] = f"no gradient for {len(missing)} of the parameters ({few})"
        return remarks

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        raise ValueError(
            "axes cannot be used with a gradient that several processes hold, since slices may be cut; clip it whole, "
            "or gather it first"
        )

    def nonfinite_elsewhere(self) -> list[tuple[str, int, int]]:
        if self._exchange is None:
            return []
        here = self._exchange.group.rank
        counts = zip(*self._local.nonfinite_counts(), strict=True)
        nans, infs = (self._exchange.by_rank(sum(each)) for each in (*counts, (), ())[:2])
        return [
            (f"rank {rank}", *each)
            for rank, each in enumerate(zip(nans, infs, strict=True))
            if rank != here and any(each)
        ]


def each_norm(
    shards: Shards,
    p: int,
    agreed: Mapping[str, Any],
    measuring: Callable[[Sequence[Tensor]], Measuring],
    known_only: bool = False,
    function: str = "",
) -> dict[int, float]:
    """The norm of each gradient by its index, over all processes that hold parts of it. `known_only`: see `rows`."""
    rows = shards.rows(known_only)
    parts = [measuring([] if row.at is None else [shards.whole(row.at)]) for row in rows]
    norms: dict[int, float] = {}
    for exactly in (False, True):
        left = [number for number in range(len(rows)) if number not in norms]
        sums = {number: (parts[number].power_sum(p, exactly), parts[number].norm_dtype) for number in left}
        _add_up(sums, rows, None if exactly else {**agreed, "norm_type": f"{p} of each gradient"}, function)
        norms.update((number, n) for number in left if (n := sums[number][0].root(p, sums[number][1])) is not None)
    return {row.at: norms[number] for number, row in enumerate(rows) if row.at is not None}


def _add_up(sums: dict[int, Sum], rows: Sequence[Row], agreed: Mapping[str, Any] | None, function: str) -> None:
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
            exchange = Exchange(group, _call_of([rows[number] for number in numbers], agreed or {}, function))
            if difference is not None:
                exchange.reject(difference)
                continue
            try:
                if agreed is not None:
                    exchange.compare()
            except ValueError as error:
                difference = error
            else:
                sums.update(zip(numbers, exchange.power_sums([sums[number] for number in numbers]), strict=True))
    if difference is not None:
        raise difference


def _call_of(rows: Sequence[Row], agreed: Mapping[str, Any], function: str) -> Call:
    """What the ranks of a group compare before they add up the sums of some rows."""
    labels = [(row.leaf, row.label) for row in rows if row.label is not None]
    return Call(
        {**agreed, "the number of parameters": len(rows)},
        layout=labels if len(labels) == len(rows) else None,
        remarks=lambda: {"function": function},
    )


def _norm(own: Measuring, exchange: Exchange, p: float) -> tuple[float, str]:
    """The norm over all processes, and its dtype."""
    if p in (1, 2):
        n, dtype = _power_norm(own, exchange, int(p), exactly=False)
        if n is None:
            n, dtype = _power_norm(own, exchange, int(p), exactly=True)
        assert n is not None, "an exact sum has no slack"
        return n, dtype
    top, dtype = exchange.greatest(own, p)
    if p == math.inf or top == 0 or not math.isfinite(top):
        return top, dtype
    return own.general_root(exchange.relative_sum(own.relative_sum(p, top)), p, top, dtype), dtype


def _power_norm(own: Measuring, exchange: Exchange, p: int, *, exactly: bool) -> tuple[float | None, str]:
    total, dtype = exchange.power_sum(own.power_sum(p, exactly), own.norm_dtype)
    return total.root(p, dtype), dtype
