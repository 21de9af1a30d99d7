"""Find code that trains, for `check.each`: optimizers that it builds, trainers that it starts, and optimizer steps."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from ...config.formats.python_source import FUNCTIONS, Source, last_name, shortened
from ...port.catalog import FRAMEWORKS, setting_of, setting_of_base
from ..notebooks.cells import python_source, source_of
from .optimizers import STEPPER, built

MODULE = re.compile(r"(\w+\.)+optim(izers?)?")

BUILDER = re.compile(
    r"(?i)_*(build|configure|create|get|init(ialize)?|instantiate|make|prepare|set_?up)_?(\w+_)?optim(izer)?s?"
    r"(_v2|_(and|for|from)_\w+)?"
)
"""Matches the name of a function that builds an optimizer, such as timm's `create_optimizer_v2`."""

FACTORY = re.compile(r"(?i)(\w+_)?optim(izer)?(_?(class|cls|constructor|factory|fn|type))?")
"""Matches the name of an object that builds an optimizer from parameters, as in `hparams.optimizer(params=p)`."""

BACKWARD = frozenset({"backward", "grad", "gradient", "gradients", "minimize", "value_and_grad"})
STEPS = frozenset({"apply_gradients", "apply_updates", "minimize", "step"})

CLASS = re.compile(r"^[ \t]*class\s+\w+\s*\(([^()]*)\)", re.MULTILINE)
BASE = re.compile(r"(\w+)(?=\s*(?:,|$|\[))")
TRAINER = re.compile(r"(Brain|LightningModule|Trainer)$")

Classes = Mapping[str, str]
"""Maps a class or function that clips to '', and a class to its base class in a library, as "speechbrain.Brain"."""


class Training(NamedTuple):
    line: int
    words: str
    """What the code does, such as "builds an optimizer with optax.adamw"."""

    trainer: str = ""
    """The library's class that clips instead of this code, such as "speechbrain.Brain". Otherwise ''."""


def first(path: Path, clipping: Callable[[], Classes]) -> Training | None:
    """Return the first code of a file that trains, or None if the file calls a function or a class that clips.

    clipping: The functions and classes of other files that clip, from `derived`.
    """
    source = source_of(path)
    if source is None:
        return None
    own = {node.name for node in source.nodes if isinstance(node, (*FUNCTIONS[:2], ast.ClassDef))}
    named = list(_named(source))
    building = named or [*_possible(source, own), *_trainers(source)]
    left = _left_to_trainers(source, [node for node, _ in building], clipping)
    code = [each for each in building if each[0] not in left]
    if not named:
        code += _steps(source)
        called = {_name_of(call, source) for call in source.calls if last_name(call.func) not in own}
        if code and any(clipping().get(name) == "" for name in called):
            return None
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
    """Yield (call, description) for each optimizer step of a file that also computes gradients.

    Steps of an engine are left out, because an engine can clip its own gradients.
    """
    if not BACKWARD & {last_name(call.func) for call in source.calls}:
        return
    for call in source.calls:
        name, owner = last_name(call.func), last_name(getattr(call.func, "value", call.func))
        is_step = name in STEPS and (name != "step" or STEPPER.match(owner)) and "engine" not in owner.lower()
        if is_step and owner not in source.imports:
            yield call, f"makes optimizer steps with {shortened(call.func)}"


def derived(names: Set[str], files: Iterable[Path]) -> dict[str, str]:
    """Return the functions and classes `names`, which clip, and the classes of `files` that inherit a clip."""
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
                classes = {**(_inheriting(source, classes) if source is not None else {}), **classes}
    return classes


def _inheriting(source: Source, known: Classes) -> dict[str, str]:
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


def _left_to_trainers(source: Source, built: Collection[ast.expr], known: Callable[[], Classes]) -> dict[ast.expr, str]:
    """Return {optimizer: trainer} for each optimizer of a file that leaves the clip to a class.

    An optimizer belongs to the class that contains it. Outside of such classes, it belongs to the trainer that the file
    creates, as in `Trainer(model, optimizers=(optimizer, None))`.
    """
    has_bases = any(isinstance(node, ast.ClassDef) and node.bases for node in source.nodes)
    classes = _inheriting(source, known()) if built and has_bases else {}
    called = [source.dotted(call.func) for call in source.calls]
    created = next((name for name in called if name in classes or setting_of_base(name)), None)
    left = {}
    for node in built:
        outer = [each.name for each in source.around(node) if isinstance(each, ast.ClassDef) and each.name in classes]
        if outer:
            left[node] = classes[outer[0]]
        elif created is not None:
            left[node] = classes.get(created, created)
    return left
