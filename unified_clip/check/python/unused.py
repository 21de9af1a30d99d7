"""Find configurations and callbacks in Python source that clip nothing, since no code uses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ...config.formats.python_source import Source
from ..clip_use import ClipUse
from ..notebooks.cells import python_source, source_of
from . import usage

NEVER_USED = (
    "{name} clips nothing: the function makes this configuration and never uses it. Clip by it, as in "
    "{name}(gradients), or remove it."
)
NOT_ASSIGNED = (
    "No code uses the configuration that this line makes, so it clips nothing. Assign it to a variable such as clip, "
    "and clip by it, as in clip(gradients). Or remove it."
)
NOT_NAMED = (
    "No checked file uses this configuration, {name}, so it clips nothing. Clip by it, as in {name}(gradients), or "
    "remove it. If a file that is not checked uses it, pass that file, too."
)

NOT_PASSED = (
    "No checked code passes this callback, {name}, to a trainer, so it clips nothing. Pass it to the trainer, as in "
    "Trainer(..., callbacks=[{callback}])."
)


def marked(source: Source, use: ClipUse, call: ast.expr) -> ClipUse:
    """Return the clip of a call that makes a `ClipConfig`, with what the file shows about the use of the configuration.

    If the file may use the configuration, for example as an argument, return `use`. If no code can use the
    configuration, return an unknown clip: the call sets no variable, or a local variable that the file never uses. If
    only other files can use the configuration, return `use` with `unused`, for `resolved`: the call sets a variable
    outside of functions, or an attribute. The variable or attribute may also get a list or dict that contains the
    configuration. `usage.is_use` decides what counts as a use.

    use: The clip, with its effect. A callback has no effect of its own, and an attribute with a callback counts as
    used.
    call: The call that makes the configuration or the callback, or a name with this value that code assigns again.
    """
    value: ast.AST = call
    while isinstance(source.parents[value], usage.PASSES):
        value = source.parents[value]
    match source.parents[value]:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.AugAssign(target=ast.Name(id=name))
        ):
            scope = usage.scope_of(source, call, name)
            if usage.is_used(source, name, scope):
                return use
            if isinstance(scope, ast.ClassDef):
                return _marked_attribute(source, use, name)
            if usage.is_local(scope):
                return _never_used(use, name, NEVER_USED.format(name=name))
            return replace(use, unused=name)
        case ast.Assign(targets=[ast.Attribute(attr=name)]) | ast.AnnAssign(target=ast.Attribute(attr=name)):
            return _marked_attribute(source, use, name)
    return use if usage.is_use(source, call) else _never_used(use, ast.unparse(call), NOT_ASSIGNED)


def _marked_attribute(source: Source, use: ClipUse, name: str) -> ClipUse:
    is_kept = use.is_callback or usage.is_attribute_used(source, name)
    return use if is_kept else replace(use, unused=f".{name}")


def _never_used(use: ClipUse, name: str, why: str) -> ClipUse:
    if use.is_callback:
        callback = name if name.isidentifier() else "ClipCallback(clip)"
        why = NOT_PASSED.format(name=name, callback=callback)
    return replace(use, config=None, why_unknown=why, unused=name)


def resolved(uses: Sequence[ClipUse], paths: Sequence[Path]) -> Iterator[ClipUse]:
    """Yield each clip. For a configuration with `unused`, decide by the other files whether code uses it.

    If another file may use the configuration, yield the clip with `users` and a note instead of `unused`. Yield nothing
    for a callback that another file may use. If no file uses it, yield an unknown clip. A file may use a variable if it
    imports the variable or its module, and uses the variable. A file may use an attribute if it uses any attribute of
    this name.

    uses: The clips, as `marked` returns them. paths: All Python files that are checked.
    """
    files: dict[Path, _File] = {}
    for use in uses:
        if not use.unused or use.why_unknown:
            yield use
            continue
        name = use.unused.removeprefix(".")
        files = files or {path: _File(path) for path in paths}
        others = [file for path, file in files.items() if path != use.path and file.names(name)]
        if use.unused.startswith("."):
            users = [file.path for file in others if file.source and usage.is_attribute_used(file.source, name)]
        else:
            users = _users(name, _module(use.path), others)
        if users and use.is_callback:
            continue  # a callback: its configuration is a clip of its own
        if users:
            note = f"{name} is not used in this file, so it clips nothing here."
            yield replace(use, unused="", users=tuple(users), note=note)
        else:
            yield _never_used(use, name, NOT_NAMED.format(name=name))


def _users(name: str, module: str, others: Sequence[_File]) -> list[Path]:
    """Return those of the files in `others` that may use a name that a module defines.

    A file may import the name from the module, or from another of these files that imports the name.
    """
    modules = {module}
    while added := {_module(file.path) for file in others if file.aliases(name, modules)} - modules:
        modules |= added  # other files may import the name from `added`
    return [file.path for file in others if file.uses(name, modules)]


class _File:
    """A Python file that may use a configuration of another file. A file that is not valid Python uses none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _text(self) -> str:
        return python_source(self.path).decode("utf-8", "replace")

    @cached_property
    def source(self) -> Source | None:
        return source_of(self.path)

    @property
    def nodes(self) -> list[ast.AST]:
        return self.source.nodes if self.source else []

    def names(self, name: str) -> bool:
        """Return whether the text contains a name as a word, or `import *`."""
        return re.search(rf"\b{re.escape(name)}\b|import \*", self._text) is not None

    def aliases(self, name: str, modules: Set[str]) -> set[str]:
        """Return the names by which the file imports a name from one of these modules, also by `import *`."""
        imports = [node for node in self.nodes if isinstance(node, ast.ImportFrom)]
        aliases = [each for node in imports if self._origin(node) in modules for each in node.names]
        return {each.asname or name for each in aliases if each.name in (name, "*")}

    def uses(self, name: str, modules: Set[str]) -> bool:
        """Return whether the file may use a name of one of these modules.

        This is so in two cases. The file imports the name from one of the modules, and uses the name. Or the file uses
        an attribute of this name, and imports one of the modules or has the module's name in a string.
        """
        if self.source is None:
            return False
        if any(usage.is_used(self.source, each) for each in self.aliases(name, modules)):
            return True
        is_module_named = any(_names_module(node, modules) for node in self.nodes)
        return is_module_named and usage.is_attribute_used(self.source, name)

    def _origin(self, node: ast.ImportFrom) -> str:
        """Return the last part of the name of an imported module, or of the package for `from . import x`."""
        folders = self.path.resolve().parents
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
    """Return the last part of the name by which a file is imported: that of its directory for `__init__.py`."""
    return path.resolve().parent.name if path.stem == "__init__" else path.stem
