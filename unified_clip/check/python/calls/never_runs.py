"""Find clips that never run, because a condition is always false or because no code calls the function."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ....config.formats.python_source import FUNCTIONS, Source, shortened
from ....errors import ConfigError
from ...notebooks.cells import python_source, source_of
from ..steps.gradient_events import Place, Timeline, passed
from .order import ADVICE

CONSTANT = "This clip never runs: the condition {test} has a constant value. Remove the condition, or remove the clip. "
UNCALLED = (
    "This clip never runs: no code in the checked files uses {name}, the function that contains the clip. Call {name} "
    "before each step, or remove {name}. "
)


def check_condition(source: Source, call: ast.Call) -> None:
    inner: ast.AST = call
    for outer in source.around(call):
        if isinstance(outer, FUNCTIONS):
            break
        if isinstance(outer, ast.If | ast.While | ast.IfExp) and inner is not outer.test:
            value = _value(source, outer.test)
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if value is not None and bool(value) is not (inner in body):
                raise ConfigError(CONSTANT.format(test=shortened(outer.test)) + ADVICE)
        inner = outer


def _value(source: Source, test: ast.expr) -> object:
    with contextlib.suppress(ConfigError):
        return source.constant(test)
    return None


def why_uncalled(source: Source, place: Place, paths: Sequence[Path]) -> str:
    """Return the reason why no code calls the function that contains the clip at `place`, or ''."""
    function = source.function(clip) if (clip := _call_at(source, place)) is not None else None
    if not isinstance(function, FUNCTIONS[:2]) or not isinstance(source.parents[function], ast.Module):
        return ""
    timeline = Timeline(source, frozenset())
    steps = [event.call for events in timeline.roots() for event in events if event.kind == "step"]
    inside = [step for step in steps if function in source.around(step)]
    called = {event.call for event in timeline.events(function)}.intersection(steps)
    if not steps or inside or called or function.decorator_list:
        return ""
    name = re.compile(rb"\b%s\b" % re.escape(function.name.encode()))
    is_named = sum(len(name.findall(python_source(path))) for path in paths) > 1 or function.name.startswith("test")
    return "" if is_named else UNCALLED.format(name=function.name) + ADVICE


def _call_at(source: Source, place: Place) -> ast.Call | None:
    return next((call for call in source.calls if (call.lineno, call.col_offset) == place), None)


def is_switched_off(source: Source, place: Place, paths: Sequence[Path]) -> bool:
    """Return whether every caller passes None for P, so that a clip inside `if P is not None` never runs.

    Return False if the callers are unknown: no file calls the function, or code passes the function as an argument.
    """
    clip = _call_at(source, place)
    function = source.function(clip) if clip is not None else None
    if clip is None or not isinstance(function, FUNCTIONS[:2]):
        return False
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    stores = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    switches = {each.arg for each in arguments} & {*_switches(source, clip)}
    switches -= {store.id for store in stores if store.id not in _switches(source, store)}
    calls = _calls(function.name, paths) if switches else []
    return bool(calls) and any(all(_is_none(passed(function, call).get(name)) for call in calls) for name in switches)


def _switches(source: Source, node: ast.AST) -> Iterator[str]:
    """Yield each variable that must not be None for the node to run, such as `limit` in `if limit is not None`."""
    inner = node
    for outer in source.around(node):
        if isinstance(outer, FUNCTIONS):
            return
        if isinstance(outer, ast.If) and inner in outer.body:
            test = outer.test
            for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
                match part:
                    case (
                        ast.Name(id=name)
                        | ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])
                    ):
                        yield name
        inner = outer


def _calls(name: str, paths: Sequence[Path]) -> list[ast.Call]:
    """Return the calls of the function `name` in all files. Return [] if code passes the function as an argument."""
    calls: list[ast.Call] = []
    for path in paths:
        if name.encode() not in python_source(path):
            continue
        if (source := source_of(path)) is None:
            return []
        for node in source.nodes:
            match node:
                case ast.alias(name=imported, asname=str()) if imported == name:
                    return []
                case ast.Name(id=used) | ast.Attribute(attr=used) | ast.Constant(value=used) if used == name:
                    parent = source.parents[node]
                    if isinstance(parent, ast.Call) and parent.func is node:
                        calls.append(parent)
                    elif isinstance(parent, ast.Call) or not isinstance(node, ast.Constant):  # as getattr(module, name)
                        return []
    return calls


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
