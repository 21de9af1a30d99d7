"""Decide whether a result agrees with the exact result.

The verdict is `equal` if the result and the exact result have the same bits. Two other verdicts are possible for
results that are not wrong:

- `close`: the norm has an allowed error, and the gradients are clipped exactly by this norm. The contract allows errors
  on the device path, in graphs, and for every `norm_type` except 1, 2 and inf.
- `flushed`: the framework replaced subnormal numbers by 0 in a case with `subnormal = true`.
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
from ...tensors.types import Dense, Gradient, Sparse, Stage, densify, encode, other_form
from ...tensors.ulp import ulps
from ..call_outcome import CallOutcome, ClipTensors, Failure, FailureKind
from ..modes import EXACT
from ..suite.case import Case
from . import oracle
from .oracle import Expected

NORM_ULPS, NORM_RELATIVE = 1, 1e-12
"""The allowed error of a norm on the device path: in ULP for float32, and as a relative error for float64."""

VerdictKind = Literal["equal", "close", "flushed", "different", FailureKind]

NativeVerdict = Literal["equal", "no norm", "close", "known", "different"]

VERDICTS: Mapping[str, str] = {
    "equal": "the same bits as the exact result. For a framework's function: the exact gradients, and a norm "
    "that equals the exact norm in float64",
    "no norm": "the exact gradients, but the function returned no norm",
    "close": "a rounding error that the specification allows. For a framework's function: a rounding error",
    "flushed": "correct except for subnormal numbers, which the framework flushes to zero",
    "known": "a difference that is in the suite's list of known differences",
    "different": "an unexpected difference. For a framework's function: a difference that is not in the list of "
    "known differences, or is larger than listed",
    "crashed": "the framework's process ended without a result",
    "timed out": "the framework's process gave no result in time",
    "out of memory": "the framework's process had too little memory",
    "unreadable": "the result of the framework's process cannot be read",
    "not run": "the case did not run, because the process of its mode failed twice",
    "missing": "the framework or its package of clip functions cannot be imported",
    "not available": "the old release of the framework cannot run the case",
}

AGREEING = ("equal", "close", "flushed")

STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True)
class Verdict:
    kind: VerdictKind
    ulps: float = 0.0
    """The largest distance from the exact number, in ULP, or inf if there are no numbers to compare."""

    detail: str = ""
    stages: Mapping[Stage, float] = field(default_factory=dict)
    """The largest distance at each stage, in ULP. For the stage "coefficient", the number is the relative error."""

    @property
    def agrees(self) -> bool:
        return self.kind in AGREEING


def compare_with_exact(
    case: Case, expected: Expected, outcome: CallOutcome | Failure, path: str, *, flushes: bool = False
) -> Verdict:
    if isinstance(outcome, Failure):
        return Verdict(outcome.kind, math.inf, outcome.detail)
    wrong = _wrong_behaviour(case, outcome) or _wrong_forms(expected, outcome)
    if path in EXACT and not wrong:
        wrong = _copied_unchanged_gradient(case, expected, outcome)
    if wrong:
        return Verdict("different", math.inf, wrong)
    stages = _distances(case, expected, outcome)
    distance = max((stages[stage] for stage in stages if stage != "coefficient"), default=0.0)
    if distance == 0:
        return Verdict("equal", stages=stages)
    units: dict[Stage, str] = {"coefficient": "(relative)"}
    apart = [f"{stage} off by {size:.3g} {units.get(stage, 'ULP')}" for stage, size in stages.items() if size]
    verdict = Verdict("different", distance, ", ".join(apart), stages)
    if case.call.style == "units":
        close = path not in EXACT and _follows_units(case, outcome)
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
    """Return the clip coefficient of each gradient: the factor by which its largest finite element changed.

    If all finite elements are 0, the coefficient is 1.
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


def _copied_unchanged_gradient(case: Case, expected: Expected, outcome: CallOutcome) -> str:
    if case.call.by_value:
        return ""
    inputs, right = map(densify, case.gradients), expected.gradients or []
    for index, (before, after, same) in enumerate(zip(inputs, right, outcome.same_objects, strict=False)):
        if before is after and not same:  # for a coefficient of 1 the oracle returns its input
            return f"gradient {index} came back as a new object, although its coefficient is 1"
    return ""


def _wrong_behaviour(case: Case, outcome: CallOutcome) -> str:
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
    """Yield one tensor at a time, to save memory."""
    yield result.norm
    yield from result.gradients or ()


def _wrong_forms(expected: Expected, outcome: CallOutcome) -> str:
    if outcome.digests == expected.digests:
        return ""
    return (
        other_form("the norm", outcome.norm, expected.norm)
        or wrong_forms("gradient", expected.gradients or (), outcome.gradients or ())
        or wrong_forms("parameter", expected.update or (), outcome.update or ())
    )


def wrong_forms(noun: str, exact: Sequence[Dense | None], tensors: Sequence[Dense | None]) -> str:
    if len(exact) != len(tensors):
        return f"{len(tensors)} {noun}{'s' * (len(tensors) != 1)} instead of {len(exact)}"
    pairs = enumerate(zip(exact, tensors, strict=True))
    return next(filter(None, (other_form(f"{noun} {index}", tensor, right) for index, (right, tensor) in pairs)), "")


# -- the device path


def _follows(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
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


def _follows_units(case: Case, outcome: CallOutcome) -> bool:
    candidates = [oracle.clipped_by_units(case, extremes) for extremes in product((0, -1, 1), repeat=2)]
    return all(map(_explained, case.clipped_inputs, outcome.gradients or (), *candidates)) and _has_update(outcome)


def _has_update(outcome: CallOutcome) -> bool:
    gradients = outcome.gradients or ()
    return outcome.update is None or ulps([*map(oracle.after_sgd_step, gradients)], outcome.update) == 0


def _differs_by_flushing(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
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
    """Return whether each element of `result` equals the element of a candidate at the same position.

    Rounding errors are allowed in elements with 64 bits and in sparse gradients.

    candidates: For each allowed norm, the gradient clipped exactly by this norm.
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
    if value == right or (math.isnan(value) and math.isnan(right)):
        return 0.0
    if right == 0 or not (math.isfinite(value) and math.isfinite(right)):
        return math.inf
    return abs(value - right) / abs(right)
