"""A clip that was found, the arguments of a call, and the imports of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from .catalog import ClipFunction, Setting, last_names
from .source.module import Module

CLIPS = {"paddle", "optax"}
"""Packages with a clip of gradients that is called no more than clip."""

CLAMPS = {"torch", "keras", "tf_keras", "tensorflow", "jax", "numpy"}
"""Packages whose clip clamps anything."""


@dataclass(frozen=True, eq=False)
class FoundClip:
    """A clip."""

    node: cst.CSTNode
    """The name, in full; or an argument, or a call."""

    name: str
    function: ClipFunction | None = None
    call: cst.Call | None = None
    """Of the native; None where it is only named."""

    unsure: str = ""
    """Why it cannot be ported, where that is clear from the beginning."""

    tensor: cst.BaseExpression | None = None
    """What a method of a tensor clips."""

    setting: Setting | None = None
    """Of a trainer, which clips by itself."""


class Arguments:
    """The arguments of a call, by the names of parameters."""

    def __init__(self, call: cst.Call, parameters: Sequence[str]) -> None:
        self.given: dict[str, cst.Arg] = {}
        self.unknown: list[str] = []
        """What cannot be told, or is not known."""

        for position, argument in enumerate(call.args):
            if argument.star or (argument.keyword is None and position >= len(parameters)):
                self.unknown.append(argument.star or f"argument {position + 1}")
            else:
                name = argument.keyword.value if argument.keyword else parameters[position]
                self.given[name] = argument
                if name not in parameters:
                    self.unknown.append(f"{name}=")

    def value(self, name: str) -> cst.BaseExpression | None:
        """None where it is not given."""
        return self.given[name].value if name in self.given else None


class Imports:
    """What a file imports."""

    def __init__(self, module: Module) -> None:
        self.packages: set[str] = set()
        self.aliases: set[str] = set()
        """Names that may stand for something that clips."""

        self.stars: list[str] = []
        """Modules of which all names are imported, with the dots of relative ones."""

        for node in module.nodes:
            if isinstance(node, cst.Import):
                self.packages |= {alias.evaluated_name.partition(".")[0] for alias in node.names}
            elif isinstance(node, cst.ImportFrom):
                package = "." * len(node.relative) + (module.code(node.module) if node.module is not None else "")
                self.packages.add(package.partition(".")[0])
                if isinstance(node.names, cst.ImportStar):
                    self.stars.append(package)
                elif not node.relative:
                    known = [alias for alias in node.names if alias.evaluated_name in last_names()]
                    self.aliases |= {alias.evaluated_alias or alias.evaluated_name for alias in known}

    @property
    def has_clip(self) -> bool:
        """Whether something is imported whose function is called no more than clip."""
        return bool(self.packages & CLIPS)

    @property
    def has_clamp(self) -> bool:
        return bool(self.packages & CLAMPS)

    @property
    def has_keras(self) -> bool:
        return bool(self.packages & {"keras", "tf_keras", "tensorflow"})
