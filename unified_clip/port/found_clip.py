"""A clip in source code: its syntax nodes, the arguments of its call, and the imports of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, cast

import libcst as cst

from .catalog import CLIP_NAME, FRAMEWORKS, NO_FUNCTION, ClipFunction, TrainerSetting, last_names, trainer_packages
from .source.module import Module
from .source.syntax_tree import keyword_of

CLAMP_PACKAGES = {"torch", "keras", "tf_keras", "tensorflow", "jax", "numpy"}

KERAS_PACKAGES = {"keras", "tf_keras", "tensorflow"}


class Arguments:
    """Maps the parameters of a function to the arguments of a call."""

    def __init__(
        self, call: cst.Call | None, parameters: Sequence[str], renamed: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.passed: dict[str, cst.Arg] = {}
        self.unknown: list[str] = []
        """Arguments that match no parameter of the function, such as "*", "argument 3" or "name="."""

        for position, argument in enumerate(call.args if call is not None else ()):
            if argument.star or (argument.keyword is None and position >= len(parameters)):
                self.unknown.append(argument.star or f"argument {position + 1}")
            else:
                name = keyword_of(argument) or parameters[position]
                if name not in parameters and renamed.get(name) in parameters:
                    name = renamed[name]
                self.passed[name] = argument
                if name not in parameters:
                    self.unknown.append(f"{name}=")

    def value(self, name: str) -> cst.BaseExpression | None:
        return self.passed[name].value if name in self.passed else None


@dataclass(frozen=True, eq=False)
class FoundClip:
    node: cst.CSTNode

    name: str
    function: ClipFunction = NO_FUNCTION
    call: cst.Call | None = None
    """None for a name without a call, as in a type annotation."""

    why_not: str = ""

    tensor: cst.BaseExpression | None = None

    setting: TrainerSetting | None = None

    limit: cst.BaseExpression | None = None
    """The value or default of a trainer's argument. None if the value is set outside the file."""

    @property
    def kind(self) -> str:
        return self.function.kind

    @property
    def is_optimizer_argument(self) -> bool:
        return isinstance(self.node, cst.Arg) and self.function is NO_FUNCTION

    @property
    def returns(self) -> bool:
        """Whether the call clips only if code uses its result. Functions of PyTorch packages clip in place."""
        function = self.function
        is_in_place = function.kind in ("", "in place", "program") or self.name.endswith("_")
        if self.call is None or is_in_place or isinstance(self.node, cst.Arg):
            return False
        if function.kind == "any tensor":
            return bool(function.rule) and "out" not in self.arguments.passed
        return FRAMEWORKS.get(function.name.partition(".")[0]) != "PyTorch"

    @cached_property
    def arguments(self) -> Arguments:
        return Arguments(self.call if self.function.name else None, self.function.parameters, self.function.renamed)

    def passed_as(self, name: str) -> cst.BaseExpression | None:
        for own_name, argument in self.arguments.passed.items():
            if self.function.renamed.get(own_name, own_name) == name:
                return argument.value
        return None

    @property
    def limits(self) -> list[cst.BaseExpression | None]:
        return [self.arguments.value(name) for name in self.function.limits]


class SettingEntry(NamedTuple):
    """An assignment of a value to a key or attribute, as in {"x": 1}, kwargs["x"] = 1, or settings.x = 1."""

    node: cst.CSTNode
    keyword: str
    value: cst.BaseExpression
    owner: str = ""

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.keyword}" if self.owner else f"{{{self.keyword!r}:}}"


def entry_of(module: Module, node: cst.CSTNode) -> SettingEntry | None:
    match node:
        case cst.DictElement(key=cst.SimpleString() as key, value=value):
            return SettingEntry(node, str(key.evaluated_value), value)
        case cst.AssignTarget(target=cst.Attribute(value=owner, attr=attribute) as target):
            return SettingEntry(
                target, attribute.value, cast(cst.Assign, module.parents[node]).value, module.code(owner)
            )
        case cst.AssignTarget(target=cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=key)), *_])):
            if isinstance(key, cst.SimpleString):
                return SettingEntry(node.target, str(key.evaluated_value), cast(cst.Assign, module.parents[node]).value)
    return None


class Imports:
    def __init__(self, module: Module) -> None:
        self.packages: set[str] = set()
        self.aliases: set[str] = set()
        """The new names of imported clips, such as `cgn` in `import clip_grad_norm_ as cgn`."""

        self.stars: list[str] = []
        """The names of modules in statements such as `from module import *`."""

        for node in module.nodes:
            if isinstance(node, cst.Import):
                self.packages |= {alias.evaluated_name.partition(".")[0] for alias in node.names}
            elif isinstance(node, cst.ImportFrom):
                package = "." * len(node.relative) + (module.code(node.module) if node.module is not None else "")
                self.packages.add(package.partition(".")[0])
                if isinstance(node.names, cst.ImportStar):
                    self.stars.append(package)
                elif not node.relative:
                    self.aliases |= {
                        alias.evaluated_alias or alias.evaluated_name
                        for alias in node.names
                        if alias.evaluated_name in last_names() or CLIP_NAME.search(alias.evaluated_name)
                    }

        self.has_keras = bool(self.packages & KERAS_PACKAGES)
        self.has_trainers = bool(self.packages & trainer_packages())
