from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ....config.formats.python_source import FUNCTIONS, Source, last_name, shortened
from ....port.catalog import setting_of
from ...notebooks.cells import source_of
from ..optimizers import built
from . import base_classes, steps_without_clip
from .gradient_events import APPLY, Timeline
from .value_flow import Flow

MODULE = re.compile(r"(\w+\.)+optim(izers?)?")

BUILDER = re.compile(
    r"(?i)_*(build|configure|create|get|init(ialize)?|instantiate|make|prepare|set_?up)_?(\w+_)?optim(izer)?s?"
    r"(_v2|_(and|for|from)_\w+)?"
)
"""Matches the name of a function that builds an optimizer, such as timm's `create_optimizer_v2`."""

FACTORY = re.compile(r"(?i)(\w+_)?optim(izer)?(_?(class|cls|constructor|factory|fn|type))?")
"""Matches the name of an object that builds an optimizer from parameters, as in `hparams.optimizer(params=p)`."""


class Training(NamedTuple):
    line: int
    words: str
    """What the code does, such as "builds an optimizer with optax.adamw"."""

    trainer: str = ""
    """The library's class that clips instead of this code, such as "speechbrain.Brain". Otherwise ''."""


def first(path: Path, clipping: Callable[[], base_classes.Classes]) -> Training | None:
    source = source_of(path)
    if source is None:
        return None
    own = {node.name for node in source.nodes if isinstance(node, (*FUNCTIONS[:2], ast.ClassDef))}
    named = list(_named(source))
    building = named or [*_possible(source, own), *_trainers(source)]
    left = base_classes.left_to_trainers(source, [node for node, _ in building], clipping)
    steps = [] if named and not left else list(_steps(source))
    is_clipped = False
    if steps or not named:
        called = {_name_of(call, source) for call in source.calls if last_name(call.func) not in own}
        is_clipped = bool(building or steps) and any(clipping().get(name) == "" for name in called)
    if is_clipped and not named:
        return None
    code = [*building, *steps] if steps and not is_clipped else [each for each in building if each[0] not in left]
    if code or not any(left.values()):
        return min((Training(node.lineno, words) for node, words in code), default=None)
    (node, words), *_ = building
    return Training(node.lineno, words, next(filter(None, left.values())))


def _name_of(call: ast.Call, source: Source) -> str:
    """Return the name of the called function, with a leading dot for a method of an object, as in `model.train()`."""
    owner, _, name = source.dotted(call.func).rpartition(".")
    root = owner.partition(".")[0]
    return f".{name}" if root and root not in source.packages else name


def functions_at(path: Path, lines: Collection[int]) -> set[str]:
    """Return the names of the functions, methods and classes around these lines. Names of methods begin with a dot."""
    source = source_of(path)
    if source is None:
        return set()
    return {
        f".{node.name}" if isinstance(source.parents[node], ast.ClassDef) and node.name != "__init__" else node.name
        for node in source.nodes
        if isinstance(node, (*FUNCTIONS[:2], ast.ClassDef))
        and any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
    }


def _named(source: Source) -> Iterator[tuple[ast.expr, str]]:
    for node, name in built(source):
        is_class = isinstance(node, ast.Call) and not name.endswith(".compile")
        yield node, f"builds an optimizer with {shortened(node.func if is_class else node)}"  # type: ignore[attr-defined]
    packages = source.packages
    for read in (node for node in source.nodes if isinstance(node, ast.Name | ast.Attribute)):
        name, parent = source.dotted(read), source.parents[read]
        is_searched = isinstance(parent, ast.Call) or getattr(parent, "attr", "") == "__dict__"
        if is_searched and name.partition(".")[0] in packages and MODULE.fullmatch(name):
            yield read, f"builds an optimizer with {shortened(parent)}"


def _possible(source: Source, own: Collection[str]) -> Iterator[tuple[ast.expr, str]]:
    for call in source.calls:
        name = last_name(call.func)
        owner = getattr(call.func, "value", call.func)
        is_built = BUILDER.fullmatch(name) is not None and ast.unparse(owner) not in ("self", "cls", "super()")
        is_built |= name == "instantiate" and any("optim" in last_name(each) for each in call.args[:1])
        is_built |= FACTORY.fullmatch(name) is not None and "param" in " ".join(
            map(ast.unparse, [*call.args, *call.keywords])
        )
        if is_built and name not in own:
            yield call, f"builds an optimizer with {shortened(call.func)}"


def _trainers(source: Source) -> Iterator[tuple[ast.expr, str]]:
    is_fitted = any(last_name(call.func) == "fit" for call in source.calls)
    for call in source.calls if is_fitted else ():
        if setting_of(source.dotted(call.func)) is not None:
            yield call, f"trains with {shortened(call.func)}"


def _steps(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """Yield (node, description) for each optimizer step, and for each line that updates parameters by hand.

    Yield nothing for a file without a backward pass.
    """
    timeline = Timeline(source, frozenset())
    if not any(event.kind == "backward" for events in timeline.roots() for event in events):
        return
    for _, _, event in steps_without_clip.steps_of(timeline):
        name = last_name(event.call.func)
        is_compiled = event.owner == "self.optimizer" and name in APPLY
        if not is_compiled and (name != "minimize" or event.owner not in source.imports):
            yield event.call, f"makes optimizer steps with {shortened(event.call.func)}"
    has_gradient = any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in source.nodes)
    for node in source.nodes if has_gradient else ():
        if (parameter := _updated(timeline.flow, node)) is not None:
            yield parameter, f"updates parameters by hand with {shortened(node)}"


def _updated(flow: Flow, node: ast.AST) -> ast.expr | None:
    """Return `w` for code such as `w -= lr * w.grad`, else None.

    Code such as `x += x.grad` changes an input in an adversarial attack, and trains no model.
    """
    match node:
        case ast.AugAssign(op=ast.Sub(), target=target, value=value):
            values = [value]
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Sub(), right=value)):
            values = [value]
        case ast.Call(func=ast.Attribute(value=target, attr="sub_"), args=values):
            pass
        case ast.Call(func=ast.Attribute(value=target, attr="add_"), args=values):
            values = values if any(isinstance(each, ast.USub) for each in ast.walk(node)) else []
        case _:
            return None
    parameter = ast.unparse(target).removesuffix(".data")
    gradients = (each for value in values for each in flow.reached(value) if getattr(each, "attr", "") == "grad")
    is_own = any(ast.unparse(each.value).removesuffix(".data") == parameter for each in gradients)  # type: ignore[attr-defined]
    return target if is_own else None
