"""Find optimizers that are built without a clip, in files that build another optimizer with a clip."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ....config.formats.python_source import Source, last_name
from ...clip_use import ClipUse
from ..optimizers import built, has_clip
from .gradient_events import Timeline

WITHOUT = (
    "This optimizer is built without a clip, while {other} in line {line} is built with one. Build each optimizer with "
    "a clip."
)
ELSEWHERE = (
    "This optimizer{more} is built without a clip, while {other} in line {line} is built with one. The file does not "
    "show whether other code clips the gradients of this optimizer. Build each optimizer with a clip."
)
PACKAGES = {"optax": "optax", "paddle": "paddle", "keras": "keras", "tensorflow": "keras", "tf_keras": "tf_keras"}
SETTING = re.compile(r"(?i)clip|grad_?norm|max_?norm")

WRAPPERS = ("LossScaleOptimizer", "MultiOptimizer", "LookAhead", "ModelAverage", "chain")


class _Place(NamedTuple):
    """A call that builds an optimizer, or a call of a function that returns an optimizer."""

    node: ast.expr
    code: str
    package: str
    is_clipped: bool


def read(source: Source, path: Path, timeline: Timeline, owners: Set[str]) -> list[ClipUse]:
    """Return a `ClipUse` for each optimizer without a clip. If no optimizer in the file has a clip, return []."""
    places = {each.node: each for each in _places(source, timeline)}.values()
    clipped = [each for each in places if each.is_clipped]
    judged = owners - {target for each in clipped for target in _targets(source, each.node)}
    switched = {
        (timeline.function(each.node), target)
        for each in clipped
        if _is_switch(source, each.node)
        for target in _targets(source, each.node)
    }
    beside: list[ClipUse] = []
    elsewhere: list[ClipUse] = []
    for node, code, package, is_clipped in places:
        others = [other for other in clipped if other.package == package]
        targets = _targets(source, node)
        is_off = _is_switch(source, node) or any((timeline.function(node), each) in switched for each in targets)
        if is_clipped or not others or targets & judged or is_off:
            continue
        other = next((each for each in others if timeline.function(each.node) is timeline.function(node)), None)
        text, shown = (WITHOUT if other else ELSEWHERE), other or others[0]
        why = text.format(other=_code(shown.node), line=shown.node.lineno, more="{more}")
        place = path, node.lineno, node.col_offset + 1
        use = ClipUse(*place, code, why_unknown=why, unclipped=other is not None, package=package)
        (elsewhere if other is None else beside).append(use)
    more = f", and {len(elsewhere) - 1} more in this file," if len(elsewhere) > 1 else ""
    return beside + [replace(use, why_unknown=use.why_unknown.replace("{more}", more)) for use in elsewhere[:1]]


def _places(source: Source, timeline: Timeline) -> Iterator[_Place]:
    for node, name in built(source):
        package = PACKAGES.get(name.partition(".")[0], "")
        if not package or name.endswith(WRAPPERS):
            continue
        is_clip = partial(_clips, source, timeline, package=name.partition(".")[0])
        sites = {
            site: any(map(_may_set_clip, [node] if isinstance(node, ast.Call) else calls)) or any(map(is_clip, calls))
            for site, outer in timeline.flow.sites(node).items()
            for calls in [[each for each in outer if isinstance(each, ast.Call)]]
        }
        if len({*sites.values()}) < 2:
            sites = {node: all(sites.values())}
        for site, site_clips in sites.items():
            yield _Place(site, name if site is node else _code(site), package, site_clips)


def _code(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _is_switch(source: Source, node: ast.expr) -> bool:
    tests = (outer.test for outer in source.around(node) if isinstance(outer, ast.If | ast.IfExp))
    return any(SETTING.search(ast.unparse(test)) for test in tests)


def _targets(source: Source, node: ast.expr) -> set[str]:
    statement = next(outer for outer in source.around(node) if isinstance(outer, ast.stmt))
    return {ast.unparse(each) for each in statement.targets} if isinstance(statement, ast.Assign) else set()


def _may_set_clip(call: ast.Call) -> bool:
    return has_clip(call) or any(each.arg is None for each in call.keywords)


def _clips(source: Source, timeline: Timeline, call: ast.Call, package: str) -> bool:
    if _is_clip(timeline, call) or any(event.kind == "clip" for event in timeline.of_callees(call)):
        return True
    if source.dotted(call.func).partition(".")[0] != package:
        return False
    nodes = (each for part in (*call.args, *call.keywords) for each in timeline.flow.reached(part))
    return any(map(timeline.names_clip, nodes))


def _is_clip(timeline: Timeline, call: ast.Call) -> bool:
    return timeline.is_clip(call) or last_name(call.func) in ("as_optax", "as_paddle", "attach_to")
