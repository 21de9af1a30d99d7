"""Find optimizer steps without a clip."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from ....config.formats.python_source import Source, last_name
from ...clip_use import ClipUse
from ..optimizers import attached, has_clip, is_made
from . import optimizers_without_clip, value_flow
from .gradient_events import APPLY, Event, Place, Timeline

COMPUTING = ("gradient", "gradients", "compute_gradients", "get_gradients")

WITHOUT = "{step} uses unclipped gradients, although line {line} clips the gradients of {other}. Clip before each step."
UNCLEAR = (
    "Line {line} clips the gradients of {other}. This file does not show whether {step} uses clipped gradients. "
    "Compute, clip and use the gradients in one function."
)


class _Clipped(NamedTuple):
    owner: str
    line: int


class _Steps:
    def __init__(self, source: Source, timeline: Timeline) -> None:
        self.source, self.timeline = source, timeline
        self.attached = {owner: call.lineno for call in source.calls if (owner := attached(call))}
        self.made = self._made()
        self.of_others: list[_Clipped] = []
        """The clips that come before a step, but clip another model than the step changes."""

    def _made(self) -> dict[str, list[ast.Call]]:
        made: dict[str, list[ast.Call]] = {}
        for node in self.source.nodes:
            for target, value, _ in value_flow.assigned(node) if isinstance(node, ast.Assign) else ():
                if isinstance(value, ast.Call):
                    made.setdefault(ast.unparse(target), []).append(value)
        return made

    def clip_of(self, event: Event, before: Sequence[Event]) -> int | None:
        """Return the line of the clip before a step, or 0 if there is none.

        Return None if it is unknown whether a clip comes before the step.
        """
        if line := self._clip_of_optimizer(event.owner):
            return line
        if last_name(event.call.func) in APPLY:
            return self._clip_of_argument(event)
        for other in reversed(before):
            if event.excludes(other):
                continue
            if other.kind == "backward":
                return 0
            if other.kind == "clip":
                if not self._is_of_another(event.owner, other.call):
                    return other.call.lineno
                self.of_others.append(_Clipped(", ".join(sorted(self._clipped_models(other.call))), other.call.lineno))
        return None

    def _clip_of_optimizer(self, owner: str) -> int:
        last = owner.rpartition(".")[2]
        if line := self.attached.get(owner) or self.attached.get(last):
            return line
        for call in self.made.get(owner, ()):
            is_unpacked = any(each.arg is None for each in call.keywords)
            if has_clip(call) or (is_unpacked and is_made(self.source, call)):
                return call.lineno
        return 0

    def _clip_of_argument(self, step: Event) -> int | None:
        calls = [node for node in self.timeline.gradients(step) if isinstance(node, ast.Call)]
        if clips := [each for each in calls if self.timeline.is_clip(each)]:
            return clips[0].lineno
        return 0 if any(last_name(each.func) in COMPUTING for each in calls) else None

    def _is_of_another(self, owner: str, clip: ast.Call) -> bool:
        clipped, mine = self._clipped_models(clip), self._models(owner)
        others = [self._models(other) for other in self.made if other != owner]
        is_of_other = any(each and not value_flow.are_apart(clipped, each) for each in others)
        return value_flow.are_apart(clipped, mine) and (is_of_other or self._are_unrelated(clipped, mine))

    def _clipped_models(self, clip: ast.Call) -> set[str]:
        return {model for argument in clip.args[:1] for model in self.timeline.flow.models(argument)}

    def _are_unrelated(self, left: set[str], right: set[str]) -> bool:
        for models, others in ((left, right), (right, left)):
            for calls in (self.made.get(model) or self.made.get(f"self.{model}") for model in models):
                nodes = [node for call in calls or () for node in self.timeline.flow.reached(call)]
                if not nodes or others & {value_flow.code_of(node).removeprefix("self.") for node in nodes}:
                    return False
        return True

    def _models(self, owner: str) -> set[str]:
        calls = [call for call in self.made.get(owner, ()) if is_made(self.source, call)]
        named = [each.value for call in calls for each in call.keywords if each.arg in ("params", "parameters")]
        parameters = [*named, *(each for call in calls for each in call.args[:1])]
        return {model for each in parameters for model in self.timeline.flow.models(each)}


def read(source: Source, path: Path, clips: Set[Place]) -> list[ClipUse]:
    """Return a `ClipUse` for each optimizer step without a clip. If the file has no clip, return []."""
    timeline = Timeline(source, clips)
    around = (outer for call in source.calls if timeline.is_clip(call) for outer in source.around(call))
    if any(isinstance(outer, ast.Call) and "hook" in last_name(outer.func) for outer in around):
        return []  # a hook clips the gradients of all steps
    steps = _Steps(source, timeline)
    judged: list[tuple[Event, int | None]] = []
    for events, index, event in steps_of(timeline):
        name = getattr(timeline.function(event.call), "name", "")
        if "step" not in name or any(each.kind == "backward" for each in events):  # else a wrapper of an optimizer
            judged.append((event, steps.clip_of(event, events[:index])))
    clipped = [_Clipped(event.owner, line) for event, line in judged if line]
    uses = _of_steps(path, judged, clipped or steps.of_others)
    return uses + optimizers_without_clip.read(source, path, timeline, {event.owner for event, _ in judged})


def steps_of(timeline: Timeline) -> Iterator[tuple[list[Event], int, Event]]:
    """Yield (events, index, step) for each step of an optimizer.

    Steps of an engine are left out, because an engine can clip its own gradients.
    """
    for events in timeline.roots():
        for index, event in enumerate(events):
            if event.kind == "step" and event.owner and "engine" not in event.owner.rpartition(".")[2].lower():
                yield events, index, event


def _of_steps(path: Path, judged: Sequence[tuple[Event, int | None]], clipped: Sequence[_Clipped]) -> list[ClipUse]:
    owners = {each.owner for each in clipped}
    uses: dict[ast.Call, ClipUse] = {}
    for event, line in judged if clipped else ():
        if line or (line is None and event.owner in owners):
            continue
        other = next((each for each in clipped if each.owner != event.owner), clipped[0])
        step = ast.unparse(event.call.func)
        text = WITHOUT if line == 0 else UNCLEAR
        owner = "" if event.owner in ast.unparse(event.call) else f" for {event.owner}"
        why = text.format(step=f"{step}(...){owner}", other=other.owner, line=other.line)
        place = path, event.call.lineno, event.call.col_offset + 1
        uses[event.call] = ClipUse(*place, step, why_unknown=why, unclipped=line == 0, package="torch")
    return list(uses.values())
