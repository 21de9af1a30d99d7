"""How far results are from what is right.

On the host path a result is `equal`, the same bits, or `different`. On the device path it may be `close` as well:
the norm within the contract's bound, and every element exactly what follows from that norm. In a case that is marked
`subnormal`, a framework that flushes such numbers may be `flushed`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from . import oracle
from .arithmetic import FORMATS
from .cases import Case
from .launch import HOST, Failure, Outcome
from .oracle import Expected
from .tensors import Dense, Sparse, densify, encode

FLUSHING = ("tensorflow", "jax")
"""Frameworks whose own arithmetic takes subnormal numbers for zero, as the contract allows on the device path."""

NORM_ULPS = 1
"""How far a float32 norm may be off on the device path."""

NORM_RELATIVE = 1e-12
"""How far, relatively, a float64 norm may be off on the device path."""

Kind = Literal["equal", "close", "flushed", "different", "crashed", "timed out", "missing", "unreadable"]


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to; `ulps` is the greatest distance of any number from the right one."""

    kind: Kind
    ulps: float = 0.0
    detail: str = ""

    @property
    def agrees(self) -> bool:
        return self.kind in ("equal", "close", "flushed")


def judge(case: Case, expected: Expected, outcome: Outcome | Failure, framework: str, path: str) -> Verdict:
    """A result of ours against the oracle."""
    if isinstance(outcome, Failure):
        return Verdict(outcome.kind, math.inf, outcome.detail)
    wrong = _wrong_form(_tensors(expected.norm, expected.gradients), _tensors(outcome.norm, outcome.gradients))
    if wrong:
        return Verdict("different", math.inf, wrong)
    norm_ulps = ulps([expected.norm], [outcome.norm])
    gradient_ulps = ulps(expected.gradients or [], outcome.gradients or [])
    distance = max(norm_ulps, gradient_ulps)
    if distance == 0:
        return Verdict("equal")
    detail = f"norm off by {norm_ulps:g} ulp, gradients by {gradient_ulps:g} ulp"
    if path == HOST:
        return Verdict("different", distance, detail)
    if _norm_is_close(expected, outcome, norm_ulps) and _follows(case, expected, outcome):
        return Verdict("close", distance, detail)
    if case.subnormal and framework in FLUSHING and _differs_by_flushing(case, expected, outcome):
        return Verdict("flushed", distance, f"subnormal numbers are flushed here: {detail}")
    return Verdict("different", distance, detail)


def ulps(ours: Sequence[Dense | None], theirs: Sequence[Dense | None]) -> float:
    """The greatest distance between two lists of tensors of one form, in units in the last place.

    Any NaN equals any NaN; a NaN is infinitely far from a number; the two zeros are 1 apart.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return max((_ulps(a, b) for a, b in pairs), default=0.0)


def _ulps(ours: Dense, theirs: Dense) -> float:
    a, b = ours.bits(), theirs.bits()
    differ = a != b
    if not differ.any():
        return 0.0
    if np.isnan(ours.values()[differ]).any() or np.isnan(theirs.values()[differ]).any():
        return math.inf
    return float(np.abs(_ranks(a[differ]) - _ranks(b[differ])).max())


def _ranks(bits: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.object_]:
    """Whole numbers in the order of the numbers that bits stand for, neighbours 1 apart."""
    sign = 1 << (8 * bits.itemsize - 1)
    return np.array([n if n < sign else sign - 1 - n for n in bits.tolist()], dtype=object)


def _tensors(norm: Dense | None, gradients: Sequence[Dense | None] | None) -> list[Dense | None]:
    return [norm, *(gradients or [])]


def _wrong_form(expected: Sequence[Dense | None], found: Sequence[Dense | None]) -> str:
    """What is wrong with the number, the dtypes or the shapes of the tensors; '' if nothing."""
    if len(expected) != len(found):
        return f"{len(found) - 1} gradients instead of {len(expected) - 1}"
    for index, (right, got) in enumerate(zip(expected, found, strict=True)):
        what = f"gradient {index - 1}" if index else "the norm"
        forms = ["None" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}" for tensor in (right, got)]
        if forms[0] != forms[1]:
            return f"{what} is {forms[1]} instead of {forms[0]}"
    return ""


# -- the device path


def _norm_is_close(expected: Expected, outcome: Outcome, norm_ulps: float) -> bool:
    if expected.norm is None or outcome.norm is None or expected.norm.dtype == "float32":
        return norm_ulps <= NORM_ULPS
    return _close_float64(float(outcome.norm.values()), float(expected.norm.values()))


def _follows(case: Case, expected: Expected, outcome: Outcome) -> bool:
    """Whether every gradient is what a norm that is close enough makes of it.

    It is exactly that where the norm was returned, but for a sparse gradient, whose rows the framework has summed.
    """
    if outcome.gradients is None or expected.gradients is None:
        return True
    if case.call.by_value:
        return False
    given = [densify(gradient) for gradient in case.gradients]
    n = None if outcome.norm is None else float(outcome.norm.values())
    right = expected.gradients if n is None else oracle.clipped(case.call, case.arguments, given, n)
    loose = [n is None or isinstance(gradient, Sparse) for gradient in case.gradients]
    return all(map(_explained, right, outcome.gradients, loose))


def _differs_by_flushing(case: Case, expected: Expected, outcome: Outcome) -> bool:
    """Whether every tensor is right but for subnormal numbers taken for zero: in the result, or in what was given."""
    given = [_flushed(densify(gradient)) for gradient in case.gradients]
    from_flushed = oracle.expect(dataclasses.replace(case, gradients=given))
    return all(
        any(ulps([_flushed(right)], [_flushed(found)]) <= NORM_ULPS for right in rights)
        for *rights, found in zip(
            _tensors(expected.norm, expected.gradients),
            _tensors(from_flushed.norm, from_flushed.gradients),
            _tensors(outcome.norm, outcome.gradients),
            strict=True,
        )
    )


def _flushed(tensor: Dense | None) -> Dense | None:
    if tensor is None:
        return None
    values, smallest = (
        tensor.values(),
        2.0 ** FORMATS["float64" if tensor.dtype == "float64" else "float32"].min_exponent,
    )
    return encode(np.where(np.abs(values) < smallest, 0.0, values), tensor.dtype)


def _explained(right: Dense | None, found: Dense | None, loose: bool) -> bool:
    if right is None or found is None or not loose:
        return ulps([right], [found]) == 0
    if right.dtype != "float64":
        return ulps([right], [found]) <= NORM_ULPS + 1  # the rounding of the product comes on top
    return all(map(_close_float64, found.values().flat, right.values().flat))


def _close_float64(found: float, right: float) -> bool:
    return relative_error(found, right) <= NORM_RELATIVE


# -- the frameworks' own functions


@dataclass(frozen=True)
class Distance:
    """How far a framework's own function is from what the contract says; None where there is nothing to compare."""

    function: str = ""
    norm: float | None = None
    """Relative, from the exact norm."""

    gradients: float | None = None
    """The greatest difference of an element, relative to the greatest element that is right."""

    note: str = ""


def measure(expected: Expected, native: Outcome | Failure) -> Distance | None:
    """The native's distance from the oracle; None where there is no such function."""
    if isinstance(native, Failure):
        return None if native.kind == "missing" else Distance(note=native.detail)
    if not native.name:
        return None
    norm = None
    if native.norm is not None and expected.wide_norm is not None:
        norm = relative_error(float(native.norm.values().reshape(())), expected.wide_norm)
    if native.gradients is None or expected.gradients is None:
        return Distance(native.name, norm)
    right = [gradient for gradient in expected.gradients if gradient is not None]
    found = [gradient for gradient in native.gradients if gradient is not None]
    if [gradient.array.size for gradient in right] != [gradient.array.size for gradient in found]:
        return Distance(native.name, norm, note="it returns other shapes")
    return Distance(native.name, norm, _greatest_difference(right, found))


def _greatest_difference(right: Sequence[Dense], found: Sequence[Dense]) -> float:
    a, b = (np.concatenate([np.zeros(0), *(t.values().reshape(-1) for t in side)]) for side in (right, found))
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = float(np.max(np.abs(a - b), where=~same, initial=0.0))
    greatest = float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0))
    if difference == 0:
        return 0.0
    return difference / greatest if math.isfinite(difference) and greatest else math.inf


def relative_error(found: float, right: float) -> float:
    """|found - right| / |right|; 0 if they are the same, infinities and NaN included."""
    if found == right or (math.isnan(found) and math.isnan(right)):
        return 0.0
    if right == 0 or not (math.isfinite(found) and math.isfinite(right)):
        return math.inf
    return abs(found - right) / abs(right)
