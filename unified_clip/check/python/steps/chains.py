"""Find optimizers without a clip, in a file that builds another optimizer with one: optax, Keras and Paddle."""

from __future__ import annotations

import ast
import re
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from ....config.formats.python_source import Source, last_name
from ...clip_use import ClipUse
from ..optimizers import OPTIMIZER, has_clip
from .events import Timeline

WITHOUT = (
    "This optimizer is built without a clip, while {other} in line {line} is built with one. Build each optimizer with "
    "a clip."
)
ELSEWHERE = (
    "This optimizer{more} is built without a clip, while {other} in line {line} is built with one. The file does not "
    "show whether other code clips its gradients. Build each optimizer with a clip."
)
PACKAGES = {"optax": "optax", "paddle": "paddle", "keras": "keras", "tensorflow": "keras", "tf_keras": "tf_keras"}
SETTING = re.compile(r"(?i)clip|grad_?norm|max_?norm")
"""Matches the name of a clip setting in a condition."""

WRAPPERS = ("LossScaleOptimizer", "MultiOptimizer", "LookAhead", "ModelAverage")
"""The last parts of the names of optimizers around another optimizer."""


def read(source: Source, path: Path, timeline: Timeline, owners: Set[str]) -> list[ClipUse]:
    """Return a clip of unknown effect for each optimizer without a clip, if the file builds one with a clip.

    An optimizer in a branch of an `if` whose condition names a clip setting is left out: its clip is off.
    If one function builds both optimizers, the clip has `unclipped`. All other optimizers without a clip share one
    clip.

    owners: The code of optimizers whose steps are in the file. `unclipped.py` judges these by their steps, unless the
    file also builds the same optimizer with a clip, as in another branch of an `if`.
    """
    made = sorted(
        (call for call in source.calls if _package(source, call)), key=lambda call: (call.lineno, call.col_offset)
    )
    clipped = [call for call in made if _has_clip(source, timeline, call)]
    judged = owners - {target for call in clipped for target in _targets(source, call)}
    beside: list[ClipUse] = []
    elsewhere: list[ClipUse] = []
    for call in made:
        others = [other for other in clipped if _package(source, other) == _package(source, call)]
        if call in clipped or not others or _targets(source, call) & judged or _is_switch(source, call):
            continue
        other = next((each for each in others if timeline.function(each) is timeline.function(call)), None)
        text, name = (WITHOUT if other else ELSEWHERE), source.dotted(call.func)
        shown = other or others[0]
        why = text.format(other=ast.unparse(shown.func), line=shown.lineno, more="{more}")
        place, package = (path, call.lineno, call.col_offset + 1), _package(source, call)
        use = ClipUse(*place, name, why_unknown=why, unclipped=other is not None, package=package)
        (elsewhere if other is None else beside).append(use)
    more = f", and {len(elsewhere) - 1} more in this file," if len(elsewhere) > 1 else ""
    return beside + [replace(use, why_unknown=use.why_unknown.replace("{more}", more)) for use in elsewhere[:1]]


def _package(source: Source, call: ast.Call) -> str:
    """Return the package of an optimizer that a call builds. Return '' for PyTorch, and for any other call."""
    name = source.dotted(call.func)
    is_optimizer = OPTIMIZER.fullmatch(name) is not None and not name.endswith(WRAPPERS)
    return PACKAGES.get(name.partition(".")[0], "") if is_optimizer else ""


def _is_switch(source: Source, call: ast.Call) -> bool:
    """Return whether a condition with the name of a clip setting decides about a call, as in `if args.clip_norm:`."""
    tests = (outer.test for outer in source.around(call) if isinstance(outer, ast.If | ast.IfExp))
    return any(SETTING.search(ast.unparse(test)) for test in tests)


def _targets(source: Source, call: ast.Call) -> set[str]:
    statement = source.parents[call]
    return {ast.unparse(each) for each in statement.targets} if isinstance(statement, ast.Assign) else set()


def _has_clip(source: Source, timeline: Timeline, call: ast.Call) -> bool:
    """Return whether an optimizer has an argument that clips, or may be in a chain with a clip."""
    if has_clip(call) or any(each.arg is None for each in call.keywords):
        return True
    package = source.dotted(call.func).partition(".")[0]
    return any(_clips(source, timeline, outer, package) for outer in timeline.flow.outer_calls(call))


def _clips(source: Source, timeline: Timeline, call: ast.Call, package: str) -> bool:
    """Return whether a call clips, calls a function of the file that clips, or passes a clip to the package."""
    if _is_clip(timeline, call) or any(event.kind == "clip" for event in timeline.of_callees(call)):
        return True
    if source.dotted(call.func).partition(".")[0] != package:
        return False
    nodes = (each for part in (*call.args, *call.keywords) for each in timeline.flow.reached(part))
    return any(map(timeline.names_clip, nodes))


def _is_clip(timeline: Timeline, call: ast.Call) -> bool:
    return timeline.is_clip(call) or last_name(call.func) in ("as_optax", "as_paddle", "attach_to")
