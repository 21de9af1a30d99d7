"""Compare a call across ranks, in the same all-reduce that adds up its norm.

Every rank sends integers only. They add up to the same in any order, so the norm is that of all gradients, bit for bit,
whatever the layout. What has to be equal on all ranks is sent as digests. Only where those differ, ranks exchange
readable texts in a second step, and all of them raise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NoReturn, Protocol

from .._core.distributed import AWAITED
from .._core.exact import UNIT, WORDS, Accumulator
from .._core.types import Leaf
from . import differences
from .differences import CALL, ELEMENTS, SPEAKERS

ADDS, COMPARES, GREATEST = 1, 2**32, 0
"""Tag of the collective. The sum, or the maximum, equals `tag * size` only if every rank sent the same tag. That holds
too where some ranks add up and others take the maximum."""

PIECES = 4
"""A digest is compared in pieces of 16 bits: over up to 2**30 ranks, sums of their squares fit int64."""

COMPARED = 3 * (1 + 2 * PIECES)
"""Integers for the digests of arguments, layout and copies."""

PATIENCE = 10.0
"""Seconds after which a rank that waits with an error logs it."""

Sum = tuple[Accumulator, str]
"""A sum of |g|**p, and the dtype that its root is to have."""


def undeclared(message: str) -> ValueError:
    """An error where nothing declares which ranks share a gradient. Other ranks may not communicate in this call, so
    this one raises without them."""
    error = ValueError(message)
    error.raises_alone = True  # type: ignore[attr-defined]
    return error


class Group(Protocol):
    """A process group. All of its ranks call this at the same time, with lists of one length."""

    rank: int
    size: int

    @property
    def key(self) -> Any:
        """An object that lives as long as the process group."""

    def total(self, numbers: Sequence[int]) -> list[int]:
        """Each int64 added up over the ranks."""

    def greatest(self, numbers: Sequence[int]) -> list[int]:
        """Of each int64 the maximum over the ranks."""


class Magnitudes(Protocol):
    """What the maximum over ranks needs of the gradients of one."""

    norm_dtype: str

    def greatest(self, dtype: str) -> float:
        """Return the greatest magnitude, rounded to a dtype; NaN if there is any."""


@dataclass(frozen=True)
class Call:
    """What a rank compares of one call with the other ranks."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """By name; equal on all ranks. None where a rank does not pass it."""

    layout: Sequence[tuple[Leaf, str]] | None = None
    """Name and shape of each parameter. None where ranks may have different ones, or a shape is not known here."""

    copies: Sequence[tuple[Leaf, Callable[[], int]]] = ()
    """Gradients that are taken for copies though nothing declares it, and how to compute a checksum of each."""

    checksum: int = 0
    """Of all copies together."""

    counted: int = 0
    """How many gradient elements this rank counts."""

    remarks: Callable[[], Mapping[str, str]] = dict
    """For error messages; not compared."""

    def digests(self) -> list[int | None]:
        arguments = sorted(
            (name, differences.shown(value)) for name, value in self.arguments.items() if value is not None
        )
        layout = None if self.layout is None else [label for _, label in self.layout]
        copies = [leaf.position for leaf, _ in self.copies]
        return [_digest(arguments), None if layout is None else _digest(layout), _digest((copies, self.checksum))]

    def text(self) -> dict[str, Any]:
        return {
            "arguments": {name: differences.shown(value) for name, value in self.arguments.items()},
            "layout": None if self.layout is None else [(leaf.place, label) for leaf, label in self.layout],
            "copies": {leaf.place: checksum() for leaf, checksum in self.copies},
            "remarks": dict(self.remarks()),
        }


_CALLS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many calls of each process group this rank has begun."""


class Consensus:
    """What the ranks of a group find together."""

    def __init__(self, group: Group, call: Call) -> None:
        self.group, self._call = group, call

    def power_sum(self, own: Accumulator, dtype: str) -> Sum:
        """Return the sum over all ranks, and the norm's dtype: float64 where any rank has it."""
        return _from_words(self._total(_to_words((own, dtype)), ADDS))

    def power_sums(self, own: Sequence[Sum]) -> list[Sum]:
        """Return the same for each of several sums, whose number has been compared."""
        sums = self._added([word for each in own for word in _to_words(each)])
        step = WORDS + 1
        return [_from_words(sums[start : start + step]) for start in range(0, len(sums), step)]

    def compare(self) -> None:
        """Raise on all ranks if the calls differ."""
        self._total(_to_words((Accumulator(), "float32")), COMPARES)

    def reject(self, error: Exception) -> None:
        """Send that this rank rejects the call, in the place of what the others wait for."""
        self._call = replace(self._call, remarks=lambda: {"rejected": f"{type(error).__name__}: {error}"})
        self._begin()
        self._added([0] * (WORDS + 2) + [ADDS, 1] + [0] * COMPARED)
        self._texts(rejects=True)

    def greatest(self, own: Magnitudes, p: float) -> tuple[float, str]:
        """Return the greatest of all ranks' magnitudes, NaN if there is any: as float64 their bits are in that order.

        For p = inf it is rounded to the norm's dtype, which no rank knows before; else to float64.
        """
        wide = own.greatest("float64")
        narrow = own.greatest("float32") if p == math.inf else wide
        digests = self._begin()
        words = [_bits(math.nan if math.isnan(top) else top) for top in (wide, narrow)]
        words.insert(1, int(own.norm_dtype == "float64"))
        words += [0] * (WORDS + 2 - len(words))  # as many as where other ranks add up, for a norm of another order
        sent = [*words, GREATEST, 0, *(word for digest in digests for word in _bounds(digest))]
        found = self._reduced(self.group.greatest, sent)
        most, dtype = (_from_bits(found[0]), "float64") if found[1] else (_from_bits(found[2]), "float32")
        self._check(found[WORDS + 2 :], GREATEST, _equal_bounds, math.isnan(most))
        if self._call.arguments.get(ELEMENTS) is not None:
            self._check_count(self._added([self._call.counted])[0])
        return most, dtype

    def relative_sum(self, own: tuple[float, float]) -> tuple[float, float]:
        """Return the sum over all ranks, as that of two numbers."""
        total = Accumulator(sum(map(_in_units, own)))
        everywhere = Fraction(Accumulator.from_words(self._added(total.to_words())).total, 2**UNIT)
        high = float(everywhere)
        return high, float(everywhere - Fraction(high))

    def all_gather(self, number: int) -> list[int]:
        """Return an int64 of every rank."""
        slots = [0] * self.group.size
        slots[self.group.rank] = number
        return self._added(slots)

    def _begin(self) -> list[int | None]:
        """Count the call, and return the digests to compare."""
        AWAITED.send_rejection = None
        if self.group.size > 1 and CALL not in self._call.arguments:
            number = _CALLS[self.group.key] = _CALLS.get(self.group.key, 0) + 1
            self._call = replace(self._call, arguments={**self._call.arguments, CALL: number})
        return self._call.digests()

    def _added(self, numbers: Sequence[int]) -> list[int]:
        return self._reduced(self.group.total, numbers)

    def _reduced(self, how: Callable[[Sequence[int]], list[int]], numbers: Sequence[int]) -> list[int]:
        try:
            return how(numbers)
        except Exception as error:
            error.add_note(
                f"Rank {self.group.rank} of {self.group.size} waited for the other ranks of its process group. Make "
                "the same call on every rank, also where a rank has no gradient, and look for a rank that has ended. "
                "No gradient was changed."
            )
            raise

    def _total(self, words: Sequence[int], kind: int) -> list[int]:
        """Words that are added up, while everything else is compared."""
        digests = self._begin()
        compared = [word for digest in digests for word in _summands(digest)]
        found = self._added([*words, self._call.counted, kind, 0, *compared])
        added, counted = found[: WORDS + 1], found[WORDS + 1]
        self._check(found[WORDS + 2 :], kind, _equal_summands, Accumulator.from_words(added[:WORDS]).nan)
        self._check_count(counted)
        return added

    def _check(self, found: Sequence[int], kind: int, equal: Callable[[Sequence[int]], bool], is_nan: bool) -> None:
        """Raise if a rank rejects the call, or makes another one. Every rank computes the same here."""
        kinds, rejected, compared = found[0], found[1], found[2:]
        each = len(compared) // 3
        parts = [compared[start : start + each] for start in range(0, len(compared), each)]
        if is_nan:  # which every copy may have in other bits; the norm is NaN on all ranks
            parts.pop()
        if rejected or kinds != kind * self.group.size or not all(equal(part) for part in parts):
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(differences.describe(self._texts()))

    def _texts(self, rejects: bool = False) -> list[tuple[list[int], dict[str, Any]]]:
        """Of up to SPEAKERS groups of ranks with equal texts: the ranks, and their text. Rejecting ranks come first."""
        own = json.dumps(self._call.text()).encode()
        own += b" " * (-len(own) % 4)
        marks = self.all_gather(_digest(own) >> 2 << 1 | rejects)
        ranks: dict[int, list[int]] = {}
        for rank, mark in enumerate(marks):
            ranks.setdefault(mark, []).append(rank)
        order = sorted(ranks.values(), key=lambda members: (not marks[members[0]] & 1, -len(members)))[:SPEAKERS]
        speaks = [members[0] == self.group.rank for members in order]
        lengths = self._added([len(own) // 4 * is_own for is_own in speaks])
        sent: list[int] = []
        for length, is_own in zip(lengths, speaks, strict=True):
            sent += struct.unpack(f"<{length}I", own) if is_own else [0] * length
        words = iter(self._added(sent))
        texts = [struct.pack(f"<{length}I", *(next(words) for _ in range(length))) for length in lengths]
        return [(members, json.loads(text)) for members, text in zip(order, texts, strict=True)]

    def _check_count(self, counted: int) -> None:
        expected = self._call.arguments.get(ELEMENTS)
        if expected is not None and counted != expected:
            raise ValueError(
                f"{counted} gradient elements were counted, and {expected} expected: some are counted more than once "
                "or not at all; declare with `ownership` which rank counts which parameter"
            )


def send_rejection(error: Exception, find_group: Callable[[], Group]) -> None:
    """Let the ranks that wait for this one raise too. Call it before this rank raises `error`."""
    if hasattr(error, "raises_alone"):
        return
    try:
        group = find_group()
    except Exception:  # no group can be inferred, as this error says or implies
        return
    if group.size == 1:
        return
    try:
        note = f"unified_clip waits for the other ranks of the process group, to raise on all of them: {error!r}"
        timer = threading.Timer(PATIENCE, logging.getLogger("unified_clip").error, [note])
        timer.daemon = True
        timer.start()
        try:
            Consensus(group, Call()).reject(error)
        finally:
            timer.cancel()
    except Exception as failure:  # the error of the call is the one to raise
        error.add_note(f"Sending this error to the other ranks failed: {type(failure).__name__}: {failure}")


# -- numbers


def _digest(value: Any) -> int:
    content = value if isinstance(value, bytes) else repr(value).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=2 * PIECES).digest(), "little")


def _split(digest: int) -> list[int]:
    return [digest >> (16 * place) & 0xFFFF for place in range(PIECES)]


def _summands(digest: int | None) -> list[int]:
    """Return how many ranks have a digest, its pieces, and their squares."""
    if digest is None:
        return [0] * (1 + 2 * PIECES)
    pieces = _split(digest)
    return [1, *pieces, *(piece**2 for piece in pieces)]


def _equal_summands(found: Sequence[int]) -> bool:
    """Numbers are equal where as many times the sum of their squares is the square of their sum."""
    known, sums, squares = found[0], found[1 : 1 + PIECES], found[1 + PIECES :]
    return all(known * square == total * total for total, square in zip(sums, squares, strict=True))


def _bounds(digest: int | None) -> list[int]:
    """Return whether any rank has a digest, its pieces, and their negatives."""
    if digest is None:
        return [0, *[-(2**16)] * (2 * PIECES)]
    pieces = _split(digest)
    return [1, *pieces, *(-piece for piece in pieces)]


def _equal_bounds(found: Sequence[int]) -> bool:
    most, least = found[1 : 1 + PIECES], found[1 + PIECES :]
    return not found[0] or all(high == -low for high, low in zip(most, least, strict=True))


def _to_words(own: Sum) -> list[int]:
    return [*own[0].to_words(), own[1] == "float64"]


def _from_words(words: Sequence[int]) -> Sum:
    return Accumulator.from_words(words[:WORDS]), "float64" if words[WORDS] else "float32"


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
