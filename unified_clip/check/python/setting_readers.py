"""Find the code that reads a setting such as `config.grad_clip = 1.0`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from ..._kit.parse import parse_expression
from ...config.clip_config import ClipConfig
from ...config.formats.python_source import Source, last_name
from ..clip_use import ClipUse
from ..notebooks.cells import python_source, source_of

SHOWS = ("format", "info", "log", "log_params", "print", "repr", "str", "warning")

WRITES = ("__setattr__", "add_argument", "setattr", "update")

PLAIN_BASES = ("ABC", "BaseModel", "Enum", "Generic", "NamedTuple", "Protocol", "TypedDict", "object")
"""Base classes that read no setting."""


def name_of(code: str) -> str:
    """Return the variable, attribute or key that an expression reads. For other code, return ''.

    For `config.grad_clip` and `config["grad_clip"]`, return "grad_clip".
    """
    match parse_expression(code):
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def clip_rule(name: str, clips: Sequence[ClipUse], near: Sequence[Path]) -> ClipConfig | None:
    """Return the rule of the clips that read `name` in the files `near`, or None if their rules differ."""
    found = [use.rule or use.config for use in clips if use.attribute == name and use.path in near]
    placeholders = (ClipConfig(**{**rule.data(), "threshold": 1.0}) for rule in found if rule is not None)
    rules = {rule.dumps("json"): rule for rule in placeholders}
    return next(iter(rules.values())) if len(rules) == 1 else None


def is_read(source: Source, setting: ast.expr, name: str, near: Sequence[Path]) -> bool:
    """Return whether code might read a setting: code in the files `near`, or a library that gets the setting."""
    files = [path for path in near if name.encode() in python_source(path)]
    sources = [other for other in map(source_of, files) if other is not None]
    return _goes_to_library(source, setting, near) or any(
        _is_reading(other, node, name) for other in sources for node in other.nodes
    )


def _goes_to_library(source: Source, setting: ast.expr, near: Sequence[Path]) -> bool:
    for node in source.around(setting):
        match node:
            case ast.Call(func=function) if last_name(function) not in ("dict", "field"):
                return not _is_defined(last_name(function), near)
            case ast.ClassDef(bases=bases):
                names = [last_name(base) for base in bases]
                return any(each not in PLAIN_BASES and not _is_defined(each, near) for each in names)
    return False


def _is_defined(name: str, near: Sequence[Path]) -> bool:
    pattern = re.compile(rf"^[ \t]*(class|def)\s+{re.escape(name)}\b".encode(), re.MULTILINE)
    return any(pattern.search(python_source(path)) for path in near)


def _is_reading(source: Source, node: ast.AST, name: str) -> bool:
    parent = source.parents.get(node)
    match node:
        case ast.Name(id=text, ctx=ast.Load()) | ast.Attribute(attr=text, ctx=ast.Load()):
            pass
        case ast.Constant(value=str(text)):
            is_key = isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load)
            if not is_key and not (isinstance(parent, ast.Call) and last_name(parent.func) not in WRITES):
                return False
        case ast.alias(name=text, asname=str()):
            pass
        case _:
            return False
    return text == name and not _is_copied_or_shown(source, node, name)


def _is_copied_or_shown(source: Source, node: ast.AST, name: str) -> bool:
    """Return whether code only copies a setting under the same name, or only prints it."""
    match source.parents.get(node):
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            return last_name(target) == name
        case ast.FormattedValue():
            return True
    calls = (each for each in source.around(node) if isinstance(each, ast.Call))
    return any(last_name(call.func) in SHOWS for call in calls)
