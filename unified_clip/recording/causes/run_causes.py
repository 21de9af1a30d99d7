"""Find the causes of a divergence between two runs. `docs/recording.md` lists all causes."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...causes.call_causes import NOT_CLIPPED, find_cause, swapped, without_result
from ...causes.cause import Cause, instead, joined, names_text
from ...causes.hypotheses import scaled_gradients
from ...causes.observation import By, Observation
from ...causes.scaling import combined_norm
from ...tensors.types import Dense
from ..divergence import DivergencePoint, divergences, have_one_threshold, noise
from ..optimizers.clips_after_step import late_clip_by_weights
from ..pairs.calls import RULES, CallPair
from ..pairs.packed_parameters import elements
from ..recorded_run import RecordedCall
from ..rounding import GROWTH, PRODUCT, ROUNDING, is_near, same
from ..rounding_noise import noise_floor
from . import before_clips, order_of_calls, recurrent, weight_decay
from .after_clips import unscaled_after_clip
from .eps_causes import ROUNDED, another_eps, is_by_formula, norms_are_equal, rounded_coefficient

FACTORS = 2**24
"""The largest factor of gradients that is tested as a loss scale or a number of summed batches."""

BY: dict[str | None, By] = {"global": "global", "each": "per tensor"}

SIZES = {"weight": "the greatest norm of this weight so far", "gradient": "the total norm", "norm": "the total norm"}
"""{stage: the number in whose ULP the differences at this stage are measured}."""


def find_causes(point: DivergencePoint) -> list[Cause]:
    pair = point.pairs[point.index] if point.index < len(point.pairs) else None
    if pair is None:
        cause = (
            order_of_calls.never_clips(point)
            or order_of_calls.clipped_twice(point)
            or order_of_calls.left_out_calls(point)
        )
        cause = cause or order_of_calls.per_tensor_for_global(point) or order_of_calls.one_is_shorter(point)
        return [cause] if cause else []
    if point.first.is_noise:
        return [_noise(point)]
    # only the first cause counts: its numbers can look like the numbers of a later cause
    exclusive = (
        before_clips.still_scaled(point, pair)
        or _not_finite(point, pair)
        or before_clips.zero_gradients(point, pair)
        or before_clips.repeated_parameter(point, pair)
        or before_clips.tied_weights(point, pair)
        or order_of_calls.clipped_twice(point)
        or order_of_calls.per_tensor_for_global(point)
        or order_of_calls.groups_for_per_tensor(point)
        or order_of_calls.shifted_steps(point)
        or weight_decay.before_the_clip(point, pair)
        or recurrent.split_tensor(point, pair)
        or order_of_calls.another_network(point, pair)
        or _before_clipping(point, pair)
        or _fewer_gradients(point, pair)
        or _whole_factor(point, pair)
        or late_clip_by_weights(point, pair)
        or before_clips.initial_weights(point, pair)
        or _rule(point, pair)
    )
    if exclusive and exclusive.kind == "scaled gradients":
        exclusive = unscaled_after_clip(exclusive, point, pair)
    independent = (
        *_causes_in_settings(point, pair),
        _no_effect(point, pair),
        before_clips.inexact_norm(point, pair) or rounded_coefficient(point, pair),
        _other_weights_of_groups(point) if exclusive and exclusive.kind in order_of_calls.RULES_FOR_GLOBAL else None,
        _rounding(point),
    )
    causes = [cause for cause in (exclusive, *independent) if cause]
    rest = None if causes else _by_hypotheses(point, pair) or _grown_rounding(point)
    return [rest] if rest else causes


def _not_finite(point: DivergencePoint, pair: CallPair) -> Cause | None:
    in_a = {b: a for a, b in pair.names.items()}
    for run, line, other, partners in ((point.a, pair.a, pair.b, pair.names), (point.b, pair.b, pair.a, in_a)):
        if all(map(math.isfinite, line.known_norms())) or not all(map(math.isfinite, other.known_norms())):
            continue
        bad = [name for name, each in line.parameters.items() if not math.isfinite(each.norm)]
        names = [partners.get(name, name) if name.isdecimal() else name for name in bad]
        sentence = f"only the gradients of {run.name} are not finite"
        counts = "" if line.nan is None else f"They contain {line.nan} NaN and {line.inf} inf"
        where = f"Affected parameters: {names_text(names)}" if names else ""
        return Cause("not finite in one run", joined(sentence, counts, where))
    return None


def _before_clipping(point: DivergencePoint, pair: CallPair) -> Cause | None:
    name_in_a = {b: a for a, b in pair.names.items()}
    of_a = {name: each.norm for name, each in pair.a.parameters.items()}
    of_b = {name_in_a.get(name, name): each.norm for name, each in pair.b.parameters.items()}
    if not of_a or not of_b or len(of_a) == len(of_b):
        of_a, of_b = ({name: norms[side] for name, *norms in point.gradients()} for side in (0, 1))
    elif pair.a.order != pair.b.order:
        return None
    elif any(name == other and not name.isdecimal() for name, other in pair.names.items()):
        of_b = {name: of_b[name] for name in of_a if name in of_b} | of_b
    else:  # names were matched by shape and order, which is wrong if a gradient is missing
        of_a, of_b = (dict(sorted(norms.items(), key=lambda item: item[1])) for norms in (of_a, of_b))
    floors = noise_floor(pair.a), noise_floor(pair.b)
    for run, expected, observed, noise_floors in ((point.b, of_a, of_b, floors), (point.a, of_b, of_a, floors[::-1])):
        if cause := _find_in_norms(expected, list(observed.values()), noise_floors):
            hint = ""
            if cause.kind == "swapped" and pair.by_shape:
                hint = "Parameters were matched by shape and order: if that is wrong, pass their names with --map"
            if cause.kind == "left out":
                hint = before_clips.excluded_hint(point, run, pair.a if run is point.a else pair.b)
            return point.cause(cause.kind, joined(cause.sentence, hint), run)
    return before_clips.missing_names(point, pair)


def _fewer_gradients(point: DivergencePoint, pair: CallPair) -> Cause | None:
    a, b = pair.a.count, pair.b.count
    if point.first.stage != "norm" or point.gradients() or a is None or b is None or a == b:
        return None
    if (point.first.ulps_at_its_size or math.inf) <= ROUNDING:  # a run may pack several parameters in one
        return None
    run, few, many = (point.b, b, a) if b < a else (point.a, a, b)
    sentence = (
        f"{run.name} clips {few} gradients instead of {many}, or packs several weights into one. To find out, record "
        "both runs with norms=True, or --norms"
    )
    return point.cause("left out", sentence, run)


def _whole_factor(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if point.first.stage != "norm" or point.gradients() or not pair.a.rule == pair.b.rule == "global":
        return None
    (a, *_), (b, *_) = pair.a.norms(), pair.b.norms()
    low, high, run = (a, b, point.b) if a < b else (b, a, point.a)
    factor = round(high / low) if low > 0 and high < math.inf else 0
    if not 2 <= factor <= FACTORS or not math.isclose(high, factor * low, rel_tol=PRODUCT):
        return None
    return point.cause("scaled gradients", f"as if every gradient were {factor} times as large", run)


def _find_in_norms(expected: Mapping[str, float], observed: Sequence[float], floors: Sequence[float]) -> Cause | None:
    """`floors` contains a norm for each run. Gradients with smaller norms are rounding noise."""
    expected = {name: 0.0 if norm <= floors[0] else norm for name, norm in expected.items()}
    observed = [0.0 if norm <= floors[1] else norm for norm in observed]
    if len(expected) != len(observed):  # it is unknown which noise is missing
        expected, observed = {name: norm for name, norm in expected.items() if norm}, list(filter(None, observed))
    ordered = sorted(norm for norm in expected.values() if not math.isnan(norm))
    norms = [_nearest(ordered, norm, floors[1]) for norm in observed]
    if len(expected) == len(norms) and (total := combined_norm(list(expected.values()), 2)):
        factor = combined_norm(norms, 2) / total
        pairs = zip((factor * norm for norm in expected.values()), norms, strict=True)
        norms = [a if PRODUCT * b < abs(a - b) <= floors[1] else b for a, b in pairs]
    before, after = _stand_ins(expected.values()), _stand_ins(norms)
    call = Observation(before, before, after, "global", math.inf, names=list(expected), are_norms=True)
    with np.errstate(invalid="ignore"):
        if cause := swapped(call) or without_result(call):
            return cause
        factors = scaled_gradients(call) if len(before) == len(after) else ()
        return next(
            (Cause(each.kind, each.sentence) for each in factors if each.kind and call.fits(each, PRODUCT)), None
        )


def _nearest(ordered: Sequence[float], norm: float, slack: float) -> float:
    index = bisect.bisect(ordered, norm)
    nearest = min(ordered[max(0, index - 1) : index + 1], key=lambda each: abs(each - norm), default=norm)
    return nearest if is_near(nearest, norm) or abs(nearest - norm) <= slack else norm


def _stand_ins(norms: Iterable[float]) -> list[Dense]:
    return [Dense("float64", np.array([norm])) for norm in norms]


def _other_weights_of_groups(point: DivergencePoint) -> Cause | None:
    if point.index or any(run.optimizer_steps and run.optimizer_steps[0].calls == 0 for run in (point.a, point.b)):
        return None
    sides = [order_of_calls.calls_at(run, point.first.step) for run in (point.a, point.b)]
    if sum(map(elements, sides[0])) != sum(map(elements, sides[1])):  # other parameters, or unknown ones
        return None
    totals = []
    for calls in sides:
        weights = [each.weight for call in calls for each in call.parameters.values()]
        known = [weight for weight in weights if weight is not None]
        totals.append(combined_norm(known, calls[0].order) if known and len(known) == len(weights) else math.nan)
    if any(map(math.isnan, totals)) or math.isclose(*totals, rel_tol=PRODUCT):
        return None
    values = f"{totals[0]:.9g} and {totals[1]:.9g}"
    return Cause("other initial weights", f"before the first step, the total norms of the weights are {values}")


def _rule(point: DivergencePoint, pair: CallPair) -> Cause | None:
    rules = (str(point.first.a), str(point.first.b))
    if point.first.stage != "rule" or not all(rule in RULES for rule in rules):  # a call without gradients has no rule
        return None
    norms = {line.rule: line.norms() for line in (pair.a, pair.b)}
    is_per_tensor = norms.keys() == {"global", "each"} and len(norms["each"]) > 1
    text = f"{point.a.name} clips {RULES[rules[0]]}, {point.b.name} {RULES[rules[1]]}"
    return Cause("per tensor for global" if is_per_tensor else "another rule", text)


def _causes_in_settings(point: DivergencePoint, pair: CallPair) -> Iterator[Cause]:
    a, b = pair.a, pair.b
    old, new, follow = a.threshold, b.threshold, is_by_formula(a) and is_by_formula(b)
    is_shown = follow or a.rule == "value" or old != old or new != new  # with NaN, no number can show the effect
    is_other = a.rule == b.rule and not have_one_threshold(a, b)
    if is_shown and is_other and old is not None and new is not None:
        what = "the bounds" if a.rule == "value" else "the threshold"
        yield point.cause("another threshold", instead(what, new, old, ""))
    if not same(a.norm_type, b.norm_type) and a.rule == b.rule == "global" and _can_be_of_one_list(a, b):
        values = f"{b.norms()[0]:.9g} and {a.norms()[0]:.9g}"
        sentence = f"{instead('norm_type', b.order, a.order)}. Equal gradients can have these two norms: {values}"
        yield point.cause("another norm type", sentence)
    if eps := another_eps(point, pair):
        yield eps


def _can_be_of_one_list(a: RecordedCall, b: RecordedCall) -> bool:
    """Return whether the same gradients can have both total norms, one for each norm type."""
    low, high = sorted((a, b), key=lambda line: line.order)
    if not low.order > 0:  # a framework's own function may accept other orders
        return False
    elements = sum(math.prod(length or 1 for length in each.shape) for each in low.parameters.values()) or math.inf
    exponent = 1 / low.order - 1 / high.order
    ratio = low.norms()[0] / high.norms()[0] if high.norms()[0] else 1.0
    # two norms of n numbers have a ratio of at most n**exponent, which may be too large for a float
    return ratio >= 1 - PRODUCT and math.log(ratio) <= exponent * math.log(elements) + PRODUCT


def _no_effect(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if point.first.stage != "clipped":
        return None
    clips, unclipped, line = (point.a, point.b, pair.b) if point.first.a else (point.b, point.a, pair.a)
    if isinstance(line.threshold, float) and max(line.norms()) > line.threshold:
        return point.cause("not clipped", f"{NOT_CLIPPED}. In both runs, the norm is above {line.threshold}", unclipped)
    sentence = f"{clips.name} changes gradients, although the norm is below {line.threshold} in both runs"
    return point.cause("clipped below the threshold", sentence, clips)


def _by_hypotheses(point: DivergencePoint, pair: CallPair) -> Cause | None:
    a, b = pair.a, pair.b
    if a.rule != b.rule or a.rule not in BY or not same(a.norm_type, b.norm_type) or len(a.norms()) != len(b.norms()):
        return None
    if not a.known_coefs() or not b.known_coefs():
        return None
    are_known = None not in (a.threshold, b.threshold)
    if (are_known and not have_one_threshold(a, b)) or not all(is_near(*norms) for _, *norms in point.gradients()):
        return None
    if (a.watched or b.watched) and not point.gradients() and not norms_are_equal(pair):
        return None  # the coefficients differ because the norms do
    for reference, line, run in ((a, b, point.b), (b, a, point.a)):
        cause = find_cause(_observe(reference, line)) if is_by_formula(reference) else None
        is_known = line.threshold is not None and cause and cause.kind in ("another threshold", "coefficient")
        if cause and not is_known:
            return point.cause(cause.kind, cause.sentence, run)
    return None


def _observe(reference: RecordedCall, line: RecordedCall) -> Observation:
    limit, p, total = reference.threshold, reference.order, combined_norm(reference.norms(), reference.order)
    norms = {name: each.norm for name, each in reference.parameters.items()}
    if not norms or not math.isclose(combined_norm(list(norms.values()), p), total, rel_tol=ROUNDED):
        norms = {f"position {index}": norm for index, norm in enumerate(reference.norms())}
    before, expected, after = (
        _stand_ins(norm * coef for norm, coef in zip(norms.values(), itertools.cycle(coefs), strict=False))
        for coefs in ([1.0], reference.known_coefs(), line.known_coefs())
    )
    # the recorder measures the other norms before the call
    is_returned = reference.rule == "global" and not line.watched
    return Observation(
        before,
        expected,
        after,
        BY[reference.rule],
        limit if isinstance(limit, float) else math.nan,
        eps=reference.eps or 0.0,
        p=p,
        expected_norm=total if is_returned else None,
        norm=line.norms()[0] if is_returned else None,
        names=list(norms),
        are_norms=True,
        slacks=(ROUNDED,),
    )


def _noise(point: DivergencePoint) -> Cause:
    names = names_text(noise(point.pairs, 0.0))
    sentence = (
        f"only rounding noise in {names} differs. These gradients, or parts of them, have norms of at most {ROUNDING} "
        "ULP of the total norm. Their true value might be 0, for example for a bias before BatchNorm or of attention "
        "keys. Adam changes weights with small and with large gradients by about the same amount, so noise can "
        f"change these weights by up to the learning rate. To ignore noise, pass --max-ulp {ROUNDING}"
    )
    return Cause("rounding noise", sentence)


def _rounding(point: DivergencePoint) -> Cause | None:
    ulps, at_its_size = point.first.ulps, point.first.ulps_at_its_size
    if ulps is None or at_its_size is None or at_its_size > ROUNDING or point.first.stage == "coefficient":
        return None
    sentence = f"the first difference is {ulps:g} ULP"
    if ulps > ROUNDING:
        sentence += f" of the compared numbers, but only {at_its_size:.2g} ULP of {SIZES[point.first.stage]}"
    sentence += f". Frameworks that sum in different orders differ by up to {ROUNDING} ULP"
    if ulps <= GROWTH * ROUNDING:
        sentence += (
            f". To allow such differences, pass --max-ulp {ROUNDING}. Such differences grow from step to step, so "
            "later steps may need a higher --max-ulp"
        )
    return Cause("rounding", sentence)


def _grown_rounding(point: DivergencePoint) -> Cause | None:
    at_its_size = point.first.ulps_at_its_size
    if at_its_size is None or not ROUNDING < at_its_size < math.inf or point.first.stage == "coefficient":
        return None
    earlier = itertools.chain.from_iterable(divergences(point.pairs[: point.index], 0.0))
    before, step = max(((d.ulps_at_its_size, -d.step) for d in earlier if d.ulps_at_its_size), default=(0.0, 0))
    if at_its_size > GROWTH * before:
        return None
    return Cause(
        "rounding that has grown",
        f"the difference is {at_its_size:.3g} ULP of {SIZES[point.first.stage]}. At step {-step}, the "
        f"difference was {before:.3g} ULP. From one step to the next, rounding errors grow by a factor below {GROWTH}. "
        "A small difference between the optimizers can grow as fast as rounding errors. To find such a difference, "
        "compare the updates in the report of `unified-clip verify`",
    )
