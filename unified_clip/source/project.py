"""The files of a project: each is parsed once, and names are followed from file to file."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from .._kit import atomic_files
from .._kit.atomic_files import FileError
from .._kit.parse import UnreadableSourceError
from .frameworks import FRAMEWORKS
from .local_imports import file_of
from .module import MAX_ALIASES, Binding, Module, imported_name
from .scopes import Assignment
from .tree import DEFINITIONS, Argument, Target, arguments_of, is_name, last_name, method_of, text_of

WRAPPERS = {*FRAMEWORKS, "contextlib", "functools"}
"""Packages whose decorators, such as `torch.no_grad()`, call a function only where its name is called."""


class Definition(NamedTuple):
    """What a name of the project stands for: a function, a class, or the target of an assignment."""

    module: Module
    node: ast.AST
    name: str
    assignments: Sequence[Assignment] = ()


class Call(NamedTuple):
    module: Module
    node: ast.Call

    @property
    def place(self) -> str:
        return f"{self.module.path.name if self.module.path else 'this file'}:{self.node.lineno}"


class Project:
    """The modules of a project. Other files are read only if a file of the project imports them.

    The caller passes the files to search for callers and options. Files that cannot be read count as empty: the
    caller reports them when it reads them with `module`.
    """

    def __init__(self, paths: Sequence[Path] = (), read: Callable[[Path], bytes] = atomic_files.read_bytes) -> None:
        self._paths, self.read = paths, cache(read)
        self.stores_of, self.reached_from = cache(self._stores_of), cache(self._reached_from)
        self.definition, self._calls_named = cache(self._definition), cache(self._find_calls_named)
        self._modules: dict[str, Module | UnreadableSourceError | FileError] = {}
        self._passed_on: dict[ast.AST, str] = {}
        self._shown: dict[ast.AST, bool] = {}
        self._of_stars: dict[tuple[Module, str], Definition | None] = {}

    def module(self, path: Path) -> Module:
        """Return a parsed file. Raise UnreadableSourceError or FileError if it cannot be read."""
        key = os.path.realpath(path)
        if key not in self._modules:
            try:
                self._modules[key] = Module(self.read(path), path)
            except (UnreadableSourceError, FileError) as error:
                self._modules[key] = error
        module = self._modules[key]
        if isinstance(module, Module):
            return module
        raise module

    def add(self, module: Module) -> None:
        """Add code that is not the content of a Python file, such as the code of a notebook's cells."""
        self._modules[os.path.realpath(module.path) if module.path else f"<{id(module)}>"] = module
        self.__dict__.pop("_texts", None)

    def readable(self, path: Path) -> Module | None:
        """Return a parsed file, or None if it cannot be read."""
        try:
            return self.module(path)
        except (UnreadableSourceError, FileError):
            return None

    @cached_property
    def _texts(self) -> dict[str, tuple[Path, bytes]]:
        texts = {}
        for path in self._paths:
            try:
                texts[os.path.realpath(path)] = path, self.read(path)
            except FileError:
                continue
        return texts

    def mentioning(self, word: str, first: Module) -> Iterator[Module]:
        """Yield `first`, and all modules of the project whose text contains a word. Other modules are not parsed."""
        yield first
        pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)".encode())
        for path, text in self._texts.values():
            module = self.readable(path) if word.encode() in text and pattern.search(text) else None
            if module is not None and module is not first:
                yield module
        added = [each for each in self._modules.values() if isinstance(each, Module) and each.path is None]
        yield from (each for each in added if each is not first)

    def mentioning_option(self, name: str, first: Module) -> Iterator[Module]:
        yield from dict.fromkeys([*self.mentioning(name, first), *self.mentioning(name.replace("_", "-"), first)])

    def _stores_of(self, name: str, first: Module) -> Sequence[tuple[Module, ast.Attribute]]:
        """Return the attributes of this name that code sets."""
        pattern = re.compile(rf"\.{re.escape(name)}\s*(=(?!=)|[-+*/]=|:|,)".encode())
        paths = [path for path, text in self._texts.values() if name.encode() in text and pattern.search(text)]
        modules = [module for path in paths if (module := self.readable(path)) is not None]
        return [
            (module, node)
            for module in dict.fromkeys([first, *modules])
            for node in module.nodes
            if isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        ]

    def _reached_from(self, module: Module) -> set[Module]:
        """Return the modules of the project that a module imports, also through other modules."""
        reached, waiting = {module}, [module]
        while waiting:
            importer = waiting.pop()
            for scope_name in _imported_names(importer):
                found = self.imported(importer, scope_name)
                if found is not None and found[0] not in reached:
                    reached.add(found[0])
                    waiting.append(found[0])
        return reached

    # -- names

    def full_name(self, module: Module, node: ast.AST) -> str:
        """Return the full name of an object outside of the project, also if other modules pass its name on."""
        name = module.full_name(node)
        for _ in range(MAX_ALIASES):
            found = self.imported(module, name)
            if found is None:
                return name
            module, rest = found
            head, _, tail = rest.partition(".")
            names = {_joined(_name_at_top(module, each), tail) for each in module.scopes.top.names.get(head, ())}
            stars = [f"{star}.{rest}" for star in module.stars] if not names else []
            name = names.pop() if len(names) == 1 else stars[0] if len(stars) == 1 else ""
        return ""

    def imported(self, module: Module, name: str) -> tuple[Module, str] | None:
        """Return (module of the project, name in it) for a full name, or None."""
        if not name or module.path is None:
            return None
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            package = ".".join(parts[:length])
            if package.strip("."):
                file, rest = file_of(package, module.path)
                found = self.readable(file) if file is not None else None
                if found is not None:
                    return found, ".".join([*([rest] if rest else []), *parts[length:]])
        return None

    def _definition(self, module: Module, node: ast.AST, depth: int = 0) -> Definition | None:
        """Return the function, class or assigned variable that a name stands for. Follow imports and aliases."""
        if depth > MAX_ALIASES or not isinstance(node, Target):
            return None
        assignments = module.scope(node).find(node.id) if isinstance(node, ast.Name) else []
        if assignments and all(each.alias is None for each in assignments):
            return self._followed(module, assignments, depth)
        if isinstance(node, ast.Name) and not assignments and module.stars:
            return self.member(module, node.id, depth + 1)
        found = self.imported(module, module.full_name(node))
        return self.member(*found, depth) if found is not None else None

    def member(self, module: Module, name: str, depth: int = 0) -> Definition | None:
        """Return the definition of a name at the top of a module, or of an attribute of a class there."""
        head, _, rest = name.partition(".")
        assignments = module.scopes.top.names.get(head, [])
        imports = [each for each in assignments if each.alias is not None]
        if depth > MAX_ALIASES or (imports and len(assignments) > 1):
            return None
        if imports:
            found = self.imported(module, _joined(imported_name(imports[0]), rest))
            return self.member(*found, depth + 1) if found is not None else None
        if not assignments:
            if (module, name) not in self._of_stars:
                self._of_stars[module, name] = None  # modules can import each other
                inner = [self.imported(module, f"{star}.{name}") for star in module.stars]
                each = [self.member(*found, depth + 1) for found in inner if found is not None]
                self._of_stars[module, name] = next(filter(None, each), None)
            return self._of_stars[module, name]
        if not rest:
            return self._followed(module, assignments, depth)
        owner = assignments[0].node
        if isinstance(owner, ast.ClassDef) and len(assignments) == 1:
            body = [each for each in owner.body if isinstance(each, DEFINITIONS) and each.name == rest]
            return Definition(module, body[0], rest) if len(body) == 1 else None
        return None

    def _followed(self, module: Module, assignments: Sequence[Assignment], depth: int) -> Definition | None:
        only = assignments[0]
        value = module.bound_value(only.node)
        if len(assignments) == 1 and not value.path and isinstance(value.value, Target):
            return self.definition(module, value.value, depth + 1) or Definition(
                module, only.node, only.name, assignments
            )
        is_unclear = len(assignments) > 1 and any(isinstance(each.node, DEFINITIONS) for each in assignments)
        return None if is_unclear else Definition(module, only.node, only.name, assignments)

    # -- calls

    def calls_of(self, definition: Definition) -> list[Call]:
        """Return the calls of a function or class in the project. A method is found by its name alone."""
        owner = definition.module.parents.get(definition.node)
        is_method = isinstance(owner, ast.ClassDef)
        if is_method and definition.name == "__init__":
            definition, is_method = Definition(definition.module, owner, owner.name), False  # type: ignore[arg-type, union-attr]
        calls = self._calls_named(definition.name, definition.module)
        if is_method:
            return [call for call in calls if method_of(call.node)]
        return [call for call in calls if self._is(call.module, call.node.func, definition)]

    def _is(self, module: Module, node: ast.AST, definition: Definition) -> bool:
        found = self.definition(module, node)
        return found is not None and found.node is definition.node

    def _find_calls_named(self, name: str, first: Module) -> list[Call]:
        calls = [Call(module, call) for module in self.mentioning(name, first) for call in module.calls]
        return [each for each in calls if name in self._names_of_function(each)]

    def _names_of_function(self, call: Call) -> set[str]:
        """Return the last part of the name of the called function, also if it is imported by another name."""
        name = last_name(call.node.func)
        return {name, call.module.full_name(call.node.func).rpartition(".")[2]}

    def calls_of_subclasses(self, owner: Definition) -> tuple[list[Call], str]:
        """Return (calls of the subclasses of a class, the name of a subclass with an own __init__, or '')."""
        calls: list[Call] = []
        for module in self.mentioning(owner.name, owner.module):
            for node in module.nodes:
                bases = node.bases if isinstance(node, ast.ClassDef) and node is not owner.node else []
                if not any(last_name(base) == owner.name and self._is(module, base, owner) for base in bases):
                    continue
                derived = Definition(module, node, node.name)  # type: ignore[attr-defined]
                if any(isinstance(line, DEFINITIONS) and line.name == "__init__" for line in node.body):  # type: ignore[attr-defined]
                    return calls, derived.name
                inner, other = self.calls_of_subclasses(derived)
                if other:
                    return calls, other
                calls += [*self.calls_of(derived), *inner]
        return calls, ""

    def passed_on(self, definition: Definition) -> str:
        """Return a place that passes a function on, so that other code may call it, or ''."""
        if definition.node not in self._passed_on:
            self._passed_on[definition.node] = next(self._mentions(definition), "")
        return self._passed_on[definition.node]

    def _mentions(self, definition: Definition) -> Iterator[str]:
        """Yield the places that read a function without calling it, or giving it another name."""
        for module, node in self._reads(definition):
            outer = module.parents[node]
            is_renamed = isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Name)
            is_used = not (_is_called(module, node) or is_renamed or isinstance(outer, ast.Attribute))
            if is_used and self._is(module, node, definition):
                yield f"{module.path.name if module.path else 'this file'}:{node.lineno}"

    def _reads(self, definition: Definition) -> Iterator[tuple[Module, Target]]:
        """Yield the places with the name of a function, also where it is another object."""
        for module in self.mentioning(definition.name, definition.module):
            for node in module.nodes:
                if isinstance(node, Target) and last_name(node) == definition.name and isinstance(node.ctx, ast.Load):
                    yield module, node

    def shows_all_calls(self, definition: Definition) -> bool:
        """Return whether all calls of a function are known: it has no decorator, no other name, and no getattr and no
        import that cannot be followed mentions it."""
        if definition.node not in self._shown:
            self._shown[definition.node] = self._shows_all_calls(definition)
        return self._shown[definition.node]

    def _shows_all_calls(self, definition: Definition) -> bool:
        name = definition.name
        for decorator in getattr(definition.node, "decorator_list", ()):
            function = definition.module.full_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if function.partition(".")[0] not in WRAPPERS:
                return False
        for module in self.mentioning(name, definition.module):
            for node in module.nodes:
                is_renamed = isinstance(node, ast.alias) and node.name == name and node.asname not in (None, name)
                if is_renamed and len({*self.mentioning(str(getattr(node, "asname", "")), module)}) > 1:
                    return False
                if text_of(node) == name and is_name(getattr(module.parents[node], "func", None), "getattr"):
                    return False
        return all(
            _is_called(module, node) if self._is(module, node, definition) else not self._may_be(module, node)
            for module, node in self._reads(definition)
        )

    def _may_be(self, module: Module, node: Target) -> bool:
        """Return whether a name may stand for a function of the project, because an import cannot be followed."""
        if self.definition(module, node) is not None:
            return False
        full_name = module.full_name(node)
        if (found := self.imported(module, full_name)) is not None:
            return found[1] != ""  # otherwise, it is a module
        if isinstance(node, ast.Name) and not module.scope(node).find(node.id):
            return bool(module.stars)
        package = full_name.partition(".")[0]
        return full_name != "" and (not package or any(package in (path.stem, *path.parts) for path in self._paths))


def _is_called(module: Module, node: ast.AST) -> bool:
    outer = module.parents[node]
    return isinstance(outer, ast.Call) and outer.func is node


def _imported_names(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            yield from (f"{package}.{alias.name}" if node.module else f"{package}{alias.name}" for alias in node.names)


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts)) if parts[0] else ""


def _name_at_top(module: Module, assignment: Assignment) -> str:
    if assignment.alias is not None:
        return imported_name(assignment)
    value = module.bound_value(assignment.node)
    return module.full_name(value.value) if not value.path and isinstance(value.value, Target) else ""


def parameters_of(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
) -> tuple[list[str], dict[str, ast.expr]]:
    """Return (positional parameters, {parameter: default})."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return names, defaults | {each.arg: default for each, default in named if default is not None}


def bound_argument(call: ast.Call, names: Sequence[str], name: str) -> Argument | str | None:
    """Return the argument that a call passes for a parameter, None if it passes none, or a starred argument's code."""
    for position, argument in enumerate(arguments_of(call)):
        if argument.keyword == name:
            return argument
        if argument.star == "*" and name in names[position:]:
            return ast.unparse(argument.node)
        if not argument.star and not argument.keyword and names[position : position + 1] == [name]:
            return argument
    starred = [each for each in call.keywords if each.arg is None]
    return f"**{ast.unparse(starred[0].value)}" if starred else None


__all__ = ["Binding", "Call", "Definition", "Project", "bound_argument", "parameters_of"]
