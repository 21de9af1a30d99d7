"""Find the code of a Python file that trains: it builds an optimizer, or makes steps of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Set
from pathlib import Path

from ....config.formats.python_source import FUNCTIONS, Source, last_name, shortened
from ...notebooks.cells import source_of
from ..optimizers import built
from . import unclipped
from .events import APPLY, Timeline

MODULE = re.compile(r"(\w+\.)+optim(izers?)?")
"""Matches the full name of a module of optimizers, as in `getattr(torch.optim, name)`."""

BUILDER = re.compile(
    r"(?i)_*(build|configure|create|get|init(ialize)?|instantiate|make|prepare|set_?up)_?(\w+_)?optim(izer)?s?"
    r"(_v2|_(and|for|from)_\w+)?"
)
"""Matches the name of a function that builds an optimizer, such as timm's `create_optimizer_v2`."""

FACTORY = re.compile(r"(?i)(\w+_)?optim(izer)?(_?(class|cls|constructor|factory|fn|type))?")
"""Matches the name of an object that builds an optimizer if it gets parameters, as in `hparams.optimizer(params=p)`."""


def first(path: Path, clipping: Callable[[], Set[str]]) -> tuple[int, str] | None:
    """Return (line, words) for the first code of a file that trains, such as (3, "builds an optimizer, optax.adamw").

    Return None if the file shows no such code, or is not valid Python. Code without the name of an optimizer counts
    only if the file calls no function of `clipping`.

    clipping: Returns the names of the functions and classes that clip in all checked files.
    """
    source = source_of(path)
    if source is None:
        return None
    if named := list(_named(source)):
        return min(named)
    own = {node.name for node in source.nodes if isinstance(node, (*FUNCTIONS[:2], ast.ClassDef))}
    possible = [*_possible(source, own), *_steps(source)]
    called = {source.dotted(call.func).rpartition(".")[2] for call in source.calls} - own
    return min(possible) if possible and not called & clipping() else None


def functions_at(path: Path, lines: Collection[int]) -> set[str]:
    """Return the names of the functions and classes of a Python file around these lines."""
    source = source_of(path)
    return {
        node.name
        for node in (source.nodes if source is not None else ())
        if isinstance(node, (*FUNCTIONS[:2], ast.ClassDef))
        and any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
    }


def _named(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, words) for each optimizer, and for each module of optimizers that code searches."""
    for node, name in built(source):
        is_class = isinstance(node, ast.Call) and not name.endswith(".compile")
        yield node.lineno, f"builds an optimizer, {shortened(node.func if is_class else node)}"  # type: ignore[attr-defined]
    packages = source.packages
    for read in (node for node in source.nodes if isinstance(node, ast.Name | ast.Attribute)):
        name, parent = source.dotted(read), source.parents[read]
        is_searched = isinstance(parent, ast.Call) or getattr(parent, "attr", "") == "__dict__"
        if is_searched and name.partition(".")[0] in packages and MODULE.fullmatch(name):
            yield read.lineno, f"builds an optimizer, {shortened(parent)}"


def _possible(source: Source, own: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, words) for each call that builds an optimizer by its name or its arguments.

    own: The functions and classes of the file, whose code counts instead.
    """
    for call in source.calls:
        name = last_name(call.func)
        owner = getattr(call.func, "value", call.func)
        is_built = BUILDER.fullmatch(name) is not None and ast.unparse(owner) not in ("self", "cls", "super()")
        is_built |= name == "instantiate" and any("optim" in last_name(each) for each in call.args[:1])
        is_built |= FACTORY.fullmatch(name) is not None and "param" in " ".join(
            map(ast.unparse, [*call.args, *call.keywords])
        )
        if is_built and name not in own:
            yield call.lineno, f"builds an optimizer, {shortened(call.func)}"


def _steps(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, words) for each step of an optimizer, in a file that computes gradients by a backward pass.

    Leave out the optimizer that a model of Keras gets from `compile`, and `minimize` of a module such as
    `scipy.optimize`.
    """
    timeline = Timeline(source, frozenset())
    has_backward = any(event.kind == "backward" for events in timeline.roots() for event in events)
    for _, _, event in unclipped.steps_of(timeline) if has_backward else ():
        name = last_name(event.call.func)
        is_compiled = event.owner == "self.optimizer" and name in APPLY
        if not is_compiled and (name != "minimize" or event.owner not in source.imports):
            yield event.call.lineno, f"makes steps of an optimizer, {shortened(event.call.func)}"
