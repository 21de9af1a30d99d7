"""Find settings that are named like a clip, in Python files without a known clip."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..._static_values import Target, UnknownValueError, evaluate
from ...config.documents import Document, format_value
from ...config.formats import placement
from ...config.formats.python_source import parse_tree
from ...errors import ConfigError
from ..clip_use import ClipUse
from ..notebooks.cells import python_source
from ..trainer_files import has_number

WHY = (
    "This setting is named like a clip setting, but the code that reads it is unknown. Compare its value with the clip "
    "configuration by hand, and ignore the setting with a reason in check.ignore."
)


def read(path: Path) -> list[ClipUse]:
    """Return a list with one unknown clip: the first setting in a file that is named like a clip, as grad_clip = 1.0.

    A setting counts only if its value has a number other than 0. Return [] if the file has no such setting, or is not
    valid Python.
    """
    try:
        tree = parse_tree(python_source(path).decode("utf-8", "replace"), path.name)
    except ConfigError:
        return []  # `source_files` reports files that name a clip and are not Python
    for node, name, value in sorted(_settings(tree), key=lambda each: (each[0].lineno, each[0].col_offset)):
        keys = placement.clip_keys(Document(path.name, "", "python", {name: value}))
        if (name,) in dict(keys):
            text = f"{name} = {format_value(value)}"
            return [ClipUse(path, node.lineno, node.col_offset + 1, text, why_unknown=WHY)]
    return []


def _settings(tree: ast.Module) -> Iterator[tuple[ast.expr, str, object]]:
    """Yield (node, name, value) of each named value that is or contains a number other than 0.

    An assignment, a keyword argument or an entry of a dict gives the value its name.
    """
    for node, name, code in _named_values(tree):
        value = _value(code)
        if has_number(value):
            yield node, name, value


def _named_values(tree: ast.Module) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                name = getattr(target, "attr", getattr(target, "id", ""))
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    name = str(target.slice.value)
                yield target, name, value
            case ast.Call(keywords=keywords):
                yield from ((each.value, each.arg, each.value) for each in keywords if each.arg)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key, key.value, value


def _value(node: ast.expr) -> object:
    """Return the value of a literal, or of arithmetic with numbers. Return None for other expressions.

    A call `field(...)` of a dataclass with one keyword argument, such as `field(default=1.0)`, has the value of that
    argument. If the argument is a lambda, it has the value of the lambda's body.
    """
    match node:
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=[ast.keyword(value=value)]):
            return _value(value.body if isinstance(value, ast.Lambda) else value)
    with contextlib.suppress(ValueError):
        return ast.literal_eval(node)
    with contextlib.suppress(UnknownValueError):
        return evaluate(node, _value_of, lambda name: "")
    return None


def _value_of(name: Target) -> object:
    raise UnknownValueError(name)
