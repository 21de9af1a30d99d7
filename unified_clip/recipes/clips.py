"""Compare how two runs clip each gradient: rule, parameters that share a norm, threshold, eps, and place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._kit.display import enumeration
from ..causes.cause import CauseKind, names_text
from ..recorder.clips import coefficient
from ..recording.recorded_run import RecordedCall
from ..recording.rounding import same, single
from .by_hand import OWN_CODE, closeness
from .finding import Finding, in_order, value_text
from .missing_clips import clip_text, grouping, left_out, repeated_clips, unreached
from .pairs import Both, Pair, PairedRuns
from .run import Clip, Run, Threshold

SCALE = "scale of the clipped gradients"
RULES = {"global": "norm", "each": "norm", "slices": "norm of each slice", "value": "value"}

GROUPINGS = ("per tensor for global", "per group for global")

AGREE = 64 * 2.0**-24
"""Norms and coefficients that differ by a smaller fraction agree."""


class Found(NamedTuple):
    """A difference of one gradient. Differences of one kind with equal values are one finding."""

    kind: CauseKind
    field: str
    old: object
    new: object
    effect: float = math.inf
    """By which fraction the difference changes the gradient, if this was measured."""


def compare_clips(runs: PairedRuns) -> Iterator[Finding]:
    a, b = runs.sides
    if a.is_late != b.is_late:
        late, early = (a, b) if a.is_late else (b, a)
        sentence = f"{late.name} clips after the optimizer's step, and {early.name} clips before it"
        fix = "Clip between backward() and step() in both runs"
        values = in_order("after the step", "before the step", late is a)
        yield Finding(1, "clipping after the step", "place of the clip", sentence, fix, *values)
    clipped = [each for each in runs.every() if all(step.clips for step in each.sides)]
    parameters = [*left_out(runs), *_groups(runs, clipped)]
    yield from parameters
    # a clip that gets the parameters of another network clips those again, and may leave out its own
    are_several = max(len(run.networks) for run in runs.sides) > 1
    is_other = are_several and any(each.field == "clipped parameters" for each in parameters)
    yield from (each for each in repeated_clips(runs) if not (is_other and each.field == "clips of a step"))
    settings = (_rule, _scale, _threshold, _order, _eps, _norm)
    found = [each for compare in settings for each in _collected(runs, clipped, compare)]
    if any(each.kind in GROUPINGS and each.fix for each in parameters):  # with code that has the eps, too
        found = [each._replace(fix="") if each.kind == "another eps of the clip" else each for each in found]
    yield from found or _collected(runs, clipped, _coefficient)
    yield from unreached(runs)


# -- the parameters that share a norm

Groups = Mapping[Pair, tuple[int, frozenset[str], frozenset[str]]]
"""{pair: (step, group in the old run, group in the new run)}, all by the names of the new run."""


def _groups(runs: PairedRuns, clipped: Sequence[Both]) -> Iterator[Finding]:
    """Compare the groups, without the parameters that one run does not clip."""
    to_new = {name: pair.new for pair in runs.pairs for name in pair.old}
    in_both = [{name for each in clipped for name in each.pair.sides[side]} for side in (0, 1)]
    found: dict[Pair, tuple[int, frozenset[str], frozenset[str]]] = {}
    for each in clipped:
        for old, new in _compared(each):
            if "value" in (old.line.rule, new.line.rule) or each.pair in found:
                continue
            left = frozenset(other for name in old.group & in_both[0] for other in to_new.get(name, ()))
            right = frozenset(new.group & in_both[1])
            if left != right:
                found[each.pair] = (each.number, left, right)
    if not found:
        return
    number = min(step for step, *_ in found.values())
    if not any(pair.is_single for pair in found):
        yield _split_finding(runs, next(iter(found)), number)
        return
    if more := _of_other_networks(runs, found, number):
        yield more
        return
    now = [each for each in clipped if each.number == number]
    counts = [len({clip.group for each in now for clip in each.sides[side].clips}) for side in (0, 1)]
    finer = 0 if counts[0] > counts[1] else 1
    singles = [clip.group for each in now if each.pair.is_single for clip in each.sides[finer].clips]
    parts = "" if all(len(group) == 1 for group in singles) else f"{counts[finer]} groups of gradients"
    rest = "" if min(counts) == 1 else f"{counts[1 - finer]} groups of gradients"
    finding = grouping(runs, number, finer, parts, rest)
    yield finding._replace(fix=_group_fix(runs, number, finding.kind, finer == 0))


def _of_other_networks(runs: PairedRuns, found: Groups, number: int) -> Finding | None:
    """Find a clip that gets the parameters of another network, too."""
    for side, run in enumerate(runs.sides):
        groups = [(both[side], both[1 - side]) for _, *both in found.values()]
        network = {name: run.network_of(pair.sides[side][0]) for pair in runs.pairs for name in pair.new}
        if not all(own > other and len({network[name] for name in own}) > 1 for own, other in groups):
            continue
        if len({clip.group for steps in run.parameters.values() for each in steps for clip in each.clips}) == 1:
            continue  # one clip of all networks, and none of a single network
        more = sorted({name for own, other in groups for name in own - other})
        sentence = (
            f"in {run.name}, the clip of {names_text([pair.name for pair in found])} also gets the gradients of "
            f"{names_text(more)}, which belong to another network"
        )
        fix = "Pass the same parameters to this clip in both runs"
        values = in_order("parameters of two networks", "parameters of one network", side == 0)
        return Finding(number, "parameters of another network", "clipped parameters", sentence, fix, *values)
    return None


def _split_finding(runs: PairedRuns, pair: Pair, number: int) -> Finding:
    is_old = len(pair.old) == 1
    whole, parts = pair.sides if is_old else pair.sides[::-1]
    run, other = runs.sides if is_old else runs.sides[::-1]
    names = enumeration(list(map(repr, parts)))
    sentence = (
        f"{run.name} clips {whole[0]!r} as one tensor. {other.name} splits it into {names}, and clips each part by its "
        "own norm"
    )
    fix = (
        f"In {other.name}, clip {names} together by their total norm, as GradientClipByGlobalNorm(c).clip_([...]) "
        "does, and each of the other tensors by its own norm"
    )
    values = in_order("one tensor", f"{len(parts)} tensors", is_old)
    return Finding(number, "another rule", "gradients that share a norm", sentence, fix, *values)


def _group_fix(runs: PairedRuns, number: int, kind: CauseKind, old_is_finer: bool) -> str:
    old, new = (next((clip for each in run.at(number) for clip in each.clips), None) for run in runs.sides)
    if old is None or new is None:
        return ""
    rule = "global"
    if old_is_finer:
        rule = "each" if kind == "per tensor for global" else "groups"
    return _change(runs, rule, old, new)


def _change(runs: PairedRuns, rule: str, old: Clip, new: Clip) -> str:
    """Return advice to write code with this rule, and with the import that it needs."""
    text = code(rule, old, new, _constant_threshold(runs.a))
    module = re.search(r"unified_clip(\.[a-z]+)?(?=\.)", text)
    return f"Change the clip of {runs.b.name}: `{text}`{f', with `import {module[0]}`' if module else ''}"


def _constant_threshold(run: Run) -> str:
    """Return the threshold that a run passes to all its clips, or c."""
    clips = (clip for steps in run.parameters.values() for each in steps for clip in each.clips)
    first, *others = {clip.scaled_threshold for clip in clips}
    return value_text(first) if isinstance(first, float) and not others else "c"


def code(rule: str, old: Clip, new: Clip, c: str) -> str:
    """Return code for the framework of the new run with this rule, the threshold c, and the eps of the old run."""
    framework, eps, p = new.line.framework, old.line.eps or 0.0, old.line.order
    gradients = "model.parameters()" if framework in ("torch", "paddle") else "gradients"
    if rule == "groups":
        group, gradients = ("group", 'group["params"]') if framework == "torch" else ("gradients", "gradients")
        groups = "optimizer.param_groups" if framework == "torch" else "groups"
        return f"for {group} in {groups}: {_call('global', eps, p, c, new, gradients)}"
    return _call(rule, eps, p, c, new, gradients)


def _call(rule: str, eps: float, p: float, c: str, new: Clip, gradients: str) -> str:
    call, framework = new.line.call, new.line.framework
    if (eps, p) == (0, 2) and call.startswith("keras"):
        return f"{'clipnorm' if rule == 'each' else 'global_clipnorm'}={c}"
    namespace = f"unified_clip.{framework}" if framework else "unified_clip"
    if (eps, p) == (0, 2):
        return f"{namespace}.GradientClipBy{'Norm' if rule == 'each' else 'GlobalNorm'}({c}).clip_({gradients})"
    if (eps, p, rule) == (1e-6, 2, "global"):
        return f"{'torch.nn.utils' if framework == 'torch' else namespace}.clip_grad_norm_({gradients}, {c})"
    if (eps, p, framework) == (1e-6, 2, "torch"):
        return f"for p in {gradients}: torch.nn.utils.clip_grad_norm_([p], {c})"
    name = "norm" if rule == "each" else "global_norm"
    return f'unified_clip.ClipConfig(rule="{name}", threshold={c}, norm_type={p:g}, eps={eps:g})'


# -- the settings of each clip


def _collected(
    runs: PairedRuns, clipped: Sequence[Both], compare: Callable[[Clip, Clip], Found | None]
) -> Iterator[Finding]:
    """Report the first step with a difference, with the values at this step."""
    found: list[tuple[int, Found, Pair, Clip, Clip]] = []
    for each in clipped:
        for old, new in _compared(each):
            if (difference := compare(old, new)) is not None:
                found.append((each.number, difference, each.pair, old, new))
    if not found:
        return
    number, first, _, old, new = min(found, key=lambda each: each[0])
    names = list(dict.fromkeys(pair.name for _, _, pair, *_ in found))
    count = len({each.pair for each in clipped})
    where = "" if len(names) == count else f" of {names_text(names)}"
    values = value_text(first.old), value_text(first.new)
    sentence = f"the {first.field}{where} is {values[1]} in {runs.b.name} instead of {values[0]}"
    fix, effect = _setting_fix(runs, first, old, new), max(each.effect for _, each, *_ in found)
    yield Finding(number, first.kind, first.field, sentence, fix, first.old, first.new, effect)


def _compared(each: Both) -> Iterator[tuple[Clip, Clip]]:
    """Pair the clips of one gradient. Of a different number of clips, pair the most similar ones."""
    old, new = (step.clips for step in each.sides)
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    few, more = sorted((old, new), key=len)
    free = list(more)
    for clip in few:
        best = max(free, key=lambda other: sum(map(same, _settings_of(clip), _settings_of(other))))
        free.remove(best)
        yield (clip, best) if few is old else (best, clip)


def _settings_of(clip: Clip) -> tuple[object, ...]:
    line = clip.line
    return line.rule, line.threshold, line.order, len(clip.group), line.call


def _setting_fix(runs: PairedRuns, found: Found, old: Clip, new: Clip) -> str:
    b = runs.b
    if found.field == SCALE:
        run = b if new.line.loss_scale else runs.a
        return f"In {run.name}, divide the gradients by the loss scale before the clip, as scaler.unscale_() does"
    if found.kind == "another threshold":
        return (
            f"Pass {value_text(found.old)} in {b.name}. If only one run multiplies its gradients by a factor, such as "
            "a loss scale, multiply its threshold by the same factor"
        )
    if found.kind == "rows" and "rows" in str(found.new):
        return f"In {b.name}, clip tf.convert_to_tensor(gradient), which adds up repeated rows"
    if found.kind == "another rule":
        return f"In {b.name}, clip {found.old}, as {clip_text(old)} does"
    is_passed = old.line.passed_norm is not None or new.line.passed_norm is not None
    if found.kind == "another eps of the clip" and not is_passed:  # other functions compute another norm
        rule = "each" if len(old.group) == 1 and old.line.rule != "global" else "global"
        return _change(runs, rule, old, new)
    return ""


def _rule(old: Clip, new: Clip) -> Found | None:
    left, right = (RULES.get(clip.line.rule or "", str(clip.line.rule)) for clip in (old, new))
    return None if left == right else Found("another rule", "clip rule", f"by {left}", f"by {right}")


def _scale(old: Clip, new: Clip) -> Found | None:
    """Compare the recorded loss scales, unless a script multiplies its threshold by the loss scale, too."""
    scales = [clip.line.loss_scale or 1.0 for clip in (old, new)]
    if scales[0] == scales[1] or (not _rule(old, new) and _are_same(old, new, old.line.threshold, new.line.threshold)):
        return None
    first, second = (f"{scale:.6g}" for scale in scales)
    return Found("clipping before unscaling", SCALE, first, second)


def _threshold(old: Clip, new: Clip) -> Found | None:
    if None in (old.line.threshold, new.line.threshold) or _rule(old, new):
        return None
    in_scripts = old.scaled_threshold, new.scaled_threshold
    if _are_same(old, new, old.line.threshold, new.line.threshold) or _are_same(old, new, *in_scripts):
        return None
    return Found("another threshold", "threshold", *in_scripts)


def _are_same(old: Clip, new: Clip, *thresholds: Threshold) -> bool:
    sides = [each if isinstance(each, tuple) else (each,) for each in thresholds]
    if slack := _slack(old, new):  # a measured threshold
        return np.allclose(np.array(sides[0], float), np.array(sides[1], float), rtol=slack, atol=0)
    is_float64 = old.line.dtype == new.line.dtype == "float64"
    shown = [tuple(bound if is_float64 or bound is None else single(bound) for bound in side) for side in sides]
    return same(*shown)


def _slack(old: Clip, new: Clip) -> float:
    """How exactly the clip of a script's own code was measured, or 0 for recorded calls."""
    return max((closeness(clip.line.dtype) for clip in (old, new) if clip.line.call == OWN_CODE), default=0.0)


def _order(old: Clip, new: Clip) -> Found | None:
    if _rule(old, new) or "value" in (old.line.rule, new.line.rule) or old.line.order == new.line.order:
        return None
    return Found("another norm type", "norm type", old.line.order, new.line.order)


def _eps(old: Clip, new: Clip) -> Found | None:
    """Report only an eps that changes a coefficient."""
    limit, first, second = new.line.threshold, old.line.eps or 0.0, new.line.eps or 0.0
    is_unknown = OWN_CODE in (old.line.call, new.line.call)
    if first == second or is_unknown or new.norm is None or not isinstance(limit, float) or _rule(old, new):
        return None
    coefs = [coefficient(new.norm, limit, eps) for eps in (first, second)]
    is_float64 = "float64" in (old.line.dtype, new.line.dtype)
    differ = coefs[0] != coefs[1] if is_float64 else single(coefs[0]) != single(coefs[1])
    effect = abs(coefs[0] - coefs[1]) / max(coefs) if max(coefs) else math.inf
    return Found("another eps of the clip", "eps of the clip", first, second, effect) if differ else None


def _norm(old: Clip, new: Clip) -> Found | None:
    """Compare which norm the coefficient is computed from: the exact one, or one that was passed or measured."""
    kinds = [_norm_kind(clip) for clip in (old, new)]
    is_unknown = any(_hides_norm(clip.line) for clip in (old, new))
    if is_unknown or kinds[0][0] == kinds[1][0] or not any(map(_has_effect, (old, new))):
        return None
    if old.norm is not None and new.norm is not None and _agree(old.norm, new.norm):
        return None
    first, second = _exact_norm(old), _exact_norm(new)
    if first is not None and second is not None and not _agree(first, second):  # other gradients have other norms
        return None
    kind = next(cause for name, cause in kinds if name != "exact")
    return Found(kind, "norm of the clip", kinds[0][0], kinds[1][0])


def _hides_norm(line: RecordedCall) -> bool:
    """Return whether only the framework knows the norm that its function computed, as Paddle's classes."""
    known = (line.returned_norm, line.passed_norm, line.stored_norm)
    return line.rule == "value" or (line.watched and known == (None, None, None))


def _coefficient(old: Clip, new: Clip) -> Found | None:
    """Compare the coefficients, if the norms agree."""
    known = None not in (old.coef, new.coef, old.norm, new.norm)
    if not known or not _agree(old.norm or 0.0, new.norm or 0.0):
        return None
    if math.isclose(old.coef or 0.0, new.coef or 0.0, rel_tol=max(_slack(old, new), AGREE)):
        return None
    return Found("coefficient", "coefficient of the clip", old.coef, new.coef)


def _has_effect(clip: Clip) -> bool:
    """Return whether the exact norm would give another coefficient."""
    exact, limit = _exact_norm(clip), clip.line.threshold
    if exact is None or clip.norm is None or not isinstance(limit, float):
        return False
    coefs = [single(coefficient(norm, limit, clip.line.eps or 0.0)) for norm in (exact, clip.norm)]
    return not _agree(*coefs)


def _norm_kind(clip: Clip) -> tuple[str, CauseKind]:
    line, exact = clip.line, _exact_norm(clip)
    if exact is None or clip.norm is None or _agree(exact, clip.norm):
        return "exact", "inexact norm"
    stored = line.stored_norm
    if line.passed_norm is not None:
        is_rows = isinstance(stored, float) and _agree(stored, clip.norm)
        return ("over the stored rows", "rows") if is_rows else ("passed by the caller", "given norm")
    if line.sparse or stored is not None:
        return "over the stored rows, without the sum of repeated rows", "rows"
    return "inexact", "inexact norm"


def _exact_norm(clip: Clip) -> float | None:
    norms = clip.line.norms()
    if clip.line.rule == "global":
        return norms[0] if norms else None
    return clip.exact.norm if clip.line.rule == "each" else None


def _agree(a: float, b: float) -> bool:
    return same(a, b) or math.isclose(a, b, rel_tol=AGREE)
