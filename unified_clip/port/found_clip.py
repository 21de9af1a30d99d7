"""A clip in source code: its syntax nodes, the arguments of its call, and the imports of its file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from .._kit.atomic_files import FileError
from .._kit.static_values import is_number
from ..source.module import Module
from ..source.project import Project
from ..source.tree import Argument, arguments_of, text_of
from ..source.values import Value, value_of
from .catalog import CLIP_NAME, FRAMEWORKS, NO_FUNCTION, ClipFunction, TrainerSetting, last_names, trainer_packages

CLAMP_PACKAGES = {"torch", "keras", "tf_keras", "tensorflow", "jax", "numpy"}

KERAS_PACKAGES = {"keras", "tf_keras", "tensorflow"}


class Arguments:
    """Maps the parameters of a function to the arguments of a call."""

    def __init__(
        self, call: ast.Call | None, parameters: Sequence[str], renamed: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.passed: dict[str, Argument] = {}
        self.unknown: list[str] = []
        """Arguments that match no parameter of the function, such as "*", "argument 3" or "name="."""

        for position, argument in enumerate(arguments_of(call) if call is not None else ()):
            if argument.star or (not argument.keyword and position >= len(parameters)):
                self.unknown.append(argument.star or f"argument {position + 1}")
            else:
                name = argument.keyword or parameters[position]
                if name not in parameters and renamed.get(name) in parameters:
                    name = renamed[name]
                self.passed[name] = argument
                if name not in parameters:
                    self.unknown.append(f"{name}=")

    def value(self, name: str) -> ast.expr | None:
        return self.passed[name].value if name in self.passed else None


@dataclass(frozen=True, eq=False)
class FoundClip:
    node: ast.AST

    name: str
    function: ClipFunction = NO_FUNCTION
    call: ast.Call | None = None
    """None for a name without a call, as in a type annotation."""

    why_not: str = ""

    tensor: ast.expr | None = None

    setting: TrainerSetting | None = None

    limit: ast.expr | None = None
    """The value or default of a trainer's argument. None if the value is set outside the file."""

    argument: Argument | None = None
    """The argument that switches clipping on, as in Adam(clipnorm=1.0). Its node is `node`."""

    @property
    def kind(self) -> str:
        return self.function.kind

    @property
    def is_optimizer_argument(self) -> bool:
        return self.argument is not None and self.function is NO_FUNCTION

    @property
    def returns(self) -> bool:
        """Whether the call clips only if code uses its result. Functions of PyTorch packages clip in place."""
        function = self.function
        is_in_place = function.kind in ("", "in place", "program") or self.name.endswith("_")
        if self.call is None or is_in_place or self.argument is not None:
            return False
        if function.kind == "any tensor":
            return bool(function.rule) and "out" not in self.arguments.passed
        return FRAMEWORKS.get(function.name.partition(".")[0]) != "PyTorch"

    @cached_property
    def arguments(self) -> Arguments:
        return Arguments(self.call if self.function.name else None, self.function.parameters, self.function.renamed)

    def passed_as(self, name: str) -> ast.expr | None:
        for own_name, argument in self.arguments.passed.items():
            if self.function.renamed.get(own_name, own_name) == name:
                return argument.value
        return None

    @property
    def limits(self) -> list[ast.expr | None]:
        return [self.arguments.value(name) for name in self.function.limits]


def number_of(module: Module, node: ast.expr | None) -> float | None:
    """Return a number that the code fixes, or None. The default of an option is not fixed."""
    value = (
        value_of(Project(read=_no_other_file), module, node)
        if node is not None
        else Value(why_unknown="There is no code.")
    )
    is_constant = all(origin.kind == "constant" and origin.module is module for origin in value.origins)
    try:
        return float(value.value) if is_constant and is_number(value.value) else None
    except OverflowError:
        return None


def _no_other_file(path: Path) -> bytes:
    raise FileError(f"{path} is not needed: only constants of the file itself count.")


class SettingEntry(NamedTuple):
    """An assignment of a value to a key or attribute, as in {"x": 1}, kwargs["x"] = 1, or settings.x = 1."""

    node: ast.AST
    keyword: str
    value: ast.expr
    owner: str = ""

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.keyword}" if self.owner else f"{{{self.keyword!r}:}}"


def entries_of(module: Module, node: ast.AST) -> Iterator[SettingEntry]:
    """Yield the entries of a dict, or the entry that an assignment sets."""
    if isinstance(node, ast.Dict):
        for each, value in zip(node.keys, node.values, strict=True):
            if each is not None and (text := text_of(each)) is not None:
                yield SettingEntry(each, text, value)
    for target in node.targets if isinstance(node, ast.Assign) else ():
        match target:
            case ast.Attribute(value=owner, attr=attribute):
                yield SettingEntry(target, attribute, node.value, module.code(owner))  # type: ignore[attr-defined]
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                yield SettingEntry(target, key, node.value)  # type: ignore[attr-defined]


class Imports:
    def __init__(self, module: Module) -> None:
        self.packages = module.packages
        self.stars = module.stars
        names = (
            alias
            for node in module.nodes
            if isinstance(node, ast.ImportFrom) and not node.level
            for alias in node.names
        )
        self.aliases = {
            alias.asname or alias.name for alias in names if alias.name in last_names() or CLIP_NAME.search(alias.name)
        }
        """The new names of imported clips, such as `cgn` in `import clip_grad_norm_ as cgn`."""

        self.has_keras = bool(self.packages & KERAS_PACKAGES)
        self.has_trainers = bool(self.packages & trainer_packages())
