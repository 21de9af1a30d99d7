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
from .missing_clips import Both, clip_text, left_out, repeated_clips, unreached
from .pairs import Pair
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


def compare_clips(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Finding]:
    if a.is_late != b.is_late:
        late, early = (a, b) if a.is_late else (b, a)
        sentence = f"{late.name} clips after the optimizer's step, and {early.name} clips before it"
        old, new = in_order("after the step", "before the step", late is a)
        fix = "Clip between backward() and step() in both runs"
        yield Finding(1, "clipping after the step", "place of the clip", old, new, sentence, fix)
    both = list(_both(a, b, pairs))
    clipped = [each for each in both if each.old.clips and each.new.clips]
    parameters = [*left_out(a, b, pairs, both), *_groups(a, b, pairs, clipped)]
    yield from parameters
    # a clip that gets the parameters of another network clips those again, and may leave out its own
    are_several = max(len(run.networks) for run in (a, b)) > 1
    is_other = are_several and any(each.field == "clipped parameters" for each in parameters)
    yield from (each for each in repeated_clips(a, b, both) if not (is_other and each.field == "clips of a step"))
    settings = (_rule, _scale, _threshold, _order, _eps, _norm)
    found = [each for compare in settings for each in _collected(a, b, clipped, compare)]
    if any(each.kind in GROUPINGS and each.fix for each in parameters):  # with code that has the eps, too
        found = [each._replace(fix="") if each.kind == "another eps of the clip" else each for each in found]
    yield from found or _collected(a, b, clipped, _coefficient)
    yield from unreached(a, b, both)


def _both(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Both]:
    for pair in pairs:
        for number, (old, new) in enumerate(zip(a.parameters[pair.old[0]], b.parameters[pair.new[0]], strict=False), 1):
            yield Both(pair, number, old, new)


# -- the parameters that share a norm


def _groups(a: Run, b: Run, pairs: Sequence[Pair], clipped: Sequence[Both]) -> Iterator[Finding]:
    """Compare the groups, without the parameters that one run does not clip."""
    to_new = {name: pair.new for pair in pairs for name in pair.old}
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
    counts = [
        len({clip.group for each in clipped if each.number == number for clip in each.sides[side].clips})
        for side in (0, 1)
    ]
    is_packed = all(len(pair.old) + len(pair.new) > 2 for pair in found)
    if is_packed:
        yield _split_finding(a, b, found, number)
        return
    if more := _of_other_networks(a, b, pairs, found):
        yield more
        return
    finer = 0 if counts[0] > counts[1] else 1
    fine, coarse = (a, b) if finer == 0 else (b, a)
    packed = {name for pair in pairs if len(pair.old) + len(pair.new) > 2 for name in (*pair.old, *pair.new)}
    singles = [
        clip.group
        for each in clipped
        if each.number == number and not packed & {*each.pair.old, *each.pair.new}
        for clip in each.sides[finer].clips
    ]
    per_tensor = all(len(group) == 1 for group in singles)
    kind: CauseKind = "per tensor for global" if per_tensor else "per group for global"
    names = ("each gradient" if per_tensor else f"{counts[finer]} groups of gradients", "all gradients")
    if min(counts) > 1:
        kind, names = "another rule", (names[0], f"{counts[1 - finer]} groups of gradients")
    parts = names[0] if per_tensor else f"each of {names[0]}"
    norm = "their total norm" if min(counts) == 1 else "the total norms of the groups"
    sentence = f"{fine.name} clips {parts} by its own norm, and {coarse.name} clips {names[1]} by {norm}"
    values = in_order(*names, finer == 0)
    fix = _group_fix(a, b, number, kind, finer == 0)
    yield Finding(number, kind, "gradients that share a norm", values[0], values[1], sentence, fix)


def _of_other_networks(
    a: Run, b: Run, pairs: Sequence[Pair], found: Mapping[Pair, tuple[int, frozenset[str], frozenset[str]]]
) -> Finding | None:
    """Find a clip that gets the parameters of another network, too."""
    for run, is_old in ((a, True), (b, False)):
        groups = [(left, right) if is_old else (right, left) for _, left, right in found.values()]
        network = {name: run.network_of(pair.sides[not is_old][0]) for pair in pairs for name in pair.new}
        if not all(own > other and len({network[name] for name in own}) > 1 for own, other in groups):
            continue
        number = min(step for step, *_ in found.values())
        if len({clip.group for steps in run.parameters.values() for each in steps for clip in each.clips}) == 1:
            continue  # one clip of all networks, and none of a single network
        more = sorted({name for own, other in groups for name in own - other})
        sentence = (
            f"in {run.name}, the clip of {names_text([pair.name for pair in found])} also gets the gradients of "
            f"{names_text(more)}, which belong to another network"
        )
        old, new = in_order("parameters of two networks", "parameters of one network", is_old)
        fix = "Pass the same parameters to this clip in both runs"
        return Finding(number, "parameters of another network", "clipped parameters", old, new, sentence, fix)
    return None


def _split_finding(
    a: Run, b: Run, found: Mapping[Pair, tuple[int, frozenset[str], frozenset[str]]], number: int
) -> Finding:
    pair = next(iter(found))
    whole, parts = (pair.old, pair.new) if len(pair.old) == 1 else (pair.new, pair.old)
    run, other = (a, b) if len(pair.old) == 1 else (b, a)
    names = enumeration(list(map(repr, parts)))
    sentence = (
        f"{run.name} clips {whole[0]!r} as one tensor. {other.name} splits it into {names}, and clips each part by its "
        "own norm"
    )
    fix = (
        f"In {other.name}, clip {names} together by their total norm, as GradientClipByGlobalNorm(c).clip_([...]) "
        "does, and each of the other tensors by its own norm"
    )
    old, new = in_order("one tensor", f"{len(parts)} tensors", run is a)
    return Finding(number, "another rule", "gradients that share a norm", old, new, sentence, fix)


def _group_fix(a: Run, b: Run, number: int, kind: CauseKind, old_is_finer: bool) -> str:
    old, new = (_first_clip(run, number) for run in (a, b))
    if old is None or new is None:
        return ""
    rule = "global"
    if old_is_finer:
        rule = "each" if kind == "per tensor for global" else "groups"
    return _change(b, code(rule, old, new, _constant_threshold(a)))


def _change(run: Run, code: str) -> str:
    """Return advice to write this code, with the import that it needs."""
    module = re.search(r"unified_clip(\.[a-z]+)?(?=\.)", code)
    return f"Change the clip of {run.name}: `{code}`{f', with `import {module[0]}`' if module else ''}"


def _constant_threshold(run: Run) -> str:
    """Return the threshold that a run passes to all its clips, or c."""
    clips = (clip for steps in run.parameters.values() for each in steps for clip in each.clips)
    first, *others = {clip.scaled_threshold for clip in clips}
    return value_text(first) if isinstance(first, float) and not others else "c"


def _first_clip(run: Run, number: int) -> Clip | None:
    return next((clip for each in run.at(number) for clip in each.clips), None)


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
    a: Run, b: Run, clipped: Sequence[Both], compare: Callable[[Both, Clip, Clip], Found | None]
) -> Iterator[Finding]:
    """Report the first step with a difference, with the values at this step."""
    found: list[tuple[int, Found, Pair, Clip, Clip]] = []
    for each in clipped:
        for old, new in _compared(each):
            if (difference := compare(each, old, new)) is not None:
                found.append((each.number, difference, each.pair, old, new))
    if not found:
        return
    number, first, _, old, new = min(found, key=lambda each: each[0])
    names = list(dict.fromkeys(pair.name for _, _, pair, *_ in found))
    count = len({each.pair for each in clipped})
    where = "" if len(names) == count else f" of {names_text(names)}"
    sentence = f"the {first.field}{where} is {value_text(first.new)} in {b.name} instead of {value_text(first.old)}"
    fix, effect = _setting_fix(a, b, first, old, new), max(each.effect for _, each, *_ in found)
    yield Finding(number, first.kind, first.field, first.old, first.new, sentence, fix, effect)


def _compared(each: Both) -> Iterator[tuple[Clip, Clip]]:
    """Pair the clips of one gradient. Of a different number of clips, pair the most similar ones."""
    old, new = each.old.clips, each.new.clips
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


def _setting_fix(a: Run, b: Run, found: Found, old: Clip, new: Clip) -> str:
    if found.field == SCALE:
        run = b if new.line.loss_scale else a
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
        return _change(b, code(rule, old, new, _constant_threshold(a)))
    return ""


def _rule(each: Both, old: Clip, new: Clip) -> Found | None:
    left, right = (RULES.get(clip.line.rule or "", str(clip.line.rule)) for clip in (old, new))
    return None if left == right else Found("another rule", "clip rule", f"by {left}", f"by {right}")


def _scale(each: Both, old: Clip, new: Clip) -> Found | None:
    """Compare the recorded loss scales, unless a script multiplies its threshold by the loss scale, too."""
    scales = [clip.line.loss_scale or 1.0 for clip in (old, new)]
    if scales[0] == scales[1] or (
        not _rule(each, old, new) and _are_same(old, new, old.line.threshold, new.line.threshold)
    ):
        return None
    first, second = (f"{scale:.6g}" for scale in scales)
    return Found("clipping before unscaling", SCALE, first, second)


def _threshold(each: Both, old: Clip, new: Clip) -> Found | None:
    if None in (old.line.threshold, new.line.threshold) or _rule(each, old, new):
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


def _order(each: Both, old: Clip, new: Clip) -> Found | None:
    if _rule(each, old, new) or "value" in (old.line.rule, new.line.rule) or old.line.order == new.line.order:
        return None
    return Found("another norm type", "norm type", old.line.order, new.line.order)


def _eps(each: Both, old: Clip, new: Clip) -> Found | None:
    """Report only an eps that changes a coefficient."""
    limit, first, second = new.line.threshold, old.line.eps or 0.0, new.line.eps or 0.0
    is_unknown = OWN_CODE in (old.line.call, new.line.call)
    if first == second or is_unknown or new.norm is None or not isinstance(limit, float) or _rule(each, old, new):
        return None
    coefs = [coefficient(new.norm, limit, eps) for eps in (first, second)]
    is_float64 = "float64" in (old.line.dtype, new.line.dtype)
    differ = coefs[0] != coefs[1] if is_float64 else single(coefs[0]) != single(coefs[1])
    effect = abs(coefs[0] - coefs[1]) / max(coefs) if max(coefs) else math.inf
    return Found("another eps of the clip", "eps of the clip", first, second, effect) if differ else None


def _norm(each: Both, old: Clip, new: Clip) -> Found | None:
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


def _coefficient(each: Both, old: Clip, new: Clip) -> Found | None:
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
