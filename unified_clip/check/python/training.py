"""Find code that trains, for `check.each`: optimizers that it builds, trainers that it starts, and optimizer steps."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ...port.catalog import setting_of, setting_of_base
from ...source.module import Module
from ...source.project import Project
from ...source.tree import DEFINITIONS, Function, Target, last_name, owner_of, shortened
from .optimizers import built

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
STEPPER = re.compile(r"(?i)(?!.*(sched|engine)).*(opt|adam|sgd|scaler|solver)")

MAX_BASES = 10


class Training(NamedTuple):
    line: int
    words: str
    """What the code does, such as "builds an optimizer with optax.adamw"."""

    trainer: str = ""
    """The library's class that clips instead of this code, such as "speechbrain.Brain". Otherwise ''."""


Found = tuple[ast.expr, str]
"""(code, what it does)"""


class Trainings:
    """Finds files that train without a clip. clips: the lines of the clips in each file."""

    def __init__(self, project: Project, clips: Mapping[Path, Sequence[int]]) -> None:
        self._project = project
        self._clips = {os.path.realpath(path): lines for path, lines in clips.items()}

    def first(self, path: Path) -> Training | None:
        """Return the first code of a file that trains, or None if the file calls a function or a class that clips."""
        module = self._project.readable(path)
        if module is None:
            return None
        named = list(_named(module))
        building = named or [*_possible(module), *_trainers(module)]
        left = {node: trainer for node, _ in building if (trainer := self._trainer_of(module, node)) is not None}
        code = [each for each in building if each[0] not in left]
        if not named:
            code += _steps(module)
            if code and any(self._clips_in(module, call.func) for call in module.calls):
                return None
        if code:
            return min(Training(node.lineno, words) for node, words in code)
        trainers = (Training(node.lineno, words, left[node]) for node, words in building if left[node])
        return next(trainers, None)

    def _clips_in(self, module: Module, function: ast.expr) -> bool:
        found = self._project.definition(module, function)
        if isinstance(function, ast.Attribute) and not module.full_name(function):  # a method is found by its name
            return function.attr in self._methods
        return found is not None and found.module is not module and self._has_clip(found.module, found.node)

    @cached_property
    def _methods(self) -> set[str]:
        """The names of the methods that clip."""
        modules = [module for path in self._clips if (module := self._project.readable(Path(path))) is not None]
        return {
            node.name
            for module in modules
            for node in module.nodes
            if isinstance(node, Function)
            if isinstance(module.parents[node], ast.ClassDef) and self._has_clip(module, node)
        }

    def _has_clip(self, module: Module, node: ast.AST) -> bool:
        lines = self._clips.get(os.path.realpath(module.path), ()) if module.path else ()
        return isinstance(node, DEFINITIONS) and any(node.lineno <= line <= module.end(node) for line in lines)

    def _trainer_of(self, module: Module, node: ast.expr) -> str | None:
        """Return the library's class to which code leaves the clip, '' for a class of the project, or None.

        An optimizer belongs to the class that contains it. Outside of such classes, it belongs to the trainer that the
        file creates, as in `Trainer(model, optimizers=(optimizer, None))`.
        """
        around = (self._base(module, each) for each in module.ancestors(node) if isinstance(each, ast.ClassDef))
        created = (self._base_of(module, call.func) for call in module.calls)
        return next((base for bases in (around, created) for base in bases if base is not None), None)

    def _base_of(self, module: Module, node: ast.expr, depth: int = 0) -> str | None:
        node = node.value if isinstance(node, ast.Subscript) else node
        name = module.full_name(node)
        if setting_of_base(name) is not None:
            return name
        found = self._project.definition(module, node) if isinstance(node, Target) else None
        if found is None or not isinstance(found.node, ast.ClassDef) or depth > MAX_BASES:
            return None
        return "" if depth and self._has_clip(found.module, found.node) else self._base(found.module, found.node, depth)

    def _base(self, module: Module, node: ast.ClassDef, depth: int = 0) -> str | None:
        bases = (self._base_of(module, base, depth + 1) for base in node.bases)
        return next((base for base in bases if base is not None), None)


def _named(module: Module) -> Iterator[Found]:
    for node in built(module):
        is_class = isinstance(node, ast.Call) and last_name(node.func) != "compile"
        yield node, f"builds an optimizer with {shortened(node.func if is_class else node)}"  # type: ignore[attr-defined]
    for read in module.nodes:  # such as getattr(torch.optim, name)
        if isinstance(read, Target) and MODULE.fullmatch(module.full_name(read)):
            parent = module.parents[read]
            if isinstance(parent, ast.Call) or getattr(parent, "attr", "") == "__dict__":
                yield read, f"builds an optimizer with {shortened(parent)}"


def _possible(module: Module) -> Iterator[Found]:
    own = {node.name for node in module.nodes if isinstance(node, DEFINITIONS)}
    for call in module.calls:
        name, owner = last_name(call.func), getattr(call.func, "value", call.func)
        is_built = BUILDER.fullmatch(name) is not None and ast.unparse(owner) not in ("self", "cls", "super()")
        is_built |= name == "instantiate" and any("optim" in last_name(each) for each in call.args[:1])
        is_built |= FACTORY.fullmatch(name) is not None and any(
            "param" in ast.unparse(each) for each in (*call.args, *call.keywords)
        )
        if is_built and name not in own:
            yield call, f"builds an optimizer with {shortened(call.func)}"


def _trainers(module: Module) -> Iterator[Found]:
    is_fitted = any(last_name(call.func) == "fit" for call in module.calls)
    for call in module.calls if is_fitted else ():
        if setting_of(module.full_name(call.func)) is not None:
            yield call, f"trains with {shortened(call.func)}"


def _steps(module: Module) -> Iterator[Found]:
    """Yield each optimizer step of a file that also computes gradients.

    Steps of an engine are left out, because an engine can clip its own gradients.
    """
    if not BACKWARD & {last_name(call.func) for call in module.calls}:
        return
    for call in module.calls:
        name, owner = last_name(call.func), last_name(getattr(call.func, "value", call.func))
        is_step = name in STEPS and (name != "step" or STEPPER.match(owner)) and "engine" not in owner.lower()
        if is_step and not (isinstance(call.func, ast.Attribute) and module.full_name(owner_of(call))):
            yield call, f"makes optimizer steps with {shortened(call.func)}"
