"""Find clips of gradients that a `GradScaler` or Accelerate has scaled and not yet unscaled."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from ....config.formats.python_source import Source, last_name, shortened
from ....errors import ConfigError
from ....port.catalog import ENGINE_METHODS
from ...clip_use import ACCELERATE_CLIP
from ..engine_methods import is_accelerator
from ..engine_of_clip import ACCELERATOR
from .gradient_events import Event, Place, Timeline, is_scaler_name

SCALED = "so the gradients are still multiplied by the scale of {scaler}."
LATE = "This clip comes before {call} in line {line}, {scaled} Clip after line {line}."
NEVER = (
    "No {scaler}.unscale_(optimizer) comes before this clip, {scaled} Call unscale_ after backward(), and before the "
    "clip."
)
SCALED_LOSS = (
    "This clip gets gradients of {loss}, {scaled} Clip the result of {scaler}.get_unscaled_gradients(gradients)."
)
ADVICE = "If this is intended, add the clip to check.ignore with a reason."

BY_ACCELERATE = (
    "With fp16, {backward} in line {line} multiplies the gradients by a loss scale, and this clip gets the scaled "
    "gradients. {precision} Call {accelerator}.unscale_gradients() before the clip{instead}. {advice}"
)
FP16 = "{place} sets mixed_precision to fp16."
RUN_TIME = "The precision, {code}, is only known at run time."
OUTSIDE = "This file does not set the precision: other code, the command line or a file of Accelerate may set fp16."

SCALING = ("scale", "get_scaled_loss")
"""The methods of a `GradScaler` and of TensorFlow's `LossScaleOptimizer` that multiply a loss by the loss scale."""

PRECISION = re.compile(r"(?i)(?<![a-z])amp(?![a-z])|scaler|16|half|mixed|precision")


def check(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if a clip always runs on scaled gradients.

    Gradients are scaled from scaler.scale(loss).backward() until scaler.unscale_ or scaler.step.
    """
    if not any(isinstance(node, ast.Attribute) and node.attr in SCALING for node in source.nodes):
        return
    timeline = Timeline(source, {(call.lineno, call.col_offset)})
    for clip, before, after in _clips(timeline):
        backward = _scaling(clip, before, lambda call: any(_scalers(timeline, call))) if clip.call is call else None
        scaling = next(_scalers(timeline, backward)) if backward else None
        scaler = ast.unparse(scaling.func).rpartition(".")[0] if scaling else ""
        if scaling and any(each.kind == "step" and _is_by(scaler, each.call) for each in after):
            late = next((each.call for each in after if each.kind == "unscale"), None)
            raise ConfigError(f"{_why(scaling, scaler, late)} {ADVICE}")


def _why(scaling: ast.Call, scaler: str, late: ast.Call | None) -> str:
    scaled = SCALED.format(scaler=scaler)
    if last_name(scaling.func) == SCALING[1]:
        return SCALED_LOSS.format(loss=shortened(scaling), scaler=scaler, scaled=scaled)
    if late:
        return LATE.format(call=ast.unparse(late), line=late.lineno, scaled=scaled)
    return NEVER.format(scaler=scaler, scaled=scaled)


def by_accelerate(source: Source, clips: Set[Place], files: Mapping[str, str]) -> dict[Place, str]:
    """Find clips of gradients that Accelerate might have scaled, and return the reason for each finding.

    With fp16, `accelerator.backward` scales the gradients. `accelerator.clip_grad_norm_` and unified_clip's `clip_` for
    Accelerate remove the scale before the clip.

    files: The mixed precision in each Accelerate configuration file, by file name.
    """

    def is_scaled(call: ast.Call) -> bool:
        return is_accelerator(source, getattr(call.func, "value", call))

    def unscales(call: ast.Call) -> bool:
        return is_scaled(call) or source.dotted(call.func) == ACCELERATE_CLIP

    backwards = [call for call in source.calls if getattr(call.func, "attr", "") == "backward" and is_scaled(call)]
    precision = _precision(source, files) if backwards else ""
    reasons = {}
    for clip, before, after in _clips(Timeline(source, clips)) if precision else ():
        before = [
            each._replace(kind="unscale") if each.kind == "clip" and unscales(each.call) else each for each in before
        ]
        backward = None if unscales(clip.call) else _scaling(clip, before, is_scaled)
        if backward is not None and any(each.kind == "step" for each in after):
            owner, name = ast.unparse(backward.func).removesuffix(".backward"), last_name(clip.call.func)
            reasons[clip.call.lineno, clip.call.col_offset] = BY_ACCELERATE.format(
                backward=f"{owner}.backward(...)", line=backward.lineno, precision=precision, accelerator=owner,
                instead=f", or clip with {owner}.{name}" if name in ENGINE_METHODS else "", advice=ADVICE,
            )  # fmt: skip
    return reasons


def _precision(source: Source, files: Mapping[str, str]) -> str:
    calls = [call for call in source.calls if source.dotted(call.func) in ACCELERATOR]
    names = "mixed_precision", None
    passed = [[*call.args[2:3], *(each.value for each in call.keywords if each.arg in names)] for call in calls]
    codes = [_constant(source, values[0]) if values else "None" for values in passed]
    if "fp16" in codes:
        return FP16.format(place=f"Line {calls[codes.index('fp16')].lineno}")
    if "" in codes:
        return RUN_TIME.format(code=shortened(passed[codes.index("")][0]))
    if calls and "None" not in codes:
        return ""
    file = next((file for file, precision in files.items() if precision == "fp16"), "")
    outside = OUTSIDE if not calls or not files else ""
    return FP16.format(place=file) if file else outside


def _constant(source: Source, node: ast.expr) -> str:
    """Return the precision, or '' if the precision is unknown and might be fp16."""
    node = source.followed(node)
    if isinstance(node, ast.IfExp):
        values = [_constant(source, each) for each in (node.body, node.orelse)]
        return "" if {"fp16", "None", ""} & {*values} else values[0]
    with contextlib.suppress(ConfigError):
        return str(source.constant(node))
    return ""


def _clips(timeline: Timeline) -> Iterator[tuple[Event, list[Event], list[Event]]]:
    """Yield (clip, events before the clip, events between the clip and the next backward pass)."""
    for events in timeline.roots():
        for index, event in enumerate(events):
            inner = timeline.of_callees(event.call) if event.kind == "clip" else []
            inner = [each._replace(branches=each.branches | event.branches) for each in inner] or [event]
            others = [each for each in events[index:] if each.excludes(event)]
            after = [each for each in events[index:] if each not in others]
            after = [*itertools.takewhile(lambda each: each.kind != "backward", after)]
            for number, clip in enumerate(inner):
                if clip.kind == "clip":
                    yield clip, [*events[:index], *inner[:number], *others], after


def _is_by(scaler: str, step: ast.Call) -> bool:
    owner = step.func.value if isinstance(step.func, ast.Attribute) else step.func
    return ast.unparse(owner) == scaler or is_scaler_name(owner)


def _scaling(clip: Event, before: Sequence[Event], is_scaled: Callable[[ast.Call], bool]) -> ast.Call | None:
    for event in reversed(before):
        if event.excludes(clip):
            if event.kind == "unscale" and _depends_on_precision(event, clip):
                return None  # as in if use_amp: unscale and clip, else: clip
            continue
        if event.kind == "unscale" or any(map(is_scaler_name, event.call.args)):
            return None
        if event.kind == "backward" and is_scaled(event.call):
            return event.call
        if event.kind != "clip" and event.branches <= clip.branches:
            return None
    return None


def _depends_on_precision(event: Event, clip: Event) -> bool:
    tests = [test for calls, test, is_first in event.branches if (calls, test, not is_first) in clip.branches]
    return any(PRECISION.search(ast.unparse(each.test)) for each in tests)


def _scalers(timeline: Timeline, backward: ast.Call) -> Iterator[ast.Call]:
    for node in timeline.flow.reached(backward):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="scale"), args=[_]) if _scales(timeline, owner):
                yield node
            case ast.Call(func=ast.Attribute(attr="get_scaled_loss")):
                yield node


def _scales(timeline: Timeline, owner: ast.expr) -> bool:
    """Return whether an object is an enabled `GradScaler`. If its class is unknown, the name of the object decides."""
    calls = [node for node in timeline.flow.reached(owner) if isinstance(node, ast.Call)]
    classes = [call for call in calls if timeline.source.dotted(call.func).endswith("Scaler")]
    return any(_is_enabled(timeline.source, call) for call in classes) if classes else is_scaler_name(owner)


def _is_enabled(source: Source, call: ast.Call) -> bool:
    switches = [ast.unparse(each.value) for each in call.keywords if each.arg == "enabled"]
    return source.dotted(call.func).endswith("GradScaler") and switches != ["False"]
