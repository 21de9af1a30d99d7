"""Known mistakes in the rule, and the norm and the coefficients that each one gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from ...tensors.arithmetic import FORMATS, nearest_float
from ...tensors.types import Sparse
from ..suite.public_calls import PYTORCH_EPS
from . import accumulation, oracle
from .evidence import Observation, combined

EPS = (0.0, PYTORCH_EPS, 1e-12, 1e-8, 1e-7, 1e-5)
"""Values of eps in common use."""

NARROW = ("bfloat16", "float16")
"""The coarser dtype first: most of its numbers are also numbers of the other."""

IN_FLOAT32 = 2.0**-22
"""Relative error of a coefficient that is computed in float32."""

Coefficients = Callable[[], Sequence[float]]


class Hypothesis(NamedTuple):
    """The norm and the coefficients of a mistake."""

    kind: str
    """'' if the numbers cannot distinguish it from another mistake."""

    sentence: str
    coefficients: Coefficients
    """For each gradient."""

    norms: Sequence[float] = ()
    """The possible returned norms. Empty if the correct norm is returned."""

    room: float = 0.0
    """Relative error of the coefficients that the mistake itself allows."""


def all_of(evidence: Observation, slack: float) -> Iterator[Hypothesis]:
    """Yield every possible mistake for a case, the simplest first. Mistakes closer than `slack` are merged."""
    if "axes" in evidence.case.arguments:
        yield from _other_norms(evidence)
        return
    is_whole = evidence.case.call.by_total_norm and not evidence.case.call_form.groups
    yield from _other_eps(evidence)
    yield from _in_float32(evidence)
    yield from _in_16_bits(evidence)
    yield from _lost(evidence)
    yield from _not_counted(evidence, slack) if is_whole else ()
    yield from _other_norms(evidence)
    if not evidence.case.call_form.groups:
        yield from _other_orders(evidence)
        yield from _unsummed_rows(evidence)
    yield from _twice(evidence)


def _other_eps(evidence: Observation) -> Iterator[Hypothesis]:
    due, room = evidence.case.call.eps, accumulation.noise(evidence.count) * evidence.lone_norm
    for eps in EPS:
        if eps != due:
            coefficients = partial(evidence.coefficients, evidence.norms, eps=eps)
            kind = "" if abs(eps - due) <= room else "eps"
            yield Hypothesis(kind, f"as with eps {eps:g} where {due:g} is due", coefficients)


def _other_norms(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield clips by a wrong norm: per tensor, total, or measured."""
    call, call_form = evidence.case.call, evidence.case.call_form
    is_sliced = "axes" in evidence.case.arguments
    own = [evidence.rounded(evidence.own_norms.get(number, 0.0)) for number in range(len(evidence.given))]
    all_by_one = [evidence.together(evidence.counted)] * len(own)
    due = "one norm over all" if call.by_total_norm else "its own norm"
    if call_form.groups or is_sliced:
        due = "the norm of its group" if call_form.groups else "the norm of each slice"
    others = []
    if is_sliced or _differ(own, evidence.norms):
        others.append(("per tensor", "each tensor is clipped by its own norm", own))
    if _differ(all_by_one, evidence.norms) and (call_form.groups or not call.by_total_norm):
        others.append(("global", "all are clipped by one norm over all", all_by_one))
    for kind, who, norms in others:
        for eps in (call.eps, *EPS):
            coefficients = partial(evidence.coefficients, norms, eps=eps)
            yield Hypothesis(kind, f"as when {who}, where {due} is due", coefficients)
            yield Hypothesis(kind, f"as when {who}, where {due} is due", coefficients, norms[-1:])
    if call.passed_norm(evidence.case.arguments) is not None:
        sentence = "as when the norm is measured, where one is given"
        yield _by(evidence, "given norm", sentence, all_by_one)


def _unsummed_rows(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield norms that count repeated rows of sparse gradients one by one."""
    sparse = {n: g.values for n, g in enumerate(evidence.case.gradients) if isinstance(g, Sparse)}
    own = evidence.own_norms | {n: oracle.norm([values], evidence.order, "float64") for n, values in sparse.items()}
    norms = [evidence.rounded(own.get(number, 0.0)) for number in range(len(evidence.given))]
    if evidence.case.call.by_total_norm:
        whole = combined([own[number] for number in evidence.counted], evidence.order)
        norms = [evidence.rounded(whole)] * len(norms)
    if sparse and _differ(norms, evidence.norms):
        yield _by(evidence, "rows", "as when rows that are given more than once are not summed for the norm", norms)


def _differ(norms: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether tensors that are not zero have other norms."""
    return any(n and n != other for n, other in zip(norms, others, strict=True))


def _lost(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield mistakes by which some gradients are unchanged or zero, and the others clipped."""
    wrong = {number: trace for number, trace in evidence.traces.items() if not trace.is_due}
    apart = {n: 1.0 if trace.is_given else 0.0 for n, trace in wrong.items() if trace.is_given or trace.is_zero}
    if not apart:
        return
    names = evidence.named(apart)
    what = f"{names} came back as given" if all(apart.values()) else f"zeros came back for {names}"

    def coefficients(norms: Sequence[float]) -> list[float]:
        return [apart.get(number, c) for number, c in enumerate(evidence.coefficients(norms))]

    yield Hypothesis("not scaled", f"{what}, though the norm counts {names}", partial(coefficients, evidence.norms))
    if evidence.case.call.by_total_norm and not evidence.case.call_form.groups:
        n = evidence.together(number for number in evidence.counted if number not in apart)
        norms = [n] * len(evidence.given)
        yield Hypothesis("left out", f"{what}, and the norm leaves out {names}", partial(coefficients, norms), [n])


def _not_counted(evidence: Observation, slack: float) -> Iterator[Hypothesis]:
    """Yield norms that leave out one gradient, or all of one rank or dtype, or count too many."""
    counted, size = evidence.counted, len(evidence.given)

    def hypothesis(n: float, who: str) -> Hypothesis:
        is_noise = abs(n - whole) <= accumulation.noise(evidence.count) * whole
        kind = "" if is_noise else "left out"
        return Hypothesis(kind, f"as when {who} out of the norm", partial(evidence.coefficients, [n] * size), [n])

    whole = evidence.together(counted)
    singles = sorted((evidence.together(n for n in counted if n != one), one) for one in counted)
    run: list[int] = []
    for (n, one), (following, _) in pairwise([*singles, (math.inf, -1)]):
        run.append(one)
        if following - n > 2 * slack * n:
            who = f"{evidence.named(run)} is left" if len(run) == 1 else f"one of {evidence.named(run)} is left"
            yield hypothesis(n, who)
            run = []
    gradients = {number: evidence.given[number] for number in counted}
    for kinds in (
        {n: g and len(g.shape) for n, g in gradients.items()},
        {n: g and g.dtype for n, g in gradients.items()},
    ):
        for kind in dict.fromkeys(kinds.values()):
            left = [number for number in counted if kinds[number] == kind]
            if 1 < len(left) < len(counted):
                rest = evidence.together(number for number in counted if number not in left)
                yield hypothesis(rest, f"{evidence.named(left)} are left")
    beside = [number for number in evidence.own_norms if number not in evidence.counted_set]
    if beside:
        n = evidence.together(evidence.own_norms)
        sentence = f"as when the norm counts {evidence.named(beside)}, which it should not"
        yield Hypothesis("need_clip", sentence, partial(evidence.coefficients, [n] * size), [n])


def _in_float32(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield squares accumulated in float32."""
    call = evidence.case.call
    if evidence.order != 2 or call.passed_norm(evidence.case.arguments) is not None or evidence.case.call_form.groups:
        return
    if call.by_total_norm:
        present = [gradient for number in evidence.counted if (gradient := evidence.given[number]) is not None]
        found = [(way, [n] * len(evidence.given), [n]) for way, n in accumulation.norms(present)]
    else:
        found = [(way, own, []) for way, own in accumulation.own_norms(evidence.given)]
    for way, norms, returned in found:
        sentence = f"as when the squares are added up in float32, {way}"
        yield Hypothesis("float32", sentence, partial(evidence.coefficients, norms), returned, IN_FLOAT32)


def _in_16_bits(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield a norm or a coefficient rounded to 16 bits."""
    for dtype in NARROW:
        precision, norms = FORMATS[dtype].precision, [nearest_float(n, dtype) for n in evidence.norms]
        returned, room = norms[:1] if evidence.case.call.by_total_norm else [], 0.0
        if evidence.norm is not None and _is_held_in(dtype, evidence.norm, evidence.due_norm):
            returned, room = [evidence.norm], 2.0**-precision
            norms = returned * len(norms)
        sentence = f"as when the norm is rounded to {dtype}"
        yield Hypothesis("16 bits", sentence, partial(evidence.coefficients, norms), returned, room)

        def rounded(dtype: str = dtype) -> list[float]:
            return [nearest_float(c, dtype) for c in evidence.coefficients(evidence.norms)]

        yield Hypothesis("16 bits", f"as when the coefficient is rounded to {dtype}", rounded)


def _is_held_in(dtype: str, norm: float, due: float | None) -> bool:
    """Return whether a norm is a number of 16 bits near the correct one, which is not."""
    if due is None or norm != nearest_float(norm, dtype):
        return False
    return 0 < abs(norm - due) <= 2.0 ** (3 - FORMATS[dtype].precision) * due


def _twice(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield gradients that are scaled twice, or clipped twice."""
    room = max((2.0 ** (1 - FORMATS[trace.dtype].precision) for trace in evidence.traces.values()), default=0.0)
    wrong = [number for number, trace in evidence.traces.items() if not trace.is_due]
    if not wrong:
        return

    def multiplied() -> list[float]:
        return [c * c if number in wrong else c for number, c in enumerate(evidence.coefficients(evidence.norms))]

    def clipped() -> list[float]:
        first = evidence.coefficients(evidence.norms)
        own = [c * evidence.own_norms.get(number, 0.0) for number, c in enumerate(first)]
        norms = [combined(own, evidence.order)] * len(own) if evidence.case.call.by_total_norm else own
        return [a * b for a, b in zip(first, evidence.coefficients(norms), strict=True)]

    who = "everything" if len(wrong) == len(evidence.counted) else evidence.named(wrong)
    yield Hypothesis("twice", f"as when the coefficient multiplies {who} twice", multiplied, room=room)
    yield Hypothesis("twice", "as when everything is clipped twice", clipped, room=room)


def _other_orders(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield norms of another order, or without the root."""
    for order in (1.0, 2.0, math.inf):
        if order != evidence.order:
            sentence = f"as with norm_type {order:g} where {evidence.order:g} is due"
            yield _by(evidence, "norm_type", sentence, evidence.norms_by(order))
    squares = [evidence.rounded(n * n) for n in evidence.norms_by(evidence.order)]
    yield _by(evidence, "norm_type", "as with the norm's square", squares)


def _by(evidence: Observation, kind: str, sentence: str, norms: Sequence[float]) -> Hypothesis:
    """Return the hypothesis that these norms clip, and that the first is returned."""
    return Hypothesis(kind, sentence, partial(evidence.coefficients, norms), norms[:1])


# -- tried if none of these fits


def computed_hypotheses(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield mistakes whose size is computed from the numbers."""
    if evidence.traces and "axes" not in evidence.case.arguments:
        yield from _other_threshold(evidence)
    norm, due = evidence.norm, evidence.due_norm
    if norm is None or due is None or evidence.order != 2:
        return
    size, bound = abs(norm - due) / due if due else math.inf, accumulation.bound(evidence.count)
    if size <= bound:
        sentence = f"the norm is off by {size:.1e}, which adding up {evidence.count} squares in float32 can do (up to "
        sentence += f"{bound:.1e}), and nothing else that was tried does"
        coefficients = partial(evidence.coefficients, [norm] * len(evidence.given))
        yield Hypothesis("float32", sentence, coefficients, [norm], IN_FLOAT32)


def _other_threshold(evidence: Observation) -> Iterator[Hypothesis]:
    """Yield the threshold that follows from the narrowest interval of coefficients."""
    due = evidence.case.call.threshold(evidence.case.arguments)
    counted = [(number, evidence.traces[number]) for number in evidence.counted if number in evidence.traces]
    clipped = {number: (trace.low, trace.high) for number, trace in counted if 0 < trace.high < 1}
    if not clipped:
        return
    number = min(clipped, key=lambda n: clipped[n][1] - clipped[n][0])
    coefficient = sum(clipped[number]) / 2
    limit = coefficient * (evidence.norms[number] + evidence.case.call.eps)
    sentence, kind = f"as with a threshold of {limit:.6g} where {due:.6g} is due", "threshold"
    if evidence.norm is None and len({evidence.norms[n] for n in clipped}) == 1:
        factor = due / limit if limit else math.inf
        sentence, kind = f"{sentence}, or with a norm that is {factor:.6g} times as large", "coefficient"
    yield Hypothesis(kind, sentence, partial(evidence.coefficients, evidence.norms, limit=limit), room=IN_FLOAT32)
