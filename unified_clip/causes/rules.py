"""Hypotheses about another rule: another coefficient, or another condition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from ..tensors.arithmetic import FORMATS
from ..tensors.norms import exact_norm
from .observation import Hypothesis, Observation

TWICE = "as if the coefficient were applied twice"

QUOTIENT = "as if the coefficient were {}(1, norm / threshold) instead of min(1, threshold / norm)"


def other_rules(call: Observation) -> Iterator[Hypothesis]:
    if not call.scalings:
        return
    if call.norm is not None:
        clipped = [tensor for number in call.counted if (tensor := call.after[number])]
        sentence = "the returned norm is the norm of the clipped gradients, not of the unclipped gradients"
        yield Hypothesis("norm after the clip", sentence, returned=[exact_norm(clipped, call.p, "float64")])
    unchanged = [1.0] * len(call.before)
    yield Hypothesis("not clipped", "as if nothing were clipped: the gradients are unchanged", coefs=unchanged)
    if call.by == "per slice":
        return
    yield from _twice(call)
    threshold, coefs = call.threshold, call.expected_coefs
    if threshold < math.inf:
        sentence = "as if the call used the square of the threshold instead of the threshold"
        yield Hypothesis("another threshold", sentence, threshold=threshold**2)
        if threshold != int(threshold):
            sentence = "as if the call used the integer part of the threshold"
            yield Hypothesis("another threshold", sentence, threshold=float(int(threshold)))
            sentence = "as if the threshold were rounded to an integer"
            yield Hypothesis("another threshold", sentence, threshold=float(round(threshold)))
    if threshold == 0:
        yield Hypothesis("not clipped", "as if a threshold of 0 switched clipping off", coefs=unchanged)
    if call.by == "global":
        sentence = "as if the threshold limited each element instead of the norm"
        limited = {n: np.clip(before.values(), -threshold, threshold) for n, before, *_ in call.sides()}
        yield Hypothesis("another rule", sentence, elements=limited)
        first = next((coefs[number] for number in call.counted), math.nan)
        sentence = "as if the coefficient were returned in place of the norm"
        yield Hypothesis("coefficient", sentence, returned=[first])
    if call.by == "per group" or not 0 < threshold < math.inf:
        return
    sums = [n + call.eps for n in call.norms]
    quotients = [threshold / n if i in call.counted and n else 1.0 for i, n in enumerate(sums)]
    if any(quotient > 1 for quotient in quotients):
        sentence = "as if gradients with a small norm were scaled up to the threshold"
        yield Hypothesis("scaled gradients", sentence, coefs=quotients)
    conditions = {
        "the square of the norm was above the threshold": (2, 1),
        "the norm was above the square of the threshold": (1, 2),
    }
    for words, (of_norm, of_threshold) in conditions.items():
        is_scaled = [n**of_norm > threshold**of_threshold for n in call.norms]
        scaled = [each if condition else 1.0 for each, condition in zip(quotients, is_scaled, strict=True)]
        sentence = f"as if gradients were scaled to the threshold only if {words}"
        yield Hypothesis("another condition", sentence, coefs=scaled, is_rare=True)
    sentence = "as if only gradients with a norm below the threshold were scaled to the threshold"
    yield Hypothesis("another condition", sentence, coefs=[max(each, 1.0) for each in quotients], is_rare=True)
    for choose in (min, max):
        inverse = [choose(1 / each if each else math.inf, 1.0) for each in quotients]
        yield Hypothesis("coefficient", QUOTIENT.format(choose.__name__), coefs=inverse)


def _twice(call: Observation) -> Iterator[Hypothesis]:
    tolerance = max(2.0 ** (1 - FORMATS[each.dtype].precision) for each in call.scalings.values())
    squares = [coef * coef for coef in call.expected_coefs]
    yield Hypothesis("clipped twice", TWICE, coefs=squares, tolerance=tolerance)
    if wrong := call.clearly_wrong or call.wrong:
        coefs = [squares[n] if n in wrong else coef for n, coef in enumerate(call.expected_coefs)]
        sentence, key = f"{TWICE} to {call.names_of(wrong)}", f"{TWICE} to some"
        is_rare = len(wrong) == len(call.counted)
        yield Hypothesis(
            "clipped twice", sentence, (), None, None, None, coefs, None, tolerance, wrong, key, is_rare=is_rare
        )
    clipped = {number: call.expected_coefs[number] * n for number, n in call.own.items()}
    again = call.coefficients(Hypothesis(norms=call.norms_by(call.by, partial(call.norm_over, own=clipped))))
    coefs = [first * second for first, second in zip(call.expected_coefs, again, strict=True)]
    yield Hypothesis("clipped twice", "as if all gradients were clipped twice", coefs=coefs, tolerance=tolerance)
