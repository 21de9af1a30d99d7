"""Compare what two runs begin a step with: the weights, and the gradients before the clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..causes.cause import CauseKind, names_text
from ..recording.rounding import GROWTH, ROUNDING
from .clips import SCALE
from .distances import SAME_FACTOR, UNIT, Fit, Gradients, distance, fit_all, gradients_at, norms_distance, without_noise
from .finding import Finding, in_order
from .missing_clips import USE_VERIFY
from .pairs import Both, Pair, PairedRuns
from .run import Run
from .weights import other_gates, untransposed

FIELD = "gradients before the clip"

WHOLE = 1e-5

SMALL_FACTOR = 1e-3
"""Other constants of a model can change all gradients by a factor that is closer to 1."""

COARSE = 8
"""Gradients of less precise dtypes than float32 can differ by this many ULP."""

UPDATE = 0.01
"""The elements of Adam's first update differ from 1 or -1 by less, if their gradients are larger than its eps."""


def clip_of_updates(runs: PairedRuns) -> Finding | None:
    """Find a clip of what Adam makes of the first gradients: all their elements become 1 or -1."""
    gradients = gradients_at(runs, 1)
    for run, is_old in ((runs.a, True), (runs.b, False)):
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
            fix = "Put the clip before the optimizer in both runs"
            values = in_order("updates", "gradients", is_old)
            return Finding(1, "clipping after the step", "place of the clip", sentence, fix, *values)
    return None


def compare_gradients(
    runs: PairedRuns, number: int, before: float, max_ulp: float | None = None
) -> tuple[list[Finding], float | None]:
    """Compare the gradients before the clip of one step.

    before: The largest difference of the earlier steps, in ULP. Rounding grows by at most GROWTH in a step.
    max_ulp: Replaces the limit for rounding.

    Returns:
        The findings, and the largest difference of this step in ULP, or None if no gradient was compared.
    """
    if bad := _not_finite(runs, number):
        return [bad], math.inf
    gradients, totals = gradients_at(runs, number), runs.total_norms(number)
    visible = without_noise(runs, number)
    of_norms = norms_distance(runs, visible, number)
    if of_norms is None and not gradients:
        return [], None
    most = max(distance(gradients, totals), of_norms or 0.0)
    rounding = max(ROUNDING, COARSE * max(run.gradient_unit for run in runs.sides) / UNIT)
    if most <= (max(rounding, GROWTH * before) if max_ulp is None else max_ulp):
        return [], most
    fits = fit_all(gradients, max(totals)) if gradients else None
    is_covered = len(gradients) >= sum(map(_has_samples, visible))
    is_scaled = fits is not None and (number == 1 or not any(fit.decay for fit in fits.values()))
    if fits is not None and is_covered and is_scaled and (found := list(_of_fits(runs, fits, number))):
        return found, most
    if not gradients and (factor := _whole_factor(*totals)):
        return [_scale_finding(runs, factor, "every gradient", number)], most
    return [_other(runs, number, gradients, most)], most


def _whole_factor(old: float, new: float) -> float | None:
    """Without samples, a ratio of the norms that is a whole number shows a factor of the gradients."""
    low, high = sorted((old, new))
    factor = round(high / low) if low > 0 and high < math.inf else 0
    if factor < 2 or not math.isclose(high, factor * low, rel_tol=WHOLE):
        return None
    return float(factor) if new > old else 1 / factor


def _has_samples(each: Both) -> bool:
    """Return whether both runs have samples of the gradient, in an order of elements that is known."""
    return each.pair.is_single and not each.pair.are_rearranged and all(step.raw is not None for step in each.sides)


def _not_finite(runs: PairedRuns, number: int) -> Finding | None:
    both = runs.at(number)
    bad = [
        [each for each in both if not all(math.isfinite(step.raw_norm or 0.0) for step in each.every[side])]
        for side in (0, 1)
    ]
    if bool(bad[0]) == bool(bad[1]):
        return None
    is_old = bool(bad[0])
    names = names_text([each.pair.name for each in bad[0] or bad[1]])
    sentence = f"only the gradients of {runs.sides[not is_old].name} are not finite. Affected parameters: {names}"
    return Finding(number, "not finite in one run", FIELD, sentence, "", *in_order("not finite", "finite", is_old))


# -- gradients that follow from those of the other run


def _of_fits(runs: PairedRuns, fits: Mapping[Pair, Fit], number: int) -> Iterator[Finding]:
    decayed = {pair: fit.decay for pair, fit in fits.items() if fit.decay}
    if decayed:
        yield _decay_finding(runs, decayed, number)
    factors: dict[float, list[str]] = {}
    for pair, fit in fits.items():
        key = next((each for each in factors if math.isclose(each, fit.factor, rel_tol=SAME_FACTOR)), fit.factor)
        factors.setdefault(key, []).append(pair.name)
    for factor, names in factors.items():
        if not math.isclose(factor, 1, rel_tol=SMALL_FACTOR):
            whose = "every gradient" if len(factors) == 1 else f"the gradients of {names_text(names)}"
            yield _scale_finding(runs, factor, whose, number)


def _decay_finding(runs: PairedRuns, decayed: Mapping[Pair, float], number: int) -> Finding:
    decay = float(f"{max(decayed.values(), key=abs):.3g}")
    run, other = (runs.b, runs.a) if decay > 0 else runs.sides
    names = names_text([pair.name for pair in decayed])
    sentence = (
        f"{run.name} adds {abs(decay):.6g} times the weight to the gradients of {names} before the clip, as an L2 "
        f"regularizer in the loss does. {other.name} does not. An optimizer adds its weight decay after the clip"
    )
    fix = f"In {runs.b.name}, remove this regularizer from the loss"
    if run is runs.a:
        fix = f"In {runs.b.name}, add {abs(decay) / 2:.6g} times the sum of the squares of these weights to the loss"
    values = in_order(f"{abs(decay):.6g} * weight", "none", run is runs.a)
    return Finding(number, "weight decay before the clip", "weight decay before the clip", sentence, fix, *values)


def _scale_finding(runs: PairedRuns, factor: float, whose: str, number: int) -> Finding:
    larger, smaller = (runs.b, runs.a) if abs(factor) > 1 else runs.sides
    times = factor if abs(factor) > 1 else 1 / factor
    values = in_order("1", f"{times:.6g}", larger is runs.b)
    sentence = f"{whose} of {larger.name} is {times:.6g} times as large as in {smaller.name}"
    if whose != "every gradient":
        sentence = f"{whose} are {times:.6g} times as large in {larger.name} as in {smaller.name}"
    kind: CauseKind = "scaled gradients"
    field = "scale of the gradients"
    change = "Divide" if larger is runs.b else "Multiply"
    fix = (
        f"{change} the loss of {runs.b.name} by {times:.6g}. Often, one side sums the loss, and the other takes the "
        "mean"
    )
    passes = _passes(runs, number)
    if passes and math.isclose(abs(times), max(passes) / (min(passes) or math.nan), rel_tol=1e-3):
        kind = "gradient accumulation"
        sentence += _passes_text(runs, passes)
        fix = f"{larger.name} adds up the gradients of its passes: divide each loss by the number of passes"
    elif _changes_after_clip(larger, times, number):
        kind, field = "clipping before unscaling", SCALE
        sentence += f". {larger.name} divides its gradients by {times:.6g} after the clip"
        fix = "Divide the gradients before the clip"
    return Finding(number, kind, field, sentence, fix, *values)


def _changes_after_clip(run: Run, times: float, number: int) -> bool:
    for each in run.at(number):
        result = each.clipped
        if result is not None and each.gradient is not None and each.step and each.step.tensors and result.any():
            factor = float(result @ each.gradient) / float(result @ result)
            return abs(factor * times - 1) <= 0.01 * abs(times - 1)
    return False


def _passes(runs: PairedRuns, number: int) -> tuple[int, int] | None:
    """Return the numbers of backward passes before the step, if they are known and differ."""
    old, new = (next((each.step.backward_calls for each in run.at(number) if each.step), None) for run in runs.sides)
    return None if old is None or new is None or old == new else (old, new)


def _passes_text(runs: PairedRuns, passes: tuple[int, int]) -> str:
    counts = [f"{count} backward pass{'es' * (count != 1)}" for count in passes]
    return f". {runs.a.name} runs {counts[0]} before the step, and {runs.b.name} runs {counts[1]}"


# -- gradients that do not


def _other(runs: PairedRuns, number: int, gradients: Sequence[Gradients], most: float) -> Finding:
    def finding(sentence: str, fix: str = "", kind: CauseKind = "other gradients") -> Finding:
        return Finding(number, kind, FIELD, sentence, fix)

    zero = [run for run in runs.sides if run.is_zero(number)]
    if len(zero) == 1:
        sentence = (
            f"all gradients of {zero[0].name} are 0 before the clip, and some gradients of the other run are not. "
            "Check whether zero_grad() runs between backward() and the clip. Also check for a detach() or "
            "stop_gradient between the loss and the clipped parameters"
        )
        values = in_order("0", "not 0", zero[0] is runs.a)
        return Finding(number, "other gradients", FIELD, sentence, "", *values)
    if found := _uncleared(runs, number) if number > 1 else untransposed(runs) or other_gates(runs):
        return found
    sentence = "the weights are the same, and the gradients differ before the clip"
    if number > 1:
        sentence = (
            f"up to step {number - 1}, the runs follow the same recipe. Then the gradients differ before the clip"
        )
    if passes := _passes(runs, number):
        sentence += _passes_text(runs, passes)
        return Finding(number, "gradient accumulation", "backward passes of a step", sentence, "", *passes)
    if 0 < most * UNIT < 1e-3:
        sentence += (
            f", by at most {most * UNIT:.2g} of the total norm. Other data would change them more. Compare the "
            "constants of both models, such as the eps of normalization layers, and formulas such as GELU by tanh or "
            "erf"
        )
        return finding(sentence, kind="other data or loss")
    if only := _only_some(runs, gradients, number):
        return finding(
            f"the gradients of {names_text(only)} differ before the clip. Those of the other parameters agree, so the "
            "data and the loss may be the same. Compare the code that uses or changes only these parameters"
        )
    if number > 1 and any(step.weight is None for each in runs.at(number) for side in each.every for step in side):
        return finding(
            f"the gradients differ before the clip of step {number}. The weights before this step were not recorded",
            "Compare the updates of the earlier steps, then the data, the forward pass and the loss",
        )
    counts = [max(map(len, run.parameters.values())) for run in runs.sides]
    if counts[0] != counts[1] and bool(runs.a.networks) != bool(runs.b.networks):
        run, other = (runs.b, runs.a) if runs.a.networks else runs.sides
        return finding(
            f"the gradients of step {number} of {other.name} and of clip {number} of {run.name} differ. The steps of "
            f"{run.name} were not recorded, so these can be gradients of micro-batches",
            USE_VERIFY,
        )
    unknown = [pair.name for pair in runs.pairs if pair.order is None and pair.is_single]
    if unknown and number == 1:
        return finding(
            f"the gradients differ before the clip. The weights of {names_text(unknown)} were not recorded",
            "Compare these weights, the data, the forward pass and the loss",
        )
    fix = "Compare the data, the forward pass and the loss. Turn dropout off on both sides"
    return finding(sentence, fix, "other data or loss")


def _only_some(runs: PairedRuns, gradients: Sequence[Gradients], number: int) -> list[str]:
    """Return the gradients that differ, if others of the same network agree. Other data would change all of them."""
    totals, networks = runs.total_norms(number), {pair: runs.a.network_of(pair.old[0]) for pair in runs.pairs}
    are_apart = {each.pair: distance([each], totals) > ROUNDING for each in gradients if each.new.any()}
    apart = [pair for pair, is_apart in are_apart.items() if is_apart]
    alike = {networks[pair] for pair, is_apart in are_apart.items() if not is_apart}
    return [pair.name for pair in apart] if any(networks[pair] in alike for pair in apart) else []


def _uncleared(runs: PairedRuns, number: int) -> Finding | None:
    """Find out whether the gradients of one run contain those of its step before."""
    now, before = ({each.pair: each for each in gradients_at(runs, step)} for step in (number, number - 1))
    limit = 4 * ROUNDING * UNIT * max(runs.total_norms(number))
    for side, run in enumerate(runs.sides):
        for clipped in (True, False):
            rests = []
            for pair, each in now.items():
                if (earlier := before.get(pair)) is None:
                    continue
                clips = runs.steps[pair][number - 2].sides[side].clips
                coef = clips[-1].coef if clipped and clips and clips[-1].coef is not None else 1.0
                kept = (earlier.old, earlier.new)[side] * coef
                own, other = ((each.old, each.new), (each.new, each.old))[side]
                rests.append(float(np.abs(own - other - kept).max(initial=0.0)))
            if rests and len(rests) == len(now) and max(rests) <= limit:
                sentence = f"the gradients of {run.name} at step {number} still contain those of step {number - 1}"
                fix = f"In {run.name}, clear the gradients before each backward pass"
                values = in_order("not cleared", "cleared", side == 0)
                return Finding(number, "gradients are not cleared", "gradients before the step", sentence, fix, *values)
    return None
