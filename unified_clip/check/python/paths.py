"""Infer the file that Python source names, such as `Path(__file__).parent / "clip.toml"`."""

from __future__ import annotations

import ast
from pathlib import Path

from ..._kit.static_values import UnknownValueError
from ...source.constants import followed
from ...source.module import Module

SAME = ("str", "os.fspath", "os.path.abspath", "os.path.normpath")

JOINED = ("pathlib.Path", "pathlib.PurePath", "os.path.join")

MAX_DEPTH = 20


def file_of(module: Module, node: ast.expr) -> Path | None:
    """Return the existing file that an expression names, or None.

    A relative path is searched in the directory of the source, and then in each parent directory.
    """
    assert module.path is not None
    name = path_of(module, node)
    return next((folder / name for folder in module.path.absolute().parents if (folder / name).is_file()), None)


def path_of(module: Module, node: ast.expr, depth: int = 0) -> Path:
    """Return the path to which an expression evaluates. A path that is built from `__file__` is absolute."""

    def inner(node: ast.expr) -> Path:
        return path_of(module, node, depth + 1)

    node = followed(module, node)
    if depth > MAX_DEPTH:
        raise UnknownValueError(node)
    match node:
        case ast.Name(id="__file__") if module.path is not None:
            return module.path.absolute()
        case ast.Constant(value=str(text)) if text:
            return Path(text)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return inner(left) / inner(right)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return Path(f"{inner(left)}{inner(right)}")
        case ast.JoinedStr(values=parts):
            return Path("".join(str(inner(getattr(part, "value", part) if _is_slot(part) else part)) for part in parts))
        case ast.Attribute(value=value, attr="parent"):
            return inner(value).parent
        case ast.Subscript(value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(index))):
            parents = inner(value).parents
            if 0 <= index < len(parents):
                return parents[index]
        case ast.Call(func=function, args=arguments, keywords=[]):
            name, paths = module.dotted(function), [inner(each) for each in arguments]
            if name in JOINED and paths:
                return Path(*paths)
            if name in SAME and len(paths) == 1:
                return paths[0]
            if name in ("os.path.dirname", "os.path.realpath") and len(paths) == 1:
                return paths[0].parent if name.endswith("dirname") else paths[0].resolve()
            if isinstance(function, ast.Attribute) and function.attr in ("resolve", "absolute", "joinpath"):
                path = inner(function.value).joinpath(*paths)
                return path.resolve() if function.attr == "resolve" and path.is_absolute() else path
    raise UnknownValueError(node)


def _is_slot(part: ast.expr) -> bool:
    return isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None
