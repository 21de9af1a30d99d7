"""Find causes in the order or number of calls, such as clipping twice."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..._kit.display import counted, enumeration
from ...causes.cause import Cause, CauseKind, names_text
from ...causes.scaling import combined_norm
from ..divergence import Divergence, DivergencePoint, StepDifference, call_at
from ..optimizers.clips_of_step import left_out_clip
from ..pairs.calls import CallPair, calls_by_step, clip_text, have_near_norms
from ..pairs.packed_parameters import elements
from ..pairs.parameters import sorted_shape
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import PRODUCT, is_near

RULES_FOR_GLOBAL: Mapping[CauseKind, str] = {"per tensor for global": "each", "per group for global": "groups"}
"""{cause: clip rule of the run that does not clip by the total norm}."""


def clipped_twice(point: DivergencePoint) -> Cause | None:
    clips = [(run, again) for run, again in _possibly_again(point) if again is not None]
    if len(clips) != 1:  # if both runs clip twice, this is not their difference
        return None
    run, (before, coef, after) = clips[0]
    sentence = (
        f"{run.name} clips the same gradients again. One call scales the norm from {before:.9g} to "
        f"{before * coef:.9g} (coefficient {coef:.9g}). The next call gets gradients with the norm {after:.9g}"
    )
    lines = [call_at(each, point.index) for each in (point.a, point.b)]
    shapes = [sorted(str(each.shape) for each in line.parameters.values()) for line in lines if line]
    are_other = len(shapes) == 2 and (shapes[0] != shapes[1] or point.first.stage == "weight")
    if point.missing is None and are_other:
        other = point.a if run is point.b else point.b
        sentence += f". {other.name} clips other parameters instead: pass these parameters to the second call"
    return Cause("clipped twice", sentence)


RepeatedClip = tuple[float, float, float]
"""(norm of the first call, coefficient of the first call, norm of the second call)."""


def _possibly_again(point: DivergencePoint) -> Iterator[tuple[RecordedRun, RepeatedClip | None]]:
    missing = point.missing
    if missing is None:
        for run in (point.a, point.b):
            yield run, _clips_again(call_at(run, point.index - 1), call_at(run, point.index))
        return
    run = point.b if missing.is_first else point.a
    pairs = itertools.product(missing.partners, missing.calls)
    yield run, next(filter(None, itertools.starmap(_clips_again, pairs)), None)


def _clips_again(before: RecordedCall | None, line: RecordedCall | None) -> RepeatedClip | None:
    if line is None or before is None or not (before.rule == line.rule == "global" and before.clipped):
        return None
    norms = [(before.norms()[0], line.norms()[0])]
    norms += [
        (each.norm, line.parameters[name].norm) for name, each in before.parameters.items() if name in line.parameters
    ]
    coef = before.coefs()[0]
    if coef is None:
        return None
    is_same = all(math.isclose(norm * coef, again, rel_tol=PRODUCT) for norm, again in norms)
    return (norms[0][0], coef, norms[0][1]) if is_same else None


def shifted_steps(point: DivergencePoint) -> Cause | None:
    for run, other in point.both_ways():
        for shift in (1, 2):
            norms = [
                (line.norms()[0], later.norms()[0])
                for line, later in zip(run.lines[point.index :], other.lines[point.index + shift :], strict=False)
                if line.rule == later.rule == "global"
            ]
            if len({a for a, _ in norms}) > 2 and all(math.isclose(a, b, rel_tol=PRODUCT) for a, b in norms):
                return Cause(
                    "shifted step",
                    f"{run.name} is {shift} step{'s' * (shift != 1)} ahead of {other.name}: {len(norms)} norms agree "
                    f"with later norms of {other.name}. {run.name} skips steps that {other.name} makes, for "
                    "example the step with the first batch",
                )
    return None


def other_networks(a: RecordedRun, b: RecordedRun, pairs: Sequence[CallPair]) -> Iterator[StepDifference]:
    """Yield the first step at which the runs clip different networks."""
    lists = [{_sorted_shapes(line) for line in run.lines} for run in (a, b)]
    for pair in pairs[1:]:
        shapes = [_sorted_shapes(line) for line in (pair.a, pair.b)]
        if all(shapes) and shapes[0] != shapes[1] and shapes[0] in lists[1] and shapes[1] in lists[0]:
            unit, count = ("elements", elements) if pair.a.parameters else ("gradients", count_of)
            sizes = [f"{count(line):.0f}" for line in (pair.a, pair.b)]
            sentence = (
                f"at step {pair.a.step}, {a.name} clips {sizes[0]} {unit}, and {b.name} clips {sizes[1]} {unit}. "
                "Each run makes both of these clips, but at different steps. Probably, the clips are for two networks. "
                "Compare at which steps each run trains each network. Later steps were not compared"
            )
            cause = Cause("another order of networks", sentence)
            yield StepDifference(
                Divergence(pair.a.step, "optimizer", sizes[0], sizes[1], f"number of clipped {unit}"), cause
            )
            return


def another_network(point: DivergencePoint, pair: CallPair) -> Cause | None:
    for (run, other), (line, fewer) in zip(point.both_ways(), itertools.permutations((pair.a, pair.b)), strict=True):
        shapes, own = Counter(_sorted_shapes(line)), Counter(_sorted_shapes(fewer))
        rest = shapes - own
        networks = [each for each in other.lines if rest == Counter(_sorted_shapes(each))]
        if rest == own:  # networks with equal shapes
            networks = [
                each for each in networks if _weights(each) != _weights(fewer) and _is_joined(line, fewer, each)
            ]
        if networks and own and own < shapes:
            sentence = (
                f"at step {line.step}, the clip call of {run.name} gets {shapes.total()} gradients, and the clip call "
                f"of {other.name} gets {own.total()} gradients. The additional gradients have the shapes of another "
                f"network, which {other.name} clips at step {networks[0].step}. One of the runs passes wrong "
                "parameters. Pass the same parameters to this clip call in both runs"
            )
            return Cause("parameters of another network", sentence)
    return None


def _is_joined(line: RecordedCall, *parts: RecordedCall) -> bool:
    weights = _weights(line), _weights(*parts)
    return len(weights[0]) == len(weights[1]) > 0 and all(map(is_near, *weights))


def _weights(*calls: RecordedCall) -> list[float]:
    return sorted(each.weight for call in calls for each in call.parameters.values() if each.weight is not None)


def _sorted_shapes(line: RecordedCall) -> tuple[str, ...]:
    shapes = sorted(str(sorted_shape(each.shape)) for each in line.parameters.values())
    return tuple(shapes or [str(line.count)] * bool(line.count))


def left_out_calls(point: DivergencePoint) -> Cause | None:
    missing = point.missing
    if missing is None:
        return None
    run, other = (point.a, point.b) if missing.is_first else (point.b, point.a)
    clips = " and ".join(dict.fromkeys(map(clip_text, missing.calls)))
    if any(itertools.starmap(_have_one_gradient, itertools.product(missing.calls, missing.partners))):
        sentence = (
            f"at step {missing.step}, {other.name} makes {counted(len(missing.calls), 'clip call')} that {run.name} "
            f"does not make: {clips}. Another call of {other.name} clips the same gradients, too. Make the same clip "
            "calls in both runs, in the same order"
        )
        return Cause("left-out clip", sentence)
    gradients = _gradients_of(missing.calls, [*missing.calls, *missing.partners])
    sentence = f"{run.name} does not clip {gradients}. {other.name} clips these gradients with {clips}"
    if not any(call.parameters for call in (*missing.calls, *missing.partners)):
        sentence += f". If {run.name} packs several weights into one, record both runs with norms=True, or --norms"
    return point.cause("left out", sentence, run)


def _have_one_gradient(a: RecordedCall, b: RecordedCall) -> bool:
    names = [{name for name in call.parameters if not name.isdecimal()} for call in (a, b)]
    if all(names):
        return bool(names[0] & names[1])
    weights = [{(each.shape, each.weight) for each in call.parameters.values() if each.weight} for call in (a, b)]
    return bool(weights[0] & weights[1]) or have_near_norms(a, b)


def _gradients_of(calls: Sequence[RecordedCall], every: Sequence[RecordedCall]) -> str:
    count, total = (sum(map(count_of, each)) for each in (calls, every))
    names = [name for call in calls for name in call.parameters if not name.isdecimal()]
    listed = f" ({names_text(names)})" if names else ""
    return f"{count} of {total} gradients{listed}. Pass these gradients to a clip call before the optimizer's step"


def never_clips(point: DivergencePoint) -> Cause | None:
    for run, other in point.both_ways():
        if not run.lines:
            return left_out_clip(run, other, calls_at(other, point.first.step))
    return None


def one_is_shorter(point: DivergencePoint) -> Cause | None:
    for run, other in point.both_ways():
        last, extra = call_at(run, point.index - 1), call_at(other, point.index)
        if len(run.lines) == point.index and last and extra and extra.step > last.step:
            return Cause(
                "one run is shorter",
                f"{run.name} ends after {len(run.lines)} of the {len(other.lines)} calls of {other.name}",
            )
    return None


def per_tensor_for_global(point: DivergencePoint) -> Cause | None:
    for run, other in point.both_ways():
        line, rest = call_at(run, point.index), _calls_of_a_step(point, other)
        if line is None or line.rule != "global" or line.norm_type != 2 or not rest:
            continue
        total = line.norms()[0]
        norms, calls = _norms_up_to(total, rest)
        combined = combined_norm(norms, 2)
        if len(norms) > 1 and math.isclose(combined, total, rel_tol=PRODUCT):
            return Cause(
                "per group for global" if _are_groups(rest[:calls]) else "per tensor for global",
                f"{other.name} clips {len(norms)} parts of the gradients by their own norms, and {run.name} clips all "
                "gradients by their total norm. At this step, the gradients agree up to rounding: their total norms "
                f"are {combined:.9g} and {total:.9g}",
            )
    return _split_by_counts(point)


def _are_groups(calls: Sequence[RecordedCall]) -> bool:
    return any(each.rule == "global" and count_of(each) > 1 for each in calls)


def count_of(call: RecordedCall) -> int:
    return len(call.parameters) if call.count is None else call.count


def _split_by_counts(point: DivergencePoint) -> Cause | None:
    for run, other in point.both_ways():
        whole, parts = (calls_at(each, point.first.step) for each in (run, other))
        if len(whole) != 1 or len(parts) < 2 or any(each.rule != "global" for each in (*whole, *parts)):
            continue
        line = whole[0]
        counts = [count_of(each) for each in parts]
        sizes = sum(map(elements, parts)), elements(line)
        is_split = sizes[0] == sizes[1] or sum(counts) == count_of(line) or len({*counts}) > 1
        if not all(counts) or not is_split or (not any(map(math.isnan, sizes)) and sizes[0] != sizes[1]):
            continue
        combined, total = combined_norm([each.norms()[0] for each in parts], line.order), line.norms()[0]
        counts_text = "single" if {*counts} == {1} else enumeration(list(map(str, counts)))
        return Cause(
            "per group for global" if _are_groups(parts) else "per tensor for global",
            f"before step {point.first.step} of the optimizer, {other.name} clips {counts_text} gradients in "
            f"{len(parts)} calls, with one norm for each call. {run.name} clips {count_of(line)} gradients by their "
            f"total norm. The gradients differ, too: their total norms are {combined:.9g} and {total:.9g}",
        )
    return None


def groups_for_per_tensor(point: DivergencePoint) -> Cause | None:
    for run, other in point.both_ways():
        whole, groups = (calls_at(each, point.first.step) for each in (run, other))
        if len(whole) != 1 or whole[0].rule != "each" or any(each.rule != "global" for each in groups):
            continue
        count = len(whole[0].norms())
        if 1 < len(groups) < count == sum(map(count_of, groups)):
            return Cause(
                "another rule",
                f"{run.name} clips each of {count} gradients by its own norm. {other.name} clips {count} gradients in "
                f"{len(groups)} calls, each by the total norm of the gradients in the call",
            )
    return None


def calls_at(run: RecordedRun, step: int) -> list[RecordedCall]:
    return calls_by_step(run).get(step, [])


def with_rule_divergence(point: DivergencePoint, causes: Sequence[Cause]) -> DivergencePoint:
    """Change the stage of the divergence to "rule" if a cause says that only one run clips per tensor. The recording
    can have "global" for both: a loop that clips each parameter alone records this rule."""
    rule = next((RULES_FOR_GLOBAL[each.kind] for each in causes if each.kind in RULES_FOR_GLOBAL), None)
    if rule is None or point.first.stage == "rule":
        return point
    totals = [
        max(line.norms(), default=0.0) if (line := call_at(run, point.index)) else 0.0 for run in (point.a, point.b)
    ]
    counts = [sum(len(line.norms()) for line in calls_at(run, point.first.step)) for run in (point.a, point.b)]
    is_global = counts[0] < counts[1] if counts[0] != counts[1] else totals[0] >= totals[1]
    rules = ("global", rule) if is_global else (rule, "global")
    return dataclasses.replace(point, first=Divergence(point.first.step, "rule", *rules))


def _calls_of_a_step(point: DivergencePoint, run: RecordedRun) -> Sequence[RecordedCall]:
    rest = run.lines[point.index :]
    if not (rest and point.a.optimizer_steps and point.b.optimizer_steps):
        return rest
    begins = {step.step for step in run.optimizer_steps if step.backward_calls} - {rest[0].step}
    return list(itertools.takewhile(lambda line: line.step not in begins, rest))


def _norms_up_to(total: float, lines: Sequence[RecordedCall]) -> tuple[list[float], int]:
    norms: list[float] = []
    combined = 0.0
    for calls, line in enumerate(lines, start=1):
        if line.rule not in ("global", "each"):
            break
        norms += line.norms()
        combined = combined_norm([combined, *line.norms()], 2)
        if combined >= total * (1 - PRODUCT):
            return norms, calls
    return [], 0
