"""Infer paths from Python source, such as `Path(__file__).parent / "clip.toml"`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..._kit.static_values import UnknownValueError
from ...config.formats.python_source import MAX_ALIASES, Source, last_name
from ..notebooks.cells import python_source, source_of

SAME = ("str", "os.fspath", "os.path.abspath", "os.path.normpath")

CONFIG = re.compile(r"(?i)\w*(cfg|conf|config|args)")

JOINED = ("pathlib.Path", "pathlib.PurePath", "os.path.join")


def path_of(source: Source, node: ast.expr, file: Path, depth: int = 0) -> Path:
    """Return the path to which an expression evaluates. A path that is built from `__file__` is absolute."""

    def inner(node: ast.expr) -> Path:
        return path_of(source, node, file, depth)

    match node:
        case ast.Name(id="__file__"):
            return file.absolute()
        case ast.Constant(value=str(text)) if text:
            return Path(text)
        case ast.Name(id=name):
            values = source.bound.get(name, [])
            if len(values) == 1 and values[0] is not None and depth < MAX_ALIASES:
                return path_of(source, values[0], file, depth + 1)
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
        case ast.Call(keywords=[]):
            return _of_call(source, node, [inner(argument) for argument in node.args], file, depth)
    raise UnknownValueError(node)


def _is_slot(part: ast.expr) -> bool:
    return isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None


def _of_call(source: Source, call: ast.Call, arguments: list[Path], file: Path, depth: int) -> Path:
    name = source.dotted(call.func)
    if name in JOINED and arguments:
        return Path(*arguments)
    if name in SAME and len(arguments) == 1:
        return arguments[0]
    if name == "os.path.dirname" and len(arguments) == 1:
        return arguments[0].parent
    if name == "os.path.realpath" and len(arguments) == 1:
        return arguments[0].resolve()
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("resolve", "absolute", "joinpath"):
        path = path_of(source, call.func.value, file, depth).joinpath(*arguments)
        return path.resolve() if call.func.attr == "resolve" and path.is_absolute() else path
    raise UnknownValueError(call)


def hydra_files(file: Path, line: int, column: int, sources: Sequence[Path]) -> list[Path]:
    """Return Hydra's main configuration files if the call at this place has the argument `cfg.trainer`, or else [].

    Path() stands for a path that is only known at run time.
    """
    if (source := _source(file)) is None:
        return []
    for call in source.calls:
        unpacked = [each.value for each in call.keywords if each.arg is None]
        tables = [source.followed(each) for each in (call.args[:1] or unpacked)]
        if (call.lineno, call.col_offset + 1) == (line, column) and len(unpacked) < 2 and any(map(_is_table, tables)):
            return [*_mains(file)] or [main for other in sources for main in _mains(other, file.stem)]
    return []


def _is_table(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=owner, attr="trainer") | ast.Subscript(value=owner, slice=ast.Constant("trainer")):
            return CONFIG.fullmatch(last_name(owner)) is not None
    return False


def _mains(file: Path, imported: str = "") -> Iterator[Path]:
    """Yield the main configuration of each `@hydra.main(config_path="conf", config_name="train")` in a source.

    imported: The name of a module. A source that does not import this module is skipped.
    """
    if (source := _source(file)) is None:
        return
    modules = {part for name in source.imports.values() for part in name.split(".")}
    for call in source.calls if not imported or imported in modules else ():
        if source.dotted(call.func) == "hydra.main":
            passed = dict(zip(("config_path", "config_name"), call.args, strict=False))
            passed |= {each.arg: each.value for each in call.keywords if each.arg}
            try:
                folder, name = (path_of(source, passed[key], file) for key in ("config_path", "config_name"))
                yield file.parent / folder / f"{str(name).removesuffix('.yaml')}.yaml"
            except (KeyError, UnknownValueError):
                yield Path()


def _source(file: Path) -> Source | None:
    return source_of(file) if b"hydra" in python_source(file) else None
