"""Find unused configurations and unused callbacks in Python source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path

from ...config.formats.python_source import Source
from ...port.source import unused_result
from ..clip_use import ClipUse
from ..notebooks.cells import python_source, source_of
from . import configuration_uses

NEVER_USED = (
    "The function never uses the configuration {name}, so the configuration clips nothing. Use {name} to clip, as in "
    "{name}(gradients), or remove the configuration."
)
NOT_ASSIGNED = (
    "This line creates a configuration that no code uses, so the line clips nothing. Assign the configuration to a "
    "variable such as clip, and call clip(gradients). Or remove the configuration."
)
NOT_NAMED = (
    "No checked file uses the configuration {name}, so the configuration clips nothing. Use {name} to clip, as in "
    "{name}(gradients), or remove the configuration. If another file uses {name}, also pass that file to the check."
)

NOT_PASSED = (
    "No checked code passes the callback {name} to a trainer, so the callback clips nothing. Pass the "
    "callback to the trainer, as in Trainer(..., callbacks=[{callback}])."
)


def mark_unused(source: Source, use: ClipUse, call: ast.expr) -> ClipUse:
    """Set `unused` if this file does not use the configuration that `call` creates. Other files might still use it.

    If other files cannot use the configuration either, also store the reason in `why_unknown`.
    """
    value: ast.AST = call
    while isinstance(source.parents[value], configuration_uses.PASSES):
        value = source.parents[value]
    match source.parents[value]:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.AugAssign(target=ast.Name(id=name))
        ):
            scope = unused_result.scope_of(source, call, name)
            if configuration_uses.is_used(source, name, scope):
                return use
            if isinstance(scope, ast.ClassDef):
                return _marked_attribute(source, use, name)
            if unused_result.is_local(scope):
                return _never_used(use, name, NEVER_USED.format(name=name))
            return replace(use, unused=name)
        case ast.Assign(targets=[ast.Attribute(attr=name)]) | ast.AnnAssign(target=ast.Attribute(attr=name)):
            return _marked_attribute(source, use, name)
    return use if configuration_uses.is_use(source, call) else _never_used(use, ast.unparse(call), NOT_ASSIGNED)


def _marked_attribute(source: Source, use: ClipUse, name: str) -> ClipUse:
    is_kept = use.is_callback or configuration_uses.is_attribute_used(source, name)
    return use if is_kept else replace(use, unused=f".{name}")


def _never_used(use: ClipUse, name: str, why: str) -> ClipUse:
    if use.is_callback:
        callback = name if name.isidentifier() else "ClipCallback(clip)"
        why = NOT_PASSED.format(name=name, callback=callback)
    return replace(use, config=None, why_unknown=why, unused=name)


def resolved(uses: Sequence[ClipUse], paths: Sequence[Path]) -> Iterator[ClipUse]:
    """Yield the clips. If a file does not use its own configuration, find the files in `paths` that use it."""
    for use in uses:
        if not use.unused or use.why_unknown:
            yield use
            continue
        name = use.unused.removeprefix(".")
        others = [path for path in paths if path != use.path and _may_name(path, name)]
        if use.unused.startswith("."):
            users = [path for path in others if _uses_attribute(path, name)]
        else:
            users = _users(name, _module(use.path), others)
        if users and use.is_callback:
            continue  # a callback: its configuration is a clip of its own
        if users:
            note = f"This file does not use {name}, so {name} has no effect here."
            yield replace(use, unused="", users=tuple(users), note=note)
        else:
            yield _never_used(use, name, NOT_NAMED.format(name=name))


def _users(name: str, module: str, others: Sequence[Path]) -> list[Path]:
    """Return the files in `others` that can import `name` from a module, directly or through another file."""
    modules = {module}
    while added := {_module(path) for path in others if _aliases(path, name, modules)} - modules:
        modules |= added  # other files may import the name from `added`
    return [path for path in others if _uses(path, name, modules)]


def _may_name(path: Path, name: str) -> bool:
    text = python_source(path).decode("utf-8", "replace")
    return re.search(rf"\b{re.escape(name)}\b|import \*", text) is not None


def _aliases(path: Path, name: str, modules: Set[str]) -> set[str]:
    imports = [node for node in _nodes(path) if isinstance(node, ast.ImportFrom)]
    aliases = [each for node in imports if _origin(path, node) in modules for each in node.names]
    return {each.asname or name for each in aliases if each.name in (name, "*")}


def _uses(path: Path, name: str, modules: Set[str]) -> bool:
    source = source_of(path)
    aliases = _aliases(path, name, modules)
    if source is not None and any(configuration_uses.is_used(source, each) for each in aliases):
        return True
    return any(_names_module(node, modules) for node in _nodes(path)) and _uses_attribute(path, name)


def _uses_attribute(path: Path, name: str) -> bool:
    source = source_of(path)
    return source is not None and configuration_uses.is_attribute_used(source, name)


def _nodes(path: Path) -> list[ast.AST]:
    source = source_of(path)
    return source.nodes if source is not None else []


def _origin(path: Path, node: ast.ImportFrom) -> str:
    folders = path.resolve().parents
    package = folders[min(node.level, len(folders)) - 1].name if node.level else ""
    return (node.module or package).rpartition(".")[2]


def _names_module(node: ast.AST, modules: Set[str]) -> bool:
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return any(each.name.rpartition(".")[2] in modules for each in names)
        case ast.Constant(value=str(text)):
            return re.split(r"[./\\:]", text.removesuffix(".py"))[-1] in modules
    return False


def _module(path: Path) -> str:
    return path.resolve().parent.name if path.stem == "__init__" else path.stem
