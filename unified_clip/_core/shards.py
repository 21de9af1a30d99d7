"""Gradients that several processes hold together: what these tell each other, and one norm from it.

All that is sent are integers, which add up to the same in any order. So the norm is that of the whole gradients, bit
for bit, whatever process holds what.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn, Protocol

from .exact import UNIT, WORDS, Accumulator
from .ops import Path, Scalar, Tensor

Number = float | int

AGREED: Mapping[str, type] = {
    "threshold": float, "error_if_nonfinite": bool, "norm_type": float, "the number of parameters": int,
    "the number of gradient elements": int, "norms= of unified_clip.record": bool,
    "which name or configuration clips (a checksum)": int,
}  # fmt: skip
"""What the processes compare, always all of it: calls with lists of different lengths would end the processes."""

ADDS, COMPARES, GREATEST = 1, 2**32, 0
"""What each process sends to tell what it is doing. Added up, or the greatest of them, or some of this and some of that
where processes do different things: as many times the own number as there are processes, only where all do the same."""

PIECES = 4
"""A number is compared in pieces of 16 bits: over up to 2**30 processes, sums of their squares fit int64."""

ABSENT = 2**16
"""In the place of a piece of what a process does not pass."""

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


class Group(Protocol):
    """The processes that hold a model together. All of them call this at the same time, with lists of one length."""

    rank: int
    size: int

    def total(self, numbers: Sequence[int]) -> list[int]:
        """Each int64 added up over the processes."""

    def greatest(self, numbers: Sequence[int]) -> list[int]:
        """Of each int64 the greatest of any process."""


class Row(NamedTuple):
    """A parameter whose gradient is clipped by its own norm."""

    at: int | None
    """The index of its gradient; None where there is none here."""

    groups: Sequence[Group]
    """Over which its parts are spread, one after the other."""


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

    def group(self) -> Group:
        """Who adds up. ValueError where that cannot be told."""

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        """What this process counts, of what it holds of some of them: each element is counted by one process."""

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
        self.ranks = [0]

    def total(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    greatest = total


class Measuring(Protocol):
    """What a path can do for `SharedPath`: sums on the host, before the root."""

    norm_dtype: str

    def power_sum(self, p: int, exactly: bool) -> Accumulator: ...

    def greatest(self, dtype: str) -> float:
        """The greatest magnitude, rounded to a dtype; NaN if there is any."""

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        """The sum of (|g| / top)**p, as that of two numbers."""

    def general_root(self, total: tuple[float, float], p: float, top: float, dtype: str) -> float:
        """The norm, from such a sum over all gradients."""


Sum = tuple[Accumulator, str]
"""A sum of |g|**p, and the dtype that its root is to have."""


class Exchange:
    """What the processes of a group find together."""

    def __init__(self, group: Group, agreed: Mapping[str, Number | None], numel: tuple[int, int] | None = None) -> None:
        """`agreed`: what has to be the same everywhere, of `AGREED`. `numel`: how many elements are counted here, and
        how many there are in all."""
        self.group = group
        self._counted, elements = (0, None) if numel is None else numel
        self._agreed = {**dict.fromkeys(AGREED), **agreed, "the number of gradient elements": elements}

    def power_sum(self, own: Accumulator, dtype: str) -> Sum:
        """The sum over all processes, and the norm's dtype: float64 where any process has it."""
        return _from_words(self._total(_to_words((own, dtype)), ADDS))

    def power_sums(self, own: Sequence[Sum]) -> list[Sum]:
        """The same for each of several sums, of which every process has one; all have to have compared how many."""
        found = self._added([word for each in own for word in _to_words(each)])
        each = WORDS + 1
        return [_from_words(found[start : start + each]) for start in range(0, len(found), each)]

    def compare(self) -> None:
        """ValueError where anything differs that has to be the same everywhere."""
        self._total(_to_words((Accumulator(), "float32")), COMPARES)

    def greatest(self, own: Measuring, p: float) -> tuple[float, str]:
        """The greatest of all processes' magnitudes, NaN if there is any: as float64 their bits are in that order.

        For p = inf it is rounded to the norm's dtype, which no process knows before; else to float64.
        """
        pieces = self._pieces()
        wide = own.greatest("float64")
        narrow = own.greatest("float32") if p == math.inf else wide
        words = [_bits(math.nan if math.isnan(top) else top) for top in (wide, narrow)]
        words.insert(1, int(own.norm_dtype == "float64"))
        words += [0] * (WORDS + 2 - len(words))  # as many as where others add up, for a norm of another order
        found = self._reduced(self.group.greatest, [*words, GREATEST, *pieces, *(-piece for piece in pieces)])
        self._check_kind(found[WORDS + 2], GREATEST)
        most, least = _halves(found[WORDS + 3 :])
        self._compare([high == -low for high, low in zip(most, least, strict=True)])
        if self._agreed["the number of gradient elements"] is not None:
            self._check_count(self._added([self._counted])[0])
        return (_from_bits(found[0]), "float64") if found[1] else (_from_bits(found[2]), "float32")

    def relative_sum(self, own: tuple[float, float]) -> tuple[float, float]:
        """The sum over all processes, as that of two numbers."""
        total = Accumulator(sum(map(_in_units, own)))
        everywhere = Fraction(Accumulator.from_words(self._added(total.to_words())).total, 2**UNIT)
        high = float(everywhere)
        return high, float(everywhere - Fraction(high))

    def by_rank(self, number: int) -> list[int]:
        """An int64, not negative, of every process."""
        slots = [0] * self.group.size
        slots[self.group.rank] = number
        return self._added(slots)

    def _added(self, numbers: Sequence[int]) -> list[int]:
        return self._reduced(self.group.total, numbers)

    def _reduced(self, how: Callable[[Sequence[int]], list[int]], numbers: Sequence[int]) -> list[int]:
        try:
            return how(numbers)
        except Exception as error:
            error.add_note(
                f"This was rank {self.group.rank} of the {self.group.size} processes of a group that clip gradients "
                "together: it waited for the others. Each of them has to make the same call, without a gradient too, "
                "and none may have ended; no gradient was changed."
            )
            raise

    def _total(self, words: Sequence[int], kind: int) -> list[int]:
        """Words that are added up, while everything else is compared."""
        pieces = self._pieces()
        found = self._added([*words, self._counted, kind, *pieces, *(piece**2 for piece in pieces)])
        added, (counted, kinds), compared = found[: WORDS + 1], found[WORDS + 1 : WORDS + 3], found[WORDS + 3 :]
        self._check_kind(kinds, kind)
        self._compare_squares(compared)
        self._check_count(counted)
        return added

    def _pieces(self) -> list[int]:
        return [piece for value in self._agreed.values() for piece in _split(value)]

    def _check_kind(self, found: int, own: int) -> None:
        """Whether all processes do the same, which goes by the norm's order; of single norms none is told."""
        if found != own * self.group.size:
            self._refuse("norm_type")

    def _compare_squares(self, found: Sequence[int]) -> None:
        """Numbers are equal where as many times the sum of their squares is the square of their sum."""
        sums, squares = _halves(found)
        self._compare([self.group.size * square == total * total for total, square in zip(sums, squares, strict=True)])

    def _compare(self, are_equal: Sequence[bool]) -> None:
        """`are_equal`: of each piece, which every process finds alike, so that all raise, or none."""
        for number, name in enumerate(self._agreed):
            if not all(are_equal[number * PIECES : (number + 1) * PIECES]):
                self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        pieces = [self.by_rank(piece) for piece in _split(self._agreed[name])]
        values = [_joined(each, AGREED[name]) for each in zip(*pieces, strict=True)]
        raise ValueError(
            f"the processes disagree about {name}: {_by_value(values)}; all of them have to pass the same, and "
            "every parameter, with a gradient or without"
        )

    def _check_count(self, counted: int) -> None:
        expected = self._agreed["the number of gradient elements"]
        if expected is not None and counted != expected:
            raise ValueError(
                f"{counted} gradient elements were counted, and {expected} expected: some are counted more than once "
                "or not at all; state with `ownership` which process counts which parameter"
            )


def _to_words(own: Sum) -> list[int]:
    return [*own[0].to_words(), own[1] == "float64"]


def _from_words(words: Sequence[int]) -> Sum:
    return Accumulator.from_words(words[:WORDS]), "float64" if words[WORDS] else "float32"


def _halves(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]


def _in_units(value: float) -> int:
    """Of 2**-UNIT."""
    return int(Fraction(value) * 2**UNIT)


def _bits(value: float) -> int:
    """Of float64, as int64."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _from_bits(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)


def _split(value: Number | None) -> list[int]:
    if value is None:
        return [ABSENT] * PIECES
    bits = _bits(value) if isinstance(value, float) else int(value)
    return [bits >> (16 * place) & 0xFFFF for place in range(PIECES)]


def _joined(pieces: Sequence[int], kind: type) -> Number | None:
    if ABSENT in pieces:
        return None
    bits = sum(piece << (16 * place) for place, piece in enumerate(pieces))
    bits -= bits >> 63 << 64
    number: Number = bits if kind is int else kind(_from_bits(bits))
    return number


def _by_value(values: Sequence[Number | None]) -> str:
    """Who has which, the most frequent first."""
    common = Counter(values).most_common(4)
    ranks = {value: [str(rank) for rank, each in enumerate(values) if each == value] for value, _ in common}
    told = [
        f"{value} on rank {', '.join(found[:4])}{' and others' * (len(found) > 4)}" for value, found in ranks.items()
    ]
    return "; ".join(told)


class SharedPath:
    """A path over what this process holds of some gradients, whose norm is that of the whole ones."""

    def __init__(
        self,
        local: Path,
        shards: Shards,
        indices: Sequence[int],
        agreed: Mapping[str, Number],
        measuring: Callable[[Sequence[Tensor]], Measuring],
        numel: int | None = None,
    ) -> None:
        """`numel`: how many elements have to be counted; None where nobody asks."""
        self._local: Any = local
        self._shards, self._indices, self._agreed, self._measuring = shards, indices, agreed, measuring
        self._numel = numel
        self._exchange: Exchange | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def norm(self, p: float) -> Scalar:
        counted = self._shards.counted(self._indices)
        numel = None if self._numel is None else (sum(math.prod(tensor.shape) for tensor in counted), self._numel)
        self._exchange = Exchange(self._shards.group(), self._to_agree(p), numel)
        n, self._local.norm_dtype = _norm(self._measuring(counted), self._exchange, p)
        return self._local.constant(n)

    def slice_norms(self, axes: Sequence[int]) -> Scalar:
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

    def _to_agree(self, p: float) -> dict[str, Number | None]:
        return {**self._agreed, "norm_type": float(p), "the number of parameters": self._shards.parameters}


def each_norm(
    shards: Shards,
    p: int,
    agreed: Mapping[str, Number],
    measuring: Callable[[Sequence[Tensor]], Measuring],
    known_only: bool = False,
) -> dict[int, float]:
    """The norm of each gradient by its index, over all processes that hold parts of it. `known_only`: see `rows`."""
    rows = shards.rows(known_only)
    parts = [measuring([] if row.at is None else [shards.whole(row.at)]) for row in rows]
    norms: dict[int, float] = {}
    for exactly in (False, True):
        left = [number for number in range(len(rows)) if number not in norms]
        sums = {number: (parts[number].power_sum(p, exactly), parts[number].norm_dtype) for number in left}
        _add_up(sums, rows, None if exactly else agreed)
        norms.update((number, n) for number in left if (n := sums[number][0].root(p, sums[number][1])) is not None)
    return {row.at: norms[number] for number, row in enumerate(rows) if row.at is not None}


def _add_up(sums: dict[int, Sum], rows: Sequence[Row], agreed: Mapping[str, Number] | None) -> None:
    """Along the first group of each row, then along the second; all rows of a group at once."""
    for depth in range(max((len(row.groups) for row in rows), default=0)):
        members: dict[Group, list[int]] = {}
        for number in sums:
            if len(rows[number].groups) > depth:
                members.setdefault(rows[number].groups[depth], []).append(number)
        for group, numbers in members.items():
            exchange = Exchange(group, {**(agreed or {}), "the number of parameters": len(numbers)})
            if agreed is not None:
                exchange.compare()
            sums.update(zip(numbers, exchange.power_sums([sums[number] for number in numbers]), strict=True))


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
