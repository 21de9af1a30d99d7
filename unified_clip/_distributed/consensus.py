"""Compute norms over all ranks, and check that the ranks make the same call.

Ranks send only integers. The order of additions does not change a sum of integers, so the norm has the same bits for
every distribution of the gradients. The same all-reduce compares digests of the call (see `agreement.py`).
"""

from __future__ import annotations

import logging
import math
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .._compute.checksums import PIECES, digest, split
from .._core.distributed import AWAITED, PartialSums
from .._core.exact import UNIT, WORDS, Accumulator
from .._core.types import Tensor
from . import agreement
from .agreement import CALL, CALLS, LAYOUT, PLAIN, REPLICAS, TERMS, Compared, Outline
from .groups import CORRUPTED, ProcessGroup, gather_objects
from .owners import Copies

Sum = tuple[Accumulator, str]
"""(sum of |g|**p, dtype of the norm)."""

SUM_WORDS = WORDS + 1

EVERYWHERE = (CALL, LAYOUT, PLAIN)
"""The kinds of values that all ranks share."""

_CALLS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Maps the `key` of each process group to the number of calls that this rank has begun."""


@dataclass(eq=False)
class Consensus:
    """The collectives for norms of one clip call. All ranks of the group must call them in the same order."""

    group: ProcessGroup
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of this rank's call. The value is None for an argument that the caller did not pass."""

    remarks: Callable[[], Mapping[str, str]] = dict
    """Returns details for error messages. Ranks do not compare these details."""

    compared: Sequence[Compared] = ()
    numel: int | None = None
    counted: int = 0
    checks_replicas: bool = False
    has_terms: bool = False
    has_all_terms: bool = False
    _number: int | None = None
    _outlines: Sequence[Outline] = ()

    def power_sum(self, own: Accumulator, dtype: str) -> Sum:
        """Return (sum of |g|**p over all ranks, dtype of the norm). All ranks have to call this method."""
        return _from_words(self._compared_sum(_to_words((own, dtype))))

    def power_sums(self, own: Sequence[Sum]) -> list[Sum]:
        """Call `compare` first, to check that all ranks make the same call."""
        words = self.all_reduce_sum([word for power_sum in own for word in _to_words(power_sum)])
        return [_from_words(words[start : start + SUM_WORDS]) for start in range(0, len(words), SUM_WORDS)]

    def compare(self) -> None:
        self._compared_sum([0] * SUM_WORDS)

    def reject(self) -> None:
        """Send an error, which is in `compared`, to the other ranks. They wait in a collective."""
        self._begin()
        self.all_reduce_sum([*[0] * SUM_WORDS, *self._checked()])
        self._difference(is_nan=False)

    def max_abs(self, own: PartialSums, p: float) -> tuple[float, str]:
        """Return (largest magnitude over all ranks, dtype of the norm).

        Ranks send the bits of float64 magnitudes as integers. The integer of NaN is larger than the integers of all
        numbers. For p = inf, the magnitude is rounded to the dtype of the norm.
        """
        wide = own.max_abs("float64")
        narrow = own.max_abs("float32") if p == math.inf else wide
        self._begin()
        words = [_bits(wide), int(own.norm_dtype == "float64"), _bits(narrow)]
        words += [0] * (SUM_WORDS - len(words))  # a rank with another p sends as many words
        pieces = split(digest([(own.key, own.content) for own in self._outlines if own.kind in EVERYWHERE]))
        sent = [*words, *self._counts(), *pieces, *(-piece for piece in pieces)]
        maxima = self._waiting_for(lambda: self.group.all_reduce_max(sent))
        (count, _, terms), bounds = maxima[SUM_WORDS : -2 * PIECES], maxima[-2 * PIECES :]
        dtype = "float64" if maxima[1] else "float32"
        top = _from_bits(maxima[0 if maxima[1] else 2])
        is_equal = all(high == -low for high, low in zip(bounds[:PIECES], bounds[PIECES:], strict=True))
        self._check_calls(count == 1, is_equal, math.isnan(top))
        if self.numel is not None or self.checks_replicas or terms:
            self._check(self.all_reduce_sum(self._checked()), math.isnan(top))
        return top, dtype

    def relative_sum(self, own: tuple[float, float]) -> tuple[float, float]:
        words = Accumulator(sum(int(Fraction(value) * 2**UNIT) for value in own)).to_words()
        total = Fraction(Accumulator.from_words(self.all_reduce_sum(words)).total, 2**UNIT)
        high = float(total)
        return high, float(total - Fraction(high))

    def check_any_owned(self, owned: Sequence[Tensor], local: Sequence[Tensor]) -> None:
        counts = [int(any(math.prod(tensor.shape) for tensor in tensors)) for tensors in (owned, local)]
        ranks_with_owned, ranks_with_local = self.all_reduce_sum(counts)
        if ranks_with_local and not ranks_with_owned:
            raise ValueError(
                "no rank owns any gradient, because ownership returned False for every gradient. Exactly one rank of "
                "the process group must own each element. Check this function. With megatron_ownership, "
                "check the arguments, such as data_rank. No gradient was changed."
            )

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        return self._waiting_for(lambda: self.group.all_reduce_sum(numbers))

    def _waiting_for(self, collective: Callable[[], list[int]]) -> list[int]:
        try:
            return collective()
        except Exception as error:
            note = (
                f"Rank {self.group.rank} of {self.group.size} waited for the other ranks in call {self._number} on "
                "this process group. Make the same calls on every rank, also on ranks without a gradient, and look for "
                "a rank that has ended. No gradient was changed."
            )
            _add_note(error, note)
            raise

    def _begin(self) -> None:
        AWAITED.send_rejection = None
        if self._outlines:
            return
        if self.group.size > 1:
            self._number = _CALLS[self.group.key] = _CALLS.get(self.group.key, 0) + 1
        arguments = {**self.arguments, CALLS: self._number}
        self.compared = [agreement.arguments(arguments, self.remarks, Copies.on_all(self.group)), *self.compared]
        self._outlines = [compared.outline for compared in self.compared]

    def _checked(self) -> list[int]:
        """Return the integers whose sums over all ranks `_check` reads."""
        return [*self._counts(), *agreement.summands(self._outlines), *[0] * PIECES]

    def _counts(self) -> list[int]:
        """Return 1 for this rank, the number of elements that it owns, and a number for its `Partial` gradients.

        The sum of the last number is the number of ranks if all ranks have the same `Partial` gradients.
        """
        numbers, size = [own.number for own in self._outlines if own.kind == TERMS], self.group.size
        terms = 0 if not numbers else 1 if set(numbers) == {size} else size + 1
        return [1, self.counted, terms]

    def _compared_sum(self, words: Sequence[int]) -> list[int]:
        self._begin()
        reduced = self.all_reduce_sum([*words, *self._checked()])
        self._check(reduced[SUM_WORDS:], is_nan=bool(Accumulator.from_words(reduced[:WORDS]).nan))
        return reduced[:SUM_WORDS]

    def _check(self, sums: Sequence[int], is_nan: bool) -> None:
        count, counted, terms, *differences = sums
        self._check_calls(count == self.group.size, not any(differences), is_nan)
        self.has_terms, self.has_all_terms = terms > 0, terms == self.group.size
        expected = self.numel
        if expected is not None and counted != expected:
            raise ValueError(
                f"the ranks own {counted} gradient elements together, and check_numel expects {expected}. Some "
                "elements have several owner ranks, or no owner rank. Pass `ownership` to declare which rank owns each "
                "parameter, or correct check_numel"
            )

    def _check_calls(self, has_all_ranks: bool, is_equal: bool, is_nan: bool) -> None:
        """has_all_ranks: Whether all ranks took part, in the same kind of collective."""
        if has_all_ranks and is_equal:
            return
        message = self._difference(is_nan)
        if message is not None:
            raise ValueError(message)
        if not has_all_ranks:
            raise RuntimeError(CORRUPTED)

    def _difference(self, is_nan: bool) -> str | None:
        """Return an error message, or None if no difference makes the norm wrong. All ranks have to call this method.

        is_nan: Whether the norm is NaN. The bits of NaN may differ between copies.
        """
        ignored = (PLAIN, REPLICAS) if is_nan else ()
        keys = agreement.differing(([Outline(*own) for own in rank] for rank in self._gather(self._outlines)), ignored)
        if not keys:
            return None
        values = [(own.outline, own.values()) for own in self.compared if own.outline.key in keys]
        gathered = ([(Outline(*outline), own) for outline, own in rank] for rank in self._gather(values))
        return agreement.describe(gathered, self.group.ranks)

    def _gather(self, own: Any) -> list[Any]:
        return gather_objects(self.all_reduce_sum, self.group.rank, self.group.size, own)


def send_rejection(error: Exception, find_groups: Callable[[], Sequence[ProcessGroup]]) -> None:
    """Raise this error also on the waiting ranks. `find_groups` returns the process groups of these ranks."""
    if hasattr(error, "raises_alone"):
        return
    try:
        groups = [group for group in find_groups() if group.size > 1]
    except Exception:  # no group can be inferred, so no rank waits. `error` has the remedy
        return
    if groups:  # this rank may wait for long, so the error must be seen now
        logging.getLogger("unified_clip").error(
            "unified_clip waits for the other ranks of the process group, to raise this error on all ranks: %s",
            repr(error),  # a kept record of the error itself would keep the gradients of its traceback
        )
    try:
        for group in groups:
            reject(error, group)
    except Exception as failure:  # the error of the call matters more
        _add_note(error, f"Sending this error to the other ranks failed: {type(failure).__name__}: {failure}")


def reject(error: Exception, group: ProcessGroup) -> None:
    Consensus(group, compared=[agreement.rejection(error, Copies.on_all(group))]).reject()


def _add_note(error: BaseException, note: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:  # pragma: no cover  # Python 3.10, which tests/contract also runs on
        error.args = ("\n".join([*map(str, error.args), note]),)


def _to_words(own: Sum) -> list[int]:
    return [*own[0].to_words(), own[1] == "float64"]


def _from_words(words: Sequence[int]) -> Sum:
    return Accumulator.from_words(words[:WORDS]), "float64" if words[WORDS] else "float32"


def _bits(value: float) -> int:
    (number,) = struct.unpack("<q", struct.pack("<d", math.nan if math.isnan(value) else value))
    return int(number)


def _from_bits(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)
