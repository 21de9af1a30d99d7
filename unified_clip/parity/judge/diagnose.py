"""Find the cause of a difference from the exact result."""

from __future__ import annotations

from ...causes.cause import Cause
from ...causes.explain import find_cause
from ...causes.observation import By, Observation
from ...tensors.types import Dense
from ..call_outcome import CallOutcome
from ..suite.case import Case
from .oracle import Expected


def diagnose(case: Case, expected: Expected, outcome: CallOutcome) -> Cause | None:
    observation = observe(case, expected, outcome)
    return find_cause(observation) if observation else None


def observe(case: Case, expected: Expected, outcome: CallOutcome) -> Observation | None:
    call, form, arguments = case.call, case.call_form, case.arguments
    if call.style == "units" or outcome.raised or case.options.raises:
        return None
    if form.gradients_for_parameters or (expected.gradients is None) != (outcome.gradients is None):
        return None
    by: By = "per group" if form.groups else "global" if call.by_total_norm else "per tensor"
    by = "value" if call.by_value else "per slice" if "axes" in arguments else by
    return Observation(
        before=case.gradients,
        expected=expected.gradients or (),
        after=outcome.gradients or (),
        by=by,
        threshold=call.threshold(arguments) if call.required and not call.by_value else 0.0,
        bounds=call.bounds(arguments) if call.by_value else (),
        eps=call.eps,
        p=float(arguments.get("norm_type", 2)),
        expected_norm=_number(expected.norm),
        norm=_number(outcome.norm) if expected.norm else None,
        passed_norm=call.passed_norm(arguments),
        names=case.names,
        groups=form.groups or (),
        need_clip=form.need_clip or (),
        times=[form.listed.count(number) for number in range(len(case.gradients))] if form.listed else (),
        infinite_norm_gives_nan=call.infinite_norm_gives_nan,
    )


def _number(norm: Dense | None) -> float | None:
    return float(norm.values().reshape(())) if norm and norm.array.size == 1 else None
