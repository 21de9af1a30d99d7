"""Compare a call across ranks, in the same all-reduce that adds up its norm.

Ranks send only integers. Their sum does not depend on the order, so the norm has the same bits for every layout.
Values that must match are sent as digests. If digests differ, the ranks exchange readable texts, and all of them raise.
"""

from __future__ import annotations

import json
import logging
import math
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

from .._core.distributed import AWAITED, PartialSums
from .._core.exact import UNIT, WORDS, Accumulator
from .._core.types import Leaf
from . import differences, replicas, waiting
from .differences import CALL, ELEMENTS, MAX_TEXTS
from .digests import PIECES, digest, split
from .replicas import ReplicaSet, contents

ADDS, COMPARES, MAXIMUM = 1, 2**32, 0
"""The tags of the kinds of collectives. Each rank sends the tag of its collective. The reduced tag, a sum or a maximum,
equals `tag * size` only if every rank has sent the same one.
"""

CHECKED = 3 + 2 * PIECES
"""How many integers a rank sends for the number of elements and the comparison of replicas and `Partial` gradients."""

COMPARED = 3 * (1 + 2 * PIECES)
"""The number of integers that a rank sends for its three digests: of the arguments, the layout and the copies."""

Sum = tuple[Accumulator, str]
"""(a sum of |g|**p, the dtype of the norm that is its root)."""


def undeclared(message: str) -> ValueError:
    """Return the error for unknown ownership. Only this rank raises it, because other ranks may not take part in the
    call.
    """
    error = ValueError(message)
    error.raises_alone = True  # type: ignore[attr-defined]
    return error


class Group(Protocol):
    """A process group. All its ranks must call a collective together, with lists of the same length."""

    rank: int
    size: int

    @property
    def ranks(self) -> Sequence[int]:
        """The global rank of each process, for messages."""

    @property
    def key(self) -> Any:
        """An object that identifies the process group, and lives as long."""

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        """Return the sum of each int64 over the ranks."""

    def all_reduce_max(self, numbers: Sequence[int]) -> list[int]:
        """Return the maximum of each int64 over the ranks."""


@dataclass(frozen=True)
class Call:
    """What ranks compare about one call: its arguments and parameters."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments by name, which must be equal on all ranks. None stands for an argument that is not passed."""

    layout: Sequence[tuple[Leaf, str]] | None = None
    """(parameter, its name and shape as text) for each parameter. None if they may differ between ranks, or if a shape
    is unknown.
    """

    copies: Sequence[tuple[Leaf, Callable[[], int]]] = ()
    """(gradient, function that returns its checksum) for each gradient that is assumed to be a copy on every rank."""

    checksum: int = 0
    """The checksum of all copies together."""

    counted: int = 0
    """The number of gradient elements that this rank counts."""

    replicas: Sequence[ReplicaSet] = ()
    """The gradients of which other ranks have copies, to be compared."""

    terms: Sequence[ReplicaSet] = ()
    """The `Partial` gradients whose terms are summed after this collective, in which their layouts are compared."""

    remarks: Callable[[], Mapping[str, str]] = dict
    """A function that returns further texts for error messages. They are not compared."""

    def digests(self) -> list[int | None]:
        arguments = sorted(
            (name, differences.format_value(value)) for name, value in self.arguments.items() if value is not None
        )
        layout = None if self.layout is None else [label for _, label in self.layout]
        copies = [leaf.name or leaf.position for leaf, _ in self.copies]  # ranks may list other parameters between
        return [digest(arguments), None if layout is None else digest(layout), digest((copies, self.checksum))]

    def text(self) -> dict[str, Any]:
        return {
            "arguments": {name: differences.format_value(value) for name, value in self.arguments.items()},
            "layout": None if self.layout is None else [(leaf.place, label) for leaf, label in self.layout],
            "copies": contents((leaf, checksum()) for leaf, checksum in self.copies),
            "remarks": dict(self.remarks()),
        }


_CALLS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many calls this rank has begun, by the `key` of their process group."""


class Consensus:
    """The collectives of one call over a process group."""

    def __init__(self, group: Group, call: Call) -> None:
        self.group, self.rank, self.ranks, self._call = group, group.rank, group.ranks, call
        self.has_terms = self.has_all_terms = False

    def power_sum(self, own: Accumulator, dtype: str) -> Sum:
        """Return (sum over all ranks, dtype of the norm): float64 if a rank has float64, else float32."""
        return _from_words(self._checked_sum(_to_words((own, dtype)), ADDS))

    def power_sums(self, own: Sequence[Sum]) -> list[Sum]:
        """Return each of these sums, added up over all ranks. `compare` has checked that all ranks have as many."""
        words = self._all_reduce_sum([word for power_sum in own for word in _to_words(power_sum)])
        step = WORDS + 1
        return [_from_words(words[start : start + step]) for start in range(0, len(words), step)]

    def compare(self) -> None:
        """Compare the call between ranks. ValueError, on all ranks: the calls differ."""
        self._checked_sum(_to_words((Accumulator(), "float32")), COMPARES)

    def reject(self, error: Exception) -> None:
        """Send an error of this rank in the collective for which the other ranks wait. They raise it."""
        self._call = replace(self._call, remarks=lambda: {"rejected": f"{type(error).__name__}: {error}"})
        self._begin()
        self._all_reduce_sum([0] * (WORDS + 1 + CHECKED) + [ADDS, 1] + [0] * COMPARED)
        self._texts(rejects=True)

    def max_abs(self, own: PartialSums, p: float) -> tuple[float, str]:
        """Return (largest magnitude over all ranks, dtype of the norm). The magnitude is NaN if an element is NaN.

        Ranks send the bits of float64 numbers, whose maximum as integers is also NaN in this case. For p = inf, the
        magnitude is rounded to the dtype of the norm, which follows from all ranks.
        """
        wide = own.max_abs("float64")
        narrow = own.max_abs("float32") if p == math.inf else wide
        digests = self._begin()
        words = [_bits(math.nan if math.isnan(top) else top) for top in (wide, narrow)]
        words.insert(1, int(own.norm_dtype == "float64"))
        words.append(int(bool(self._call.terms)))
        words += [0] * (WORDS + 1 + CHECKED - len(words))  # a rank with another p adds up, and sends as many
        sent = [*words, MAXIMUM, 0, *(word for value in digests for word in _bounds(value))]
        maxima = self._all_reduce(self.group.all_reduce_max, sent)
        top, dtype = (_from_bits(maxima[0]), "float64") if maxima[1] else (_from_bits(maxima[2]), "float32")
        is_nan = math.isnan(top)
        self._check(maxima[WORDS + 1 + CHECKED :], MAXIMUM, _equal_bounds, is_nan)
        if self._call.arguments.get(ELEMENTS) is not None or self._call.arguments.get(replicas.CHECK) or maxima[3]:
            self._check_sums(self._all_reduce_sum(self._checked()), is_nan)
        return top, dtype

    def relative_sum(self, own: tuple[float, float]) -> tuple[float, float]:
        """Return the sum over all ranks, as two floats to be added. `own`: this rank's sum, in the same form."""
        words = Accumulator(sum(map(_in_units, own))).to_words()
        total = Fraction(Accumulator.from_words(self._all_reduce_sum(words)).total, 2**UNIT)
        high = float(total)
        return high, float(total - Fraction(high))

    def max_over_ranks(self, number: int) -> int:
        return self._all_reduce(self.group.all_reduce_max, [number])[0]

    def all_gather(self, number: int) -> list[int]:
        """Return the numbers of all ranks, in their order. Each is an int64."""
        slots = [0] * self.group.size
        slots[self.group.rank] = number
        return self._all_reduce_sum(slots)

    def _begin(self) -> list[int | None]:
        """Begin a collective: count the call at the first one, and return the digests to compare."""
        AWAITED.send_rejection = None
        if self.group.size > 1 and CALL not in self._call.arguments:
            number = _CALLS[self.group.key] = _CALLS.get(self.group.key, 0) + 1
            self._call = replace(self._call, arguments={**self._call.arguments, CALL: number})
        return self._call.digests()

    def _all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        return self._all_reduce(self.group.all_reduce_sum, numbers)

    def _all_reduce(self, collective: Callable[[Sequence[int]], list[int]], numbers: Sequence[int]) -> list[int]:
        try:
            with waiting.logged(waiting.PATIENCE, logging.WARNING, lambda: self._waiting("waits")):
                return collective(numbers)
        except Exception as error:
            error.add_note(f"{self._waiting('waited')} No gradient was changed.")
            raise

    def _waiting(self, waits: str) -> str:
        return (
            f"Rank {self.group.rank} of {self.group.size} {waits} for the other ranks in call "
            f"{self._call.arguments.get(CALL)} of this process group. Make the same calls on every rank, also where a "
            "rank has no gradient, and look for a rank that has ended."
        )

    def _checked_sum(self, words: Sequence[int], tag: int) -> list[int]:
        """Return the sum of each word over all ranks, and compare the call in the same all-reduce."""
        digests = self._begin()
        compared = [word for value in digests for word in _summands(value)]
        reduced = self._all_reduce_sum([*words, *self._checked(), tag, 0, *compared])
        sums, checked, rest = reduced[: WORDS + 1], reduced[WORDS + 1 :][:CHECKED], reduced[WORDS + 1 + CHECKED :]
        is_nan = bool(Accumulator.from_words(sums[:WORDS]).nan)
        self._check(rest, tag, _equal_summands, is_nan)
        self._check_sums(checked, is_nan)
        return sums

    def _checked(self) -> list[int]:
        terms, size = self._call.terms, self.group.size
        flags = [bool(terms), bool(terms) and all(bucket.number == size for bucket in terms)]
        summands = (*replicas.summands(self._call.replicas), *replicas.summands(terms))
        return [self._call.counted, *map(int, flags), *summands]

    def _check(self, reduced: Sequence[int], tag: int, equal: Callable[[Sequence[int]], bool], is_nan: bool) -> None:
        """Raise ValueError if a rank has rejected the call, or makes a different one. All ranks raise, or none does."""
        tags, rejected, compared = reduced[0], reduced[1], reduced[2:]
        length = len(compared) // 3
        digests = [compared[start : start + length] for start in range(0, len(compared), length)]
        if is_nan:  # the bits of NaN may differ between copies; the norm is NaN on all ranks
            digests.pop()
        if rejected or tags != tag * self.group.size or not all(map(equal, digests)):
            raise ValueError(differences.describe(self._texts()))

    def _texts(self, rejects: bool = False) -> list[tuple[list[int], dict[str, Any]]]:
        """Exchange texts about the call. Return (global ranks that sent it, text) for MAX_TEXTS texts at most.

        The texts of ranks that reject the call come first.
        """
        own = self._call.text()
        marks = self.all_gather(digest(json.dumps(own).encode()) >> 2 << 1 | rejects)
        ranks: dict[int, list[int]] = {}
        for rank, mark in enumerate(marks):
            ranks.setdefault(mark, []).append(rank)
        order = sorted(ranks.values(), key=lambda members: (not marks[members[0]] & 1, -len(members)))[:MAX_TEXTS]
        texts = self.exchange([own if members[0] == self.group.rank else None for members in order])
        return [([self.ranks[at] for at in members], text) for members, text in zip(order, texts, strict=True)]

    def exchange(self, texts: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
        """Return texts on all ranks. One rank has each of them, and the others pass None for it."""
        own = [b"" if text is None else json.dumps(text).encode() for text in texts]
        own = [content + b" " * (-len(content) % 4) for content in own]
        lengths = self._all_reduce_sum([len(content) // 4 for content in own])
        sent: list[int] = []
        for length, content in zip(lengths, own, strict=True):
            sent += struct.unpack(f"<{length}I", content) if content else [0] * length
        words = iter(self._all_reduce_sum(sent))
        return [json.loads(struct.pack(f"<{length}I", *(next(words) for _ in range(length)))) for length in lengths]

    def _check_sums(self, sums: Sequence[int], is_nan: bool) -> None:
        self._check_count(sums[0])
        self.has_terms, self.has_all_terms = sums[1] > 0, sums[2] == self.group.size
        if any(sums[3 + PIECES :]):
            raise ValueError(replicas.describe_terms(self._call.terms, self))
        if any(sums[3 : 3 + PIECES]) and not is_nan:  # the bits of NaN may differ
            raise ValueError(replicas.describe(self._call.replicas, self))

    def _check_count(self, counted: int) -> None:
        expected = self._call.arguments.get(ELEMENTS)
        if expected is not None and counted != expected:
            raise ValueError(
                f"{counted} gradient elements were counted, and {expected} expected. Some are counted more than once, "
                "or not at all. Declare with `ownership` which rank counts which parameter"
            )


def send_rejection(error: Exception, find_groups: Callable[[], Sequence[Group]]) -> None:
    """Send an error to the ranks that wait for this rank, so that they raise, too. Call this before you raise it.

    find_groups: Returns the process groups whose ranks wait.
    """
    if hasattr(error, "raises_alone"):
        return
    try:
        groups = [group for group in find_groups() if group.size > 1]
    except Exception:  # no group can be inferred, so no rank waits; `error` has the remedy
        return
    note = f"unified_clip waits for the other ranks of the process group, to raise on all of them: {error!r}"
    try:
        with waiting.logged(waiting.REJECTION_PATIENCE, logging.ERROR, lambda: note):
            for group in groups:
                Consensus(group, Call()).reject(error)
    except Exception as failure:  # the error of the call is the one to raise
        error.add_note(f"Sending this error to the other ranks failed: {type(failure).__name__}: {failure}")


# -- numbers


def _summands(digest: int | None) -> list[int]:
    """Return the integers that show by their sums whether digests match: 1, the pieces, and their squares.

    A rank without a digest sends zeros.
    """
    if digest is None:
        return [0] * (1 + 2 * PIECES)
    pieces = split(digest)
    return [1, *pieces, *(piece**2 for piece in pieces)]


def _equal_summands(reduced: Sequence[int]) -> bool:
    """Return whether digests match, from the sums of `_summands`.

    Numbers are equal if and only if count * (sum of squares) == (sum)**2.
    """
    count, sums, squares = reduced[0], reduced[1 : 1 + PIECES], reduced[1 + PIECES :]
    return all(count * square == total * total for total, square in zip(sums, squares, strict=True))


def _bounds(digest: int | None) -> list[int]:
    """Return the integers that show by their maxima whether digests match: 1, the pieces, and their negatives.

    A rank without a digest sends numbers that change no maximum.
    """
    if digest is None:
        return [0, *[-(2**16)] * (2 * PIECES)]
    pieces = split(digest)
    return [1, *pieces, *(-piece for piece in pieces)]


def _equal_bounds(reduced: Sequence[int]) -> bool:
    maxima, negated_minima = reduced[1 : 1 + PIECES], reduced[1 + PIECES :]
    return not reduced[0] or all(high == -low for high, low in zip(maxima, negated_minima, strict=True))


def _to_words(own: Sum) -> list[int]:
    return [*own[0].to_words(), own[1] == "float64"]


def _from_words(words: Sequence[int]) -> Sum:
    return Accumulator.from_words(words[:WORDS]), "float64" if words[WORDS] else "float32"


def _in_units(value: float) -> int:
    """Return a number in units of 2**-UNIT."""
    return int(Fraction(value) * 2**UNIT)


def _bits(value: float) -> int:
    """Return the bits of a float64 as an int64."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _from_bits(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)
