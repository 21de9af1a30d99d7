"""Compute norms over all ranks, and check that the ranks make the same call.

Ranks send only integers. The order of additions does not change a sum of integers, so the norm has the same bits for
every distribution of the gradients. Ranks also send digests of the values that must match. If digests differ, the ranks
exchange the values as text, and all ranks raise an error with this text.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar

from .._core.distributed import AWAITED, PartialSums
from .._core.exact import UNIT, WORDS, Accumulator
from .._core.types import Leaf, Tensor
from . import differences, integers, replicas, uncounted, waiting
from .differences import CALL, ELEMENTS, MAX_TEXTS
from .digests import PIECES, digest
from .groups import ProcessGroup
from .integers import Sum
from .replicas import ReplicaSet, contents
from .uncounted import SharedGradients

ADDS, COMPARES, MAXIMUM = 1, 2**32, 0
"""Tags of collectives. The sum of the tags is tag * number of ranks only if all ranks send the same tag."""

CHECKED = 3 + 3 * PIECES
"""The length of the result of `_checked`."""

CORRUPTED = (
    "the exchange between ranks returned data that no rank sent. No gradient was changed. Check the collectives of "
    "this process group with an all-reduce of known numbers, and the network and the devices of the ranks"
)

COMPARED = 3 * (1 + 2 * PIECES)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Call:
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The value is None for an argument that the caller did not pass."""

    layout: Sequence[tuple[Leaf, str]] | None = None
    """A (parameter, text) tuple for each parameter. The text has the name, the shape and the placements.

    None if ranks can have different parameters, or if a shape is unknown.
    """

    copies: Sequence[tuple[Leaf, Callable[[], int]]] = ()
    """For each gradient that must be equal on all ranks: (gradient, function that returns its checksum)."""

    checksum: int = 0
    counted: int = 0
    replicas: Sequence[ReplicaSet] = ()

    terms: Sequence[ReplicaSet] = ()
    """The `Partial` gradients. Ranks compare the layouts of these gradients."""

    shared: SharedGradients = field(default_factory=SharedGradients)
    remarks: Callable[[], Mapping[str, str]] = dict
    """Returns details for error messages. Ranks do not compare these details."""

    def digests(self) -> list[int | None]:
        arguments = sorted(
            (name, differences.format_value(value)) for name, value in self.arguments.items() if value is not None
        )
        layout = None if self.layout is None else [label for _, label in self.layout]
        copies = [leaf.name or leaf.position for leaf, _ in self.copies]  # a position may differ between ranks
        return [digest(arguments), None if layout is None else digest(layout), digest((copies, self.checksum))]

    def text(self) -> dict[str, Any]:
        return {
            "arguments": {name: differences.format_value(value) for name, value in self.arguments.items()},
            "layout": None if self.layout is None else [(leaf.place, label) for leaf, label in self.layout],
            "copies": contents((leaf, checksum()) for leaf, checksum in self.copies),
            "remarks": dict(self.remarks()),
        }


_CALLS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Maps the `key` of each process group to the number of calls that this rank has begun."""


class Consensus:
    """The collectives for norms of one clip call. All ranks of the group must call them in the same order."""

    def __init__(self, group: ProcessGroup, call: Call) -> None:
        self.group, self.rank, self.ranks, self._call = group, group.rank, group.ranks, call
        self.has_terms = self.has_all_terms = False

    def power_sum(self, own: Accumulator, dtype: str) -> Sum:
        """Return (sum of |g|**p over all ranks, dtype of the norm). All ranks have to call this method."""
        return integers.from_words(self._checked_sum(integers.to_words((own, dtype)), ADDS))

    def power_sums(self, own: Sequence[Sum]) -> list[Sum]:
        """Call `compare` first, to check that all ranks make the same call."""
        words = self.all_reduce_sum([word for power_sum in own for word in integers.to_words(power_sum)])
        step = WORDS + 1
        return [integers.from_words(words[start : start + step]) for start in range(0, len(words), step)]

    def compare(self) -> None:
        self._checked_sum(integers.to_words((Accumulator(), "float32")), COMPARES)

    def reject(self, error: Exception) -> None:
        """Send an error to the other ranks, which wait in a collective."""
        self._call = replace(self._call, remarks=lambda: {"rejected": f"{type(error).__name__}: {error}"})
        self._begin()
        self.all_reduce_sum([0] * (WORDS + 1 + CHECKED) + [ADDS, 1] + [0] * COMPARED)
        self._texts(rejects=True)

    def max_abs(self, own: PartialSums, p: float) -> tuple[float, str]:
        """Return (largest magnitude over all ranks, dtype of the norm).

        Ranks send the bits of float64 magnitudes as integers. The integer of NaN is larger than the integers of all
        numbers. For p = inf, the magnitude is rounded to the dtype of the norm.
        """
        wide = own.max_abs("float64")
        narrow = own.max_abs("float32") if p == math.inf else wide
        digests = self._begin()
        words = [integers.bits(math.nan if math.isnan(top) else top) for top in (wide, narrow)]
        words.insert(1, int(own.norm_dtype == "float64"))
        words.append(int(bool(self._call.terms)))
        words += [0] * (WORDS + 1 + CHECKED - len(words))  # a rank with another p sends as many words
        sent = [*words, MAXIMUM, 0, *(word for value in digests for word in integers.bounds(value))]
        maxima = self._all_reduce(self.group.all_reduce_max, sent)
        dtype = "float64" if maxima[1] else "float32"
        top = integers.from_bits(maxima[0 if maxima[1] else 2])
        is_nan = math.isnan(top)
        self._check(maxima[WORDS + 1 + CHECKED :], MAXIMUM, integers.equal_bounds, is_nan)
        if self._call.arguments.get(ELEMENTS) is not None or self._call.arguments.get(replicas.CHECK) or maxima[3]:
            self._check_sums(self.all_reduce_sum(self._checked()), is_nan)
        return top, dtype

    def relative_sum(self, own: tuple[float, float]) -> tuple[float, float]:
        words = Accumulator(sum(map(integers.in_units, own))).to_words()
        total = Fraction(Accumulator.from_words(self.all_reduce_sum(words)).total, 2**UNIT)
        high = float(total)
        return high, float(total - Fraction(high))

    def check_any_counted(self, counted: Sequence[Tensor], local: Sequence[Tensor]) -> None:
        has_elements = [any(math.prod(tensor.shape) for tensor in tensors) for tensors in (counted, local)]
        if self.max_over_ranks(2 if has_elements[0] else int(has_elements[1])) == 1:
            raise ValueError(
                "no rank owns any gradient, because ownership returned False for every gradient. Exactly one rank of "
                "the process group must own each element. Check this function. With megatron_ownership, "
                "check the arguments, such as data_rank. No gradient was changed."
            )

    def max_over_ranks(self, number: int) -> int:
        return self._all_reduce(self.group.all_reduce_max, [number])[0]

    def all_gather(self, number: int) -> list[int]:
        slots = [0] * self.group.size
        slots[self.group.rank] = number
        return self.all_reduce_sum(slots)

    def _begin(self) -> list[int | None]:
        AWAITED.send_rejection = None
        if self.group.size > 1 and CALL not in self._call.arguments:
            number = _CALLS[self.group.key] = _CALLS.get(self.group.key, 0) + 1
            self._call = replace(self._call, arguments={**self._call.arguments, CALL: number})
        return self._call.digests()

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        return self._all_reduce(self.group.all_reduce_sum, numbers)

    def _all_reduce(self, collective: Callable[[Sequence[int]], list[int]], numbers: Sequence[int]) -> list[int]:
        return self._with_note(lambda: collective(numbers))

    def _with_note(self, collective: Callable[[], Result]) -> Result:
        try:
            with waiting.logged(waiting.PATIENCE, logging.WARNING, lambda: self._waiting("waits")):
                return collective()
        except Exception as error:
            _add_note(error, f"{self._waiting('waited')} No gradient was changed.")
            raise

    def _waiting(self, waits: str) -> str:
        return (
            f"Rank {self.group.rank} of {self.group.size} {waits} for the other ranks in call "
            f"{self._call.arguments.get(CALL)} on this process group. Make the same calls on every rank, also on "
            "ranks without a gradient, and look for a rank that has ended."
        )

    def _checked_sum(self, words: Sequence[int], tag: int) -> list[int]:
        digests = self._begin()
        compared = [word for value in digests for word in integers.summands(value)]
        reduced = self.all_reduce_sum([*words, *self._checked(), tag, 0, *compared])
        sums, checked, rest = reduced[: WORDS + 1], reduced[WORDS + 1 :][:CHECKED], reduced[WORDS + 1 + CHECKED :]
        is_nan = bool(Accumulator.from_words(sums[:WORDS]).nan)
        self._check(rest, tag, integers.equal_summands, is_nan)
        self._check_sums(checked, is_nan)
        return sums

    def _checked(self) -> list[int]:
        terms, size = self._call.terms, self.group.size
        flags = [bool(terms), bool(terms) and all(bucket.number == size for bucket in terms)]
        checked = (self._call.replicas, terms, self._call.shared.sets)
        return [
            self._call.counted, *map(int, flags), *(word for sets in checked for word in replicas.summands(sets))
        ]  # fmt: skip

    def _check(self, reduced: Sequence[int], tag: int, equal: Callable[[Sequence[int]], bool], is_nan: bool) -> None:
        tags, rejected, compared = reduced[0], reduced[1], reduced[2:]
        length = len(compared) // 3
        digests = [compared[start : start + length] for start in range(0, len(compared), length)]
        if is_nan:  # the bits of NaN may differ between copies, but the norm is NaN on all ranks
            digests.pop()
        if rejected or tags != tag * self.group.size or not all(map(equal, digests)):
            raise ValueError(differences.describe(self._texts()))

    def _texts(self, rejects: bool = False) -> list[tuple[list[int], dict[str, Any]]]:
        """Return (global ranks, description of their call) for at most MAX_TEXTS calls, rejected calls first."""
        own = self._call.text()
        mark = (digest(json.dumps(own).encode()) | 4) >> 2 << 1 | rejects
        marks = self.all_gather(mark)
        is_one_call = len(set(marks)) == 1 and not rejects  # equal calls send equal digests
        if is_one_call or 0 in marks or marks[self.group.rank] != mark:
            raise RuntimeError(CORRUPTED)
        ranks: dict[int, list[int]] = {}
        for rank, mark in enumerate(marks):
            ranks.setdefault(mark, []).append(rank)
        order = sorted(ranks.values(), key=lambda members: (not marks[members[0]] & 1, -len(members)))[:MAX_TEXTS]
        texts = self.exchange([own if members[0] == self.group.rank else None for members in order])
        return [([self.ranks[at] for at in members], text) for members, text in zip(order, texts, strict=True)]

    def exchange(self, texts: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
        """Send texts to all ranks. At each index, one rank passes a text, and the other ranks pass None."""
        own = [b"" if text is None else json.dumps(text).encode() for text in texts]
        own = [content + b" " * (-len(content) % 4) for content in own]
        lengths = self.all_reduce_sum([len(content) // 4 for content in own])
        sent: list[int] = []
        for length, content in zip(lengths, own, strict=True):
            sent += struct.unpack(f"<{length}I", content) if content else [0] * length
        words = iter(self.all_reduce_sum(sent))
        try:
            return [json.loads(struct.pack(f"<{length}I", *itertools.islice(words, length))) for length in lengths]
        except (ValueError, struct.error):
            raise RuntimeError(CORRUPTED) from None

    def _check_sums(self, sums: Sequence[int], is_nan: bool) -> None:
        self._check_count(sums[0])
        self.has_terms, self.has_all_terms = sums[1] > 0, sums[2] == self.group.size
        if any(sums[3 + PIECES : 3 + 2 * PIECES]):
            raise ValueError(replicas.describe_terms(self._call.terms, self))
        if any(sums[3 : 3 + PIECES]) and not is_nan:  # the bits of NaN may differ
            raise ValueError(replicas.describe(self._call.replicas, self))
        if any(sums[3 + 2 * PIECES : 3 + 3 * PIECES]) and (message := uncounted.describe(self._call.shared, self)):
            raise ValueError(message)

    def _check_count(self, counted: int) -> None:
        expected = self._call.arguments.get(ELEMENTS)
        if expected is not None and counted != expected:
            raise ValueError(
                f"the ranks own {counted} gradient elements together, and check_numel expects {expected}. Some "
                "elements have several owner ranks, or no owner rank. Pass `ownership` to declare which rank owns each "
                "parameter, or correct check_numel"
            )


def send_rejection(error: Exception, find_groups: Callable[[], Sequence[ProcessGroup]]) -> None:
    """Raise this error also on the waiting ranks. `find_groups` returns the process groups of these ranks."""
    if hasattr(error, "raises_alone"):
        return
    try:
        groups = [group for group in find_groups() if group.size > 1]
    except Exception:  # no group can be inferred, so no rank waits. `error` has the remedy
        return
    note = f"unified_clip waits for the other ranks of the process group, to raise this error on all ranks: {error!r}"
    try:
        with waiting.logged(waiting.REJECTION_PATIENCE, logging.ERROR, lambda: note):
            for group in groups:
                Consensus(group, Call()).reject(error)
    except Exception as failure:  # the error of the call matters more
        _add_note(error, f"Sending this error to the other ranks failed: {type(failure).__name__}: {failure}")


def _add_note(error: BaseException, note: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.args = ("\n".join([*map(str, error.args), note]),)
