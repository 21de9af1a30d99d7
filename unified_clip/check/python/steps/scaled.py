"""Find clips of gradients that a `GradScaler` has scaled, and not unscaled yet."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from ....config.formats.python_source import Source
from ....errors import ConfigError
from .events import Event, Timeline, is_scaler_name

SCALED = "so the gradients are still multiplied by the scale of {scaler}."
LATE = "This clip comes before {call} in line {line}, {scaled} Clip after this line."
NEVER = (
    "This clip has no {scaler}.unscale_(optimizer) before it, {scaled} Call it after backward(), and before the clip."
)
ADVICE = "If this is intended, ignore the clip with a reason in check.ignore."


def check(source: Source, call: ast.Call) -> None:
    """Check whether a clip gets unscaled gradients. ConfigError: the gradients are scaled for sure.

    They are scaled between a backward pass of a scaled loss, as in scaler.scale(loss).backward(), and scaler.step(...).
    """
    if not any(isinstance(node, ast.Attribute) and node.attr == "scale" for node in source.nodes):
        return
    timeline = Timeline(source, {(call.lineno, call.col_offset)})
    for events in timeline.roots():
        for index, event in enumerate(events):
            scaler = _scaler(timeline, event, events[:index]) if event.call is call else ""
            after = [each for each in events[index:] if not each.excludes(event)]
            after = [*itertools.takewhile(lambda each: each.kind != "backward", after)]
            if scaler and any(each.kind == "step" and _is_by(scaler, each.call) for each in after):
                late = next((each.call for each in after if each.kind == "unscale"), None)
                place = {"call": ast.unparse(late), "line": late.lineno} if late else {}
                why = (LATE if late else NEVER).format(scaler=scaler, scaled=SCALED.format(scaler=scaler), **place)
                raise ConfigError(f"{why} {ADVICE}")


def _is_by(scaler: str, step: ast.Call) -> bool:
    owner = step.func.value if isinstance(step.func, ast.Attribute) else step.func
    return ast.unparse(owner) == scaler or is_scaler_name(owner)


def _scaler(timeline: Timeline, clip: Event, before: Sequence[Event]) -> str:
    """Return the code of the scaler whose scale a clip's gradients have for sure, or ''.

    before: The events before the clip, in order.
    """
    for event in reversed(before):
        if event.excludes(clip):
            continue
        if event.kind == "unscale" or any(map(is_scaler_name, event.call.args)):
            return ""
        if event.kind == "backward" and (scaler := next(_scalers(timeline, event.call), "")):
            return scaler
        if event.kind != "clip" and event.branches <= clip.branches:
            return ""
    return ""


def _scalers(timeline: Timeline, backward: ast.Call) -> Iterator[str]:
    """Yield the code of each scaler by which code multiplies the loss of a `backward`."""
    for node in timeline.flow.reached(backward):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="scale"), args=[_]) if _scales(timeline, owner):
                yield ast.unparse(owner)


def _scales(timeline: Timeline, owner: ast.expr) -> bool:
    """Return whether an object is an enabled `GradScaler`. Without a class in the file, its name decides."""
    calls = [node for node in timeline.flow.reached(owner) if isinstance(node, ast.Call)]
    classes = [call for call in calls if timeline.source.dotted(call.func).endswith("Scaler")]
    return any(_is_enabled(timeline.source, call) for call in classes) if classes else is_scaler_name(owner)


def _is_enabled(source: Source, call: ast.Call) -> bool:
    """Return whether a call makes a `GradScaler` that may scale."""
    switches = [ast.unparse(each.value) for each in call.keywords if each.arg == "enabled"]
    return source.dotted(call.func).endswith("GradScaler") and switches != ["False"]
