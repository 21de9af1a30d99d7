"""Find the objects whose attributes are settings, such as the result of a parser or an object of a dataclass."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .module import Module, is_of_self
from .options import PARSE_FUNCTIONS, PARSES, PARSES_CLASSES
from .project import Call, Definition, Project, bound_argument, parameters_of
from .tree import Function, Target, is_name, keywords_of, last_name, method_of, sorted_nodes

MAX_STEPS = 12
"""The length of a chain such as a = b; b = args.c."""


class Settings(NamedTuple):
    """An object with settings as attributes: the result of a parser, or an object of a class of the project."""

    owner: Definition | None
    """The class, or None for a parser of options."""

    call: Call | None = None


class SettingsObjects:
    def __init__(self, project: Project) -> None:
        self._project = project
        self._in_progress: list[ast.AST] = []

    def of(self, module: Module, node: ast.expr, path: Sequence[int | None] = ()) -> Iterator[Settings]:
        """Yield the kinds of object that an expression may be. Yield nothing if one of them is unknown."""
        if node in self._in_progress or len(self._in_progress) > MAX_STEPS:
            return
        self._in_progress.append(node)
        try:
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and isinstance(node.slice.value, int)
            ):
                yield from self.of(module, node.value, [node.slice.value])
            elif isinstance(node, ast.Call):
                yield from self._of_call(module, node, path)
            elif isinstance(node, ast.Attribute) and not is_of_self(node):
                yield from self._nested(module, node)
            elif isinstance(node, Target):
                yield from self._of_variable(module, node)
        finally:
            self._in_progress.remove(node)

    def _of_variable(self, module: Module, node: Target) -> Iterator[Settings]:
        binding = module.binding(node)
        definition = self._project.definition(module, node)
        if definition is not None and definition.module is not module and definition.assignments:
            module, bounds = (
                definition.module,
                [definition.module.bound_value(each.node) for each in definition.assignments],
            )
        else:
            bounds = list(binding.bounds)
        kinds = [
            list(self.of(module, bound.value, bound.path)) if bound.value is not None else []
            for bound in bounds
            if not (
                isinstance(bound.value, ast.Call)
                and is_name(node, last_name(bound.value.args[0]) if bound.value.args else "")
            )
        ]
        parameters = [each.node for each in binding.assignments if isinstance(each.node, ast.arg)]
        if len(parameters) == len(bounds) == 1:
            kinds = [list(self._of_parameter(module, parameters[0]))]
        if all(kinds):
            yield from (each for kind in kinds for each in kind)

    def _of_parameter(self, module: Module, node: ast.arg) -> Iterator[Settings]:
        annotation = self._project.definition(module, node.annotation) if node.annotation is not None else None
        if annotation is not None and isinstance(annotation.node, ast.ClassDef):
            yield Settings(annotation)
            return
        function = module.enclosing_function(node)
        if not isinstance(function, Function):
            return
        owner, (names, _) = module.parents[function], parameters_of(function)
        definition = Definition(module, function, function.name)
        for call in self._project.calls_of(definition):
            argument = bound_argument(call.node, names[isinstance(owner, ast.ClassDef) :], node.arg)
            if argument is not None and not isinstance(argument, str):
                yield from self.of(call.module, argument.value)

    def _nested(self, module: Module, node: ast.Attribute) -> Iterator[Settings]:
        """Yield the class of a field, as of `config.optimizer`."""
        for outer in self.of(module, node.value):
            found = self._class_of_field(outer.owner, node.attr) if outer.owner is not None else None
            if found is not None:
                yield Settings(found)

    def _class_of_field(self, owner: Definition, name: str) -> Definition | None:
        lines = owner.node.body if isinstance(owner.node, ast.ClassDef) else []
        fields = [line for line in lines if isinstance(line, ast.AnnAssign) and is_name(line.target, name)]
        if fields:
            found = self._project.definition(owner.module, fields[0].annotation)
            return found if found is not None and isinstance(found.node, ast.ClassDef) else None
        bases = owner.node.bases if isinstance(owner.node, ast.ClassDef) else []
        outer = [self._project.definition(owner.module, base) for base in bases]
        return next((self._class_of_field(each, name) for each in outer if each is not None), None)

    def _of_call(self, module: Module, call: ast.Call, path: Sequence[int | None]) -> Iterator[Settings]:
        method = method_of(call)
        if method in PARSES and path in ((), [], [0], (0,)):
            yield Settings(None)
        elif method in PARSES_CLASSES:
            parser = call.func.value if isinstance(call.func, ast.Attribute) else call
            values = [parser] if isinstance(parser, ast.Call) else module.binding(parser).values or []
            classes = [classes for value in values for classes in self._classes_parsed(module, value)]
            place = path[0] if path else None
            yield from map(Settings, classes if place is None else classes[place : place + 1])
        elif module.full_name(call.func) in PARSE_FUNCTIONS:
            found_classes = [self._project.definition(module, each) for each in call.args[:1]]
            yield from (
                Settings(each) for each in found_classes if each is not None and isinstance(each.node, ast.ClassDef)
            )
        elif (found := self._project.definition(module, call.func)) is not None:
            if isinstance(found.node, ast.ClassDef):
                yield Settings(found, Call(module, call))
            elif isinstance(found.node, ast.FunctionDef):
                returns = [node for node in sorted_nodes(found.node) if isinstance(node, ast.Return) and node.value]
                for node in returns:
                    yield from self.of(found.module, node.value, path)  # type: ignore[arg-type]

    def _classes_parsed(self, module: Module, parser: ast.expr) -> list[Definition]:
        """Return the classes of a parser such as HfArgumentParser((ModelArguments, TrainingArguments))."""
        if not isinstance(parser, ast.Call) or not (parser.args or parser.keywords):
            return []
        passed = keywords_of(parser).get("dataclass_types")
        classes = passed.value if passed is not None else parser.args[0]
        values = module.binding(classes).values
        classes = values[0] if values else classes
        nodes = classes.elts if isinstance(classes, ast.Tuple | ast.List) else [classes]
        found = ((self._project.definition(module, node), node) for node in nodes)
        return [Definition(module, node, "") if each is None else each for each, node in found]
