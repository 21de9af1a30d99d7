"""Decide whether the result of a call agrees with the exact result.

A result is `equal` if it has the same bits as the exact result, else `different`. Two exceptions:

- `close`: on the device path, in graphs, and for a `norm_type` other than 1, 2 and inf. The norm is within the
  contract's bound, and every element follows exactly from that norm. Graphs whose norm the compiled kernels compute
  must be `equal`.
- `flushed`: in a case with `subnormal = true`, if the framework replaces subnormal numbers by 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, get_args

import numpy as np

from ...tensors.arithmetic import FORMATS
from ...tensors.types import Dense, Gradient, Sparse, Stage, densify, encode, form
from ...tensors.ulp import ulps
from ..modes import EXACT
from ..outcome import CallOutcome, ClipTensors, Failure, FailureKind
from ..suite.cases import Case
from . import oracle
from .oracle import Expected

NORM_ULPS, NORM_RELATIVE = 1, 1e-12
"""The error that the contract allows for a norm on the device path: in ULP for float32, relative for float64.

The results of adaptive rules have other bounds, in `_follows_rule`.
"""

VerdictKind = Literal["equal", "close", "flushed", "different", FailureKind]
"""The possible verdicts on a result of unified_clip."""

NativeVerdict = Literal["equal", "no norm", "close", "known", "different"]
"""The possible verdicts on a result of a framework's own function. `known/match.py` chooses one."""

VERDICTS: Mapping[str, str] = {
    "equal": "the same bits as exact arithmetic. For a framework's function: the same gradients, and a norm "
    "that equals the exact norm before rounding",
    "no norm": "the same gradients, from a function that returned no norm",
    "close": "within the contract's bound. For a framework's function: within rounding",
    "flushed": "correct except for subnormal numbers, which the framework flushes to zero",
    "known": "a difference of a framework's function that the suite lists",
    "different": "an unexpected difference. For a framework's function: one that the suite does not "
    "list, or lists with another size",
    "crashed": "the framework's process ended without a result",
    "timed out": "the framework's process gave no result in time",
    "out of memory": "the framework's process had too little memory",
    "unreadable": "the result of the framework's process cannot be read",
    "not run": "the case did not run, because its function, or several other functions, had failed before",
    "missing": "the framework, or the package with its own functions, cannot be imported",
}
"""The verdicts from best to worst, and their meanings."""

AGREEING = ("equal", "close", "flushed")
"""The verdicts on results of unified_clip that keep the contract."""

STAGES: tuple[Stage, ...] = get_args(Stage)
"""The stages of a call, which are compared one by one: the returned norm, the clip coefficient of each tensor, the
clipped tensors, and the parameters after an SGD step with the clipped tensors."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a result of unified_clip with the exact result."""

    kind: VerdictKind
    ulps: float = 0.0
    """The largest distance of a number from the exact number, in ULP. inf if there are no numbers to compare."""

    detail: str = ""
    """The difference in words, or the reason why there is no result."""

    stages: Mapping[Stage, float] = field(default_factory=dict)
    """The largest distance at each stage of the call, in ULP. For the stage "coefficient": the relative distance."""

    @property
    def agrees(self) -> bool:
        """Return whether the result keeps the contract."""
        return self.kind in AGREEING


def compare_with_exact(
    case: Case, expected: Expected, outcome: CallOutcome | Failure, path: str, *, flushes: bool = False
) -> Verdict:
    """Compare a result of unified_clip with the exact result. Return the verdict.

    The docstring of this module defines the verdicts. A wrong exception, dtype or shape is a difference of inf ULP.

    path: The mode in which the call ran, such as "host" or "device".
    flushes: Whether the framework replaces subnormal numbers by 0. The contract allows this on the device path.
    """
    if isinstance(outcome, Failure):
        return Verdict(outcome.kind, math.inf, outcome.detail)
    wrong = _wrong_behaviour(case, outcome) or _wrong_forms(expected, outcome)
    if path in EXACT and not wrong:
        wrong = _wrong_objects(case, expected, outcome)
    if wrong:
        return Verdict("different", math.inf, wrong)
    stages = _distances(case, expected, outcome)
    distance = max((stages[stage] for stage in stages if stage != "coefficient"), default=0.0)
    if distance == 0:
        return Verdict("equal", stages=stages)
    units: dict[Stage, str] = {"coefficient": "relatively"}
    apart = [f"{stage} off by {size:.3g} {units.get(stage, 'ULP')}" for stage, size in stages.items() if size]
    verdict = Verdict("different", distance, ", ".join(apart), stages)
    if case.call.is_adaptive:
        close = path not in EXACT and _follows_rule(case, expected, outcome)
        return dataclasses.replace(verdict, kind="close") if close else verdict
    if path in EXACT or outcome.exact_norm:
        close = case.arguments.get("norm_type", 2) not in (1, 2, math.inf) and stages["norm"] <= NORM_ULPS
    else:
        close = stages.get("norm", 0.0) <= NORM_ULPS
        if expected.norm and outcome.norm and expected.norm.dtype != "float32":
            error = relative_error(float(outcome.norm.values()), float(expected.norm.values()))
            close = error <= NORM_RELATIVE
    if close and _follows(case, expected, outcome):
        return dataclasses.replace(verdict, kind="close")
    if path not in EXACT and case.options.subnormal and flushes and _differs_by_flushing(case, expected, outcome):
        return dataclasses.replace(verdict, kind="flushed", detail=f"subnormal numbers are flushed: {verdict.detail}")
    return verdict


def _distances(case: Case, expected: Expected, outcome: CallOutcome) -> dict[Stage, float]:
    """Return the largest distance from the exact result, by stage of the call, in the units of `Verdict.stages`.

    Leave out a stage if either result lacks it. Leave out the coefficient of a clip by value. Both results must have
    the same shapes and dtypes.
    """
    stages: dict[Stage, float] = {}
    for stage in STAGES:
        exact, tensors = expected.at(stage), outcome.at(stage)
        if exact is None or tensors is None or (stage == "coefficient" and case.call.by_value):
            continue
        if outcome.digests == expected.digests:
            stages[stage] = 0.0
        elif stage == "coefficient":
            pairs = zip(coefficients(case, exact), coefficients(case, tensors), strict=True)
            stages[stage] = max((relative_error(tensor, right) for right, tensor in pairs), default=0.0)
        else:
            stages[stage] = ulps(exact, tensors)
    return stages


def coefficients(case: Case, clipped: Sequence[Dense | None]) -> list[float]:
    """Return the clip coefficient of each gradient of a case, measured on the clipped gradients.

    Measure it on the largest finite element of the gradient: its value after the clip, divided by its value before the
    clip. The coefficient is 1 if the gradient is None before or after the clip, or if it has no finite element but 0.
    """
    pairs = zip(map(densify, case.clipped_inputs), clipped, strict=True)
    return [_coefficient(before, after) for before, after in pairs]


def _coefficient(before: Dense | None, after: Dense | None) -> float:
    if before is None or after is None:
        return 1.0
    values = before.values().reshape(-1)
    magnitudes = np.where(np.isfinite(values), np.abs(values), 0.0)
    if not magnitudes.any():
        return 1.0
    greatest = int(np.argmax(magnitudes))
    return float(after.values().reshape(-1)[greatest] / values[greatest])


def _wrong_objects(case: Case, expected: Expected, outcome: CallOutcome) -> str:
    """Return an error if a clip class returned a copy of a gradient whose coefficient is 1, not the gradient itself.

    Otherwise return ''. Always return '' for a clip by value, and for calls that are no clip class.
    """
    if case.call.by_value:
        return ""
    inputs, right = map(densify, case.gradients), expected.gradients or []
    for index, (before, after, same) in enumerate(zip(inputs, right, outcome.same_objects, strict=False)):
        if before is after and not same:  # for a coefficient of 1 the oracle returns its input
            return f"gradient {index} came back as a new object, although its coefficient is 1"
    return ""


def _wrong_behaviour(case: Case, outcome: CallOutcome) -> str:
    """Return an error if a call raised or warned in a way that its case does not expect, else ''.

    Also return an error if the call had a wrong side effect (`outcome.fault`), or returned a container of the wrong
    type.
    """
    expected = case.options.raises
    if expected and not outcome.raised:
        return f"raised nothing, but should raise {expected}"
    if expected not in outcome.raised if expected else outcome.raised:
        return f"raised {outcome.message}" + (f", but should raise {expected}" if expected else "")
    if outcome.fault:
        return f"raised {outcome.message}, and {outcome.fault}" if outcome.raised else outcome.fault
    if case.options.warns != outcome.warned:
        return "issued a ClipWarning, but should not" if outcome.warned else "issued no ClipWarning, but should"
    if outcome.structure and outcome.structure != case.call_form.structure:
        return f"returned a {outcome.structure} instead of a {case.call_form.structure}"
    return ""


def _tensors(result: ClipTensors) -> Iterator[Dense | None]:
    """Yield the norm, or None if there is none, then each clipped gradient.

    All tensors together may not fit into memory, so the caller drops each tensor before it reads the next tensor.
    """
    yield result.norm
    yield from result.gradients or ()


def _wrong_forms(expected: Expected, outcome: CallOutcome) -> str:
    """Return an error if the tensors differ from the exact ones in number, dtype or shape. Otherwise return ''."""
    if outcome.digests == expected.digests:
        return ""
    if form(expected.norm) != form(outcome.norm):
        return f"the norm is {form(outcome.norm)} instead of {form(expected.norm)}"
    wrong = wrong_forms("gradient", expected.gradients or (), outcome.gradients or ())
    return wrong or wrong_forms("parameter", expected.update or (), outcome.update or ())


def wrong_forms(noun: str, exact: Sequence[Dense | None], tensors: Sequence[Dense | None]) -> str:
    """Return an error if tensors differ from the exact ones in number, dtype or shape. Otherwise return ''.

    noun: The name of one of these tensors, such as "gradient".
    """
    if len(exact) != len(tensors):
        return f"{len(tensors)} {noun}{'s' * (len(tensors) != 1)} instead of {len(exact)}"
    for index, (right, tensor) in enumerate(zip(exact, tensors, strict=True)):
        if form(right) != form(tensor):
            return f"{noun} {index} is {form(tensor)} instead of {form(right)}"
    return ""


# -- the device path


def _follows(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
    """Return whether the clipped gradients follow from a norm that the contract allows on the device path.

    If the call returned a norm, the gradients must follow from that norm. Otherwise, each element must follow from the
    exact norm, or from the smallest or largest norm that is allowed. `_explained` defines the allowed roundings.
    Updated parameters must be exact for the clipped gradients. Return True without gradients, and False for a clip by
    value.
    """
    if outcome.gradients is None or expected.gradients is None:
        return True
    if case.call.by_value:
        return False
    inputs = [densify(gradient) for gradient in case.gradients]
    if outcome.norm is not None:
        candidates = [oracle.clipped(case, inputs, float(outcome.norm.values()))]
    else:
        norms = {extreme: oracle.counted_norm(case, extreme) for extreme in (0, -1, 1)}
        candidates = [oracle.clipped(case, inputs, norm, extreme) for extreme, norm in norms.items()]
    if not all(map(_explained, case.gradients, outcome.gradients, *candidates)):
        return False
    return _has_update(outcome)


def _follows_rule(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
    """Return whether a result of an adaptive rule follows exactly from norms that the contract allows on the device
    path.

    For `adagc`, the norms of the tensors are unknown. A small error of these norms causes a small error of the result.
    So return whether the error of the result is at most ADAGC_FACTOR times the allowed error of a norm.

    Return False if `expected` or `outcome` has no gradients.
    """
    if outcome.gradients is None or expected.gradients is None:
        return False
    if case.call.style == "units":
        candidates = [oracle.by_units(case, extremes) for extremes in product((0, -1, 1), repeat=2)]
        return all(map(_explained, case.clipped_inputs, outcome.gradients, *candidates)) and _has_update(outcome)
    assert outcome.norm
    assert expected.norm
    wide = any(gradient is not None and FORMATS[gradient.dtype].size == 8 for gradient in case.gradients)
    error = NORM_RELATIVE if wide else 2.0**-23
    norms = [each.values()[: case.arguments["steps"]].tolist() for each in (outcome.norm, expected.norm)]
    if not all(relative_error(*pair) <= error for pair in zip(*norms, strict=True)):
        return False
    if case.call.by_total_norm:
        return oracle.with_update(case, oracle.after_steps(case, norms[0])).digests == outcome.digests
    pairs = zip(_tensors(outcome), _tensors(expected), strict=True)
    return all(
        relative_error(value, right) <= ADAGC_FACTOR * error
        for tensor, exact in pairs
        if tensor and exact
        for value, right in zip(tensor.values().flat, exact.values().flat, strict=True)
    )


ADAGC_FACTOR = 8
"""A result of `adagc` has at most this many times the error of the norms: it depends on four norms, and is rounded."""


def _has_update(outcome: CallOutcome) -> bool:
    """Return whether the parameters after an SGD step follow from the clipped gradients, or were not computed."""
    gradients = outcome.gradients or ()
    return outcome.update is None or ulps([*map(oracle.after_sgd_step, gradients)], outcome.update) == 0


def _differs_by_flushing(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
    """Return whether the norm and the clipped gradients are correct except for subnormal numbers that became 0.

    The framework may have replaced subnormal numbers in the gradients or in the result. All other numbers may differ by
    NORM_ULPS.
    """
    inputs = [_flushed(densify(gradient)) for gradient in case.gradients]
    from_flushed = oracle.expect(dataclasses.replace(case, gradients=inputs))
    triples = zip(_tensors(outcome), _tensors(expected), _tensors(from_flushed), strict=True)
    return all(
        any(ulps([_flushed(right)], [_flushed(tensor)]) <= NORM_ULPS for right in rights) for tensor, *rights in triples
    )


def _flushed(tensor: Dense | None) -> Dense | None:
    if tensor is None:
        return None
    normal = FORMATS["float64" if FORMATS[tensor.dtype].size == 8 else "float32"]
    values = tensor.values()
    return encode(np.where(np.abs(values) < 2.0**normal.min_exponent, 0.0, values), tensor.dtype)


def _explained(gradient: Gradient, result: Dense | None, *candidates: Dense | None) -> bool:
    """Return whether each element of `result` equals the same element of one of the `candidates`.

    Two kinds of elements may differ by rounding: 64-bit elements by NORM_RELATIVE, and elements of a sparse gradient by
    2 ULP from one candidate. Return True if the result is None. Return False if only the gradient is None.

    gradient: The gradient before the clip.
    candidates: Correctly clipped gradients, one for each allowed norm.
    """
    if result is None or gradient is None:
        return result is None
    if FORMATS[result.dtype].size == 8:
        pairs = zip(result.values().flat, *(each.values().flat for each in candidates if each is not None), strict=True)
        return all(any(relative_error(value, right) <= NORM_RELATIVE for right in rights) for value, *rights in pairs)
    if isinstance(gradient, Sparse):
        return any(
            ulps([candidate], [result]) <= NORM_ULPS + 1 for candidate in candidates
        )  # the sum of rows and its product with the coefficient both round
    hits = [result.bits() == candidate.bits() for candidate in candidates if candidate is not None]
    return bool(np.logical_or.reduce(hits).all())


def relative_error(value: float, right: float) -> float:
    """Return |value - right| / |right|.

    Return 0 if the numbers are equal, or both NaN. Otherwise, return inf if `right` is 0, or a number is infinite or
    NaN.
    """
    if value == right or (math.isnan(value) and math.isnan(right)):
        return 0.0
    if right == 0 or not (math.isfinite(value) and math.isfinite(right)):
        return math.inf
    return abs(value - right) / abs(right)
