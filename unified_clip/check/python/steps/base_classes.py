"""Find classes that leave clipping to a base class, such as a library's trainer."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path

from ....config.formats.python_source import Source, last_name
from ....port.catalog import FRAMEWORKS, setting_of_base
from ...notebooks.cells import python_source, source_of
from .gradient_events import Timeline
from .steps_without_clip import steps_of
from .value_flow import Flow

CLASS = re.compile(r"^[ \t]*class\s+\w+\s*\(([^()]*)\)", re.MULTILINE)

BASE = re.compile(r"(\w+)(?=\s*(?:,|$|\[))")
TRAINER = re.compile(r"(Brain|LightningModule|Trainer)$")

Classes = Mapping[str, str]
"""Maps a class to its base class in a library, such as "speechbrain.Brain". Without such a base, the value is ''."""


def derived(names: Set[str], files: Iterable[Path]) -> dict[str, str]:
    classes = dict.fromkeys(names, "")
    bases: dict[Path, set[str]] = {}
    for file in files:
        with contextlib.suppress(OSError):
            classes_of_file = CLASS.findall(python_source(file).decode("utf-8", "replace"))
            bases[file] = {base for parents in classes_of_file for base in BASE.findall(parents)}
    sources: dict[Path, Source | None] = {}
    before = -1
    while before < len(classes):
        before = len(classes)
        for file, parents in bases.items():
            if parents & classes.keys() or any(map(TRAINER.search, parents)):
                source = sources[file] if file in sources else sources.setdefault(file, source_of(file))
                classes = {**(inheriting(source, classes) if source is not None else {}), **classes}
    return classes


def inheriting(source: Source, known: Classes) -> dict[str, str]:
    nodes = {node.name: node for node in source.nodes if isinstance(node, ast.ClassDef)}
    classes: dict[str, str] = {}
    for _ in nodes:
        for name, base in ((name, base) for name, node in nodes.items() for base in node.bases):
            last, full = last_name(base), source.dotted(base)
            if setting_of_base(full) is not None:
                classes.setdefault(name, full)
            elif full.partition(".")[0] not in FRAMEWORKS and last in (classes if last in nodes else known):
                classes.setdefault(name, classes[last] if last in nodes else known[last])
    return classes


def left_to_trainers(source: Source, built: Sequence[ast.expr], known: Callable[[], Classes]) -> dict[ast.expr, str]:
    """Return {optimizer: trainer} for each optimizer that is passed to a trainer or built in its subclass."""
    has_bases = any(isinstance(node, ast.ClassDef) and node.bases for node in source.nodes)
    classes = inheriting(source, known()) if built and has_bases else {}
    if not classes and not any(setting_of_base(source.dotted(call.func)) for call in source.calls):
        return {}
    flow = Flow(source)
    trainers = {node: _trainer(flow, node, classes) for node in built}
    return {node: trainer for node, trainer in trainers.items() if trainer is not None}


def step_of_own_loop(source: Source) -> ast.Call | None:
    """Return the first optimizer step of a file that creates a `Trainer` but never calls `trainer.train()`."""
    functions = [call.func for call in source.calls if last_name(call.func) == "train"]
    owners = [source.followed(each.value) for each in functions if isinstance(each, ast.Attribute)]
    is_trained = any("trainer" in ast.unparse(owner).lower() for owner in owners)
    if is_trained or not any(last_name(call.func).endswith("Trainer") for call in source.calls):
        return None
    return next((event.call for _, _, event in steps_of(Timeline(source, frozenset()))), None)


def _trainer(flow: Flow, node: ast.expr, classes: Classes) -> str | None:
    for outer in flow.source.around(node):
        if isinstance(outer, ast.ClassDef) and outer.name in classes:
            return classes[outer.name]
    places = flow.sites(node).values()
    calls = [[flow.source.dotted(each.func) for each in outer if isinstance(each, ast.Call)] for outer in places]
    passed = [[each for each in names if each in classes or setting_of_base(each)] for names in calls]
    return classes.get(passed[0][0], passed[0][0]) if passed and all(passed) else None
