"""Compare what two runs begin a step with: the weights, and the gradients before the clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..causes.cause import names_text
from ..recording.rounding import GROWTH, ROUNDING
from .clips import SCALE
from .distances import distance, gradients_at, norms_distance, without_noise
from .factors import SAME_FACTOR, UNIT, Fit, Gradients, fit_all
from .finding import Finding, in_order
from .missing_clips import USE_VERIFY
from .pairs import Pair, step_at
from .run import Run
from .weights import other_gates, untransposed

WHOLE = 1e-5

SMALL_FACTOR = 1e-3
"""Other constants of a model can change all gradients by a factor that is closer to 1."""

COARSE = 8
"""Gradients of less precise dtypes than float32 can differ by this many ULP."""

UPDATE = 0.01
"""The elements of Adam's first update differ from 1 or -1 by less, if their gradients are larger than its eps."""


def clip_of_updates(a: Run, b: Run, pairs: Sequence[Pair]) -> Finding | None:
    """Find a clip of what Adam makes of the first gradients: all their elements become 1 or -1."""
    gradients = gradients_at(a, b, pairs, 1)
    for run, is_old in ((a, True), (b, False)):
        both = [(each.old, each.new) if is_old else (each.new, each.old) for each in gradients]
        large = [
            (own[big], other[big])
            for own, other in both
            if (big := np.abs(other) > 0.1 * np.abs(other).max(initial=0.0)).any()
        ]
        is_sign = all(np.allclose(own, np.sign(other), atol=UPDATE) for own, other in large)
        if large and is_sign and not all(np.allclose(np.abs(other), 1, atol=UPDATE) for _, other in large):
            sentence = (
                f"{run.name} clips the updates that its optimizer computes, and the other run clips the gradients"
            )
            old, new = in_order("updates", "gradients", is_old)
            fix = "Put the clip before the optimizer in both runs"
            return Finding(1, "clipping after the step", "place of the clip", old, new, sentence, fix)
    return None


def compare_gradients(
    a: Run, b: Run, pairs: Sequence[Pair], number: int, before: float, max_ulp: float | None = None
) -> tuple[list[Finding], float | None]:
    """Compare the gradients before the clip of one step.

    before: The largest difference of the earlier steps, in ULP. Rounding grows by at most GROWTH in a step.
    max_ulp: Replaces the limit for rounding.

    Returns:
        The findings, and the largest difference of this step in ULP, or None if no gradient was compared.
    """
    if bad := _not_finite(a, b, pairs, number):
        return [bad], math.inf
    gradients = gradients_at(a, b, pairs, number)
    totals = a.total_norm(number), b.total_norm(number)
    of_norms = norms_distance(a, b, without_noise(pairs, a, b, number), number)
    if of_norms is None and not gradients:
        return [], None
    most = max(distance(gradients, totals), of_norms or 0.0)
    rounding = max(ROUNDING, COARSE * max(a.gradient_unit, b.gradient_unit) / UNIT)
    if most <= (max(rounding, GROWTH * before) if max_ulp is None else max_ulp):
        return [], most
    fits = fit_all(gradients, max(totals)) if gradients else None
    is_covered = len(gradients) >= len(
        [pair for pair in without_noise(pairs, a, b, number) if _are_known(a, b, pair, number)]
    )
    is_scaled = fits is not None and (number == 1 or not any(fit.decay for fit in fits.values()))
    if fits is not None and is_covered and is_scaled and (found := list(_of_fits(a, b, fits, number))):
        return found, most
    if not gradients and (factor := _whole_factor(*totals)):
        return [_scale_finding(a, b, factor, "every gradient", number)], most
    return [_other(a, b, pairs, gradients, number, most)], most


def _whole_factor(old: float, new: float) -> float | None:
    """Without samples, a ratio of the norms that is a whole number shows a factor of the gradients."""
    low, high = sorted((old, new))
    factor = round(high / low) if low > 0 and high < math.inf else 0
    if factor < 2 or not math.isclose(high, factor * low, rel_tol=WHOLE):
        return None
    return float(factor) if new > old else 1 / factor


def _are_known(a: Run, b: Run, pair: Pair, number: int) -> bool:
    """Return whether both runs have samples of the gradient, in an order of elements that is known."""
    steps = [each for run, names in ((a, pair.old), (b, pair.new)) for each in step_at(run, names, number)]
    return pair.is_single and not pair.are_rearranged and all(each.raw is not None for each in steps)


def _not_finite(a: Run, b: Run, pairs: Sequence[Pair], number: int) -> Finding | None:
    for run, other, side in ((a, b, 0), (b, a, 1)):
        bad = [
            pair.name
            for pair in pairs
            if any(not math.isfinite(each.raw_norm or 0.0) for each in step_at(run, pair.sides[side], number))
        ]
        good = all(
            math.isfinite(each.raw_norm or 0.0)
            for pair in pairs
            for each in step_at(other, pair.sides[1 - side], number)
        )
        if bad and good:
            sentence = f"only the gradients of {run.name} are not finite. Affected parameters: {names_text(bad)}"
            old, new = in_order("not finite", "finite", side == 0)
            return Finding(number, "not finite in one run", "gradients before the clip", old, new, sentence)
    return None


def _of_fits(a: Run, b: Run, fits: dict[Pair, Fit], number: int) -> Iterator[Finding]:
    decayed = {pair: fit.decay for pair, fit in fits.items() if fit.decay}
    if decayed:
        yield _decay_finding(a, b, decayed, number)
    factors: dict[float, list[Pair]] = {}
    for pair, fit in fits.items():
        key = next((each for each in factors if math.isclose(each, fit.factor, rel_tol=SAME_FACTOR)), fit.factor)
        factors.setdefault(key, []).append(pair)
    for factor, scaled in factors.items():
        if not math.isclose(factor, 1, rel_tol=SMALL_FACTOR):
            whose = (
                "every gradient" if len(factors) == 1 else f"the gradients of {names_text([p.name for p in scaled])}"
            )
            yield _scale_finding(a, b, factor, whose, number)


def _decay_finding(a: Run, b: Run, decayed: dict[Pair, float], number: int) -> Finding:
    decay = float(f"{max(decayed.values(), key=abs):.3g}")
    run, other = (b, a) if decay > 0 else (a, b)
    names = names_text([pair.name for pair in decayed])
    sentence = (
        f"{run.name} adds {abs(decay):.6g} times the weight to the gradients of {names} before the clip, as an L2 "
        f"regularizer in the loss does. {other.name} does not. An optimizer adds its weight decay after the clip"
    )
    fix = "remove this regularizer from the loss"
    if run is a:
        fix = f"add {abs(decay) / 2:.6g} times the sum of the squares of these weights to the loss"
    old, new = in_order(f"{abs(decay):.6g} * weight", "none", run is a)
    return Finding(
        number,
        "weight decay before the clip",
        "weight decay before the clip",
        old,
        new,
        sentence,
        f"In {b.name}, {fix}",
    )


def _scale_finding(a: Run, b: Run, factor: float, whose: str, number: int) -> Finding:
    larger, smaller = (b, a) if abs(factor) > 1 else (a, b)
    times = factor if abs(factor) > 1 else 1 / factor
    old, new = in_order("1", f"{times:.6g}", larger is b)
    sentence = f"{whose} of {larger.name} is {times:.6g} times as large as in {smaller.name}"
    if whose != "every gradient":
        sentence = f"{whose} are {times:.6g} times as large in {larger.name} as in {smaller.name}"
    passes = [_backward_calls(run, number) for run in (larger, smaller)]
    if None not in passes and passes[0] != passes[1] and _is_ratio(times, *passes):
        sentence += f". {a.name} runs {_passes(a, number)} before the step, and {b.name} runs {_passes(b, number)}"
        fix = f"{larger.name} adds up the gradients of its passes: divide each loss by the number of passes"
        return Finding(number, "gradient accumulation", "scale of the gradients", old, new, sentence, fix)
    change = "Divide" if larger is b else "Multiply"
    fix = f"{change} the loss of {b.name} by {times:.6g}. Often, one side sums the loss, and the other takes the mean"
    if _changes_after_clip(larger, times, number):
        sentence += f". {larger.name} divides its gradients by {times:.6g} after the clip"
        return Finding(
            number, "clipping before unscaling", SCALE, old, new, sentence,
            "Divide the gradients before the clip",
        )  # fmt: skip
    return Finding(number, "scaled gradients", "scale of the gradients", old, new, sentence, fix)


def _changes_after_clip(run: Run, times: float, number: int) -> bool:
    for each in run.at(number):
        result = each.clipped
        if result is not None and each.gradient is not None and each.step and each.step.tensors and result.any():
            factor = float(result @ each.gradient) / float(result @ result)
            return abs(factor * times - 1) <= 0.01 * abs(times - 1)
    return False


def _backward_calls(run: Run, number: int) -> int | None:
    return next((each.step.backward_calls for each in run.at(number) if each.step), None)


def _passes(run: Run, number: int) -> str:
    count = _backward_calls(run, number)
    return f"{count} backward pass{'es' * (count != 1)}"


def _is_ratio(times: float, more: int | None, fewer: int | None) -> bool:
    if not more or not fewer:
        return False
    return math.isclose(abs(times), max(more, fewer) / min(more, fewer), rel_tol=1e-3)


def _other(a: Run, b: Run, pairs: Sequence[Pair], gradients: Sequence[Gradients], number: int, most: float) -> Finding:
    totals = a.total_norm(number), b.total_norm(number)
    zero = [run for run in (a, b) if run.is_zero(number)]
    if len(zero) == 1:
        sentence = (
            f"all gradients of {zero[0].name} are 0 before the clip, and some gradients of the other run are not. "
            "Check whether zero_grad() runs between backward() and the clip. Also check for a detach() or "
            "stop_gradient between the loss and the clipped parameters"
        )
        old, new = in_order("0", "not 0", zero[0] is a)
        return Finding(number, "other gradients", "gradients before the clip", old, new, sentence)
    if uncleared := _uncleared(a, b, pairs, number):
        return uncleared
    if square := untransposed(a, b, pairs, number):
        return square
    if gates := other_gates(a, b, pairs, number):
        return gates
    passes = [_backward_calls(run, number) for run in (a, b)]
    sentence = "the weights are the same, and the gradients differ before the clip"
    if number > 1:
        sentence = (
            f"up to step {number - 1}, the runs follow the same recipe. Then the gradients differ before the clip"
        )
    if None not in passes and passes[0] != passes[1]:
        sentence += f". {a.name} runs {_passes(a, number)} before the step, and {b.name} runs {_passes(b, number)}"
        return Finding(number, "gradient accumulation", "backward passes of a step", passes[0], passes[1], sentence)
    shares = most * UNIT
    if 0 < shares < 1e-3:
        sentence += (
            f", by at most {shares:.2g} of the total norm. Other data would change them more. Compare the constants "
            "of both models, such as the eps of normalization layers, and formulas such as GELU by tanh or erf"
        )
        return Finding(number, "other data or loss", "gradients before the clip", "", "", sentence)
    if only := _only_some(a, gradients, totals):
        sentence = (
            f"the gradients of {names_text(only)} differ before the clip. Those of the other parameters agree, so the "
            "data and the loss may be the same. Compare the code that uses or changes only these parameters"
        )
        return Finding(number, "other gradients", "gradients before the clip", "", "", sentence)
    is_unknown = number > 1 and any(
        each.weight is None
        for run, side in ((a, 0), (b, 1))
        for pair in pairs
        for each in step_at(run, pair.sides[side], number)
    )
    if is_unknown:
        sentence = (
            f"the gradients differ before the clip of step {number}. The weights before this step were not recorded"
        )
        fix = "Compare the updates of the earlier steps, then the data, the forward pass and the loss"
        return Finding(number, "other gradients", "gradients before the clip", "", "", sentence, fix)
    counts = [max(map(len, run.parameters.values())) for run in (a, b)]
    if counts[0] != counts[1] and bool(a.networks) != bool(b.networks):
        run, other = (b, a) if a.networks else (a, b)
        sentence = (
            f"the gradients of step {number} of {other.name} and of clip {number} of {run.name} differ. The steps of "
            f"{run.name} were not recorded, so these can be gradients of micro-batches"
        )
        return Finding(number, "other gradients", "gradients before the clip", "", "", sentence, USE_VERIFY)
    unknown = [pair.name for pair in pairs if pair.order is None and pair.is_single]
    if unknown and number == 1:
        sentence = f"the gradients differ before the clip. The weights of {names_text(unknown)} were not recorded"
        fix = "Compare these weights, the data, the forward pass and the loss"
        return Finding(number, "other gradients", "gradients before the clip", "", "", sentence, fix)
    return Finding(
        number, "other data or loss", "gradients before the clip", "", "", sentence,
        "Compare the data, the forward pass and the loss. Turn dropout off on both sides",
    )  # fmt: skip


def _only_some(a: Run, gradients: Sequence[Gradients], totals: tuple[float, float]) -> list[str]:
    """Return the gradients that differ, if others of the same network agree. Other data would change all of them."""
    are_apart = {each.pair: distance([each], totals) > ROUNDING for each in gradients if each.new.any()}
    networks = {a.network_of(pair.old[0]) for pair, is_apart in are_apart.items() if is_apart}
    alike = [pair for pair, is_apart in are_apart.items() if not is_apart and a.network_of(pair.old[0]) in networks]
    return [pair.name for pair, is_apart in are_apart.items() if is_apart] if alike else []


def _uncleared(a: Run, b: Run, pairs: Sequence[Pair], number: int) -> Finding | None:
    """Find out whether the gradients of one run contain those of its step before."""
    if number == 1:
        return None
    now, before = ({each.pair: each for each in gradients_at(a, b, pairs, step)} for step in (number, number - 1))
    limit = 4 * ROUNDING * UNIT * max(a.total_norm(number), b.total_norm(number))
    for run, side in ((a, 0), (b, 1)):
        for clipped in (True, False):
            rests = []
            for pair, each in now.items():
                earlier = before.get(pair)
                steps = step_at(run, pair.sides[side], number - 1)
                if earlier is None or len(steps) != 1:
                    continue
                clips = steps[0].clips
                coef = clips[-1].coef if clipped and clips and clips[-1].coef is not None else 1.0
                kept = (earlier.old, earlier.new)[side] * coef
                own, other = ((each.old, each.new), (each.new, each.old))[side]
                rests.append(float(np.abs(own - other - kept).max(initial=0.0)))
            if rests and len(rests) == len(now) and max(rests) <= limit:
                sentence = f"the gradients of {run.name} at step {number} still contain those of step {number - 1}"
                old, new = in_order("not cleared", "cleared", run is a)
                fix = f"In {run.name}, clear the gradients before each backward pass"
                return Finding(
                    number, "gradients are not cleared", "gradients before the step", old, new, sentence, fix
                )
    return None
