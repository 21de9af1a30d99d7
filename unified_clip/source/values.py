"""The value of an expression, if constants of the project and calls of functions fix it, and how it was found.

The attributes of objects, such as `args.clip` and `self.clip`, have no value here: what sets them is found by its name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from .._kit.static_values import UnknownValueError, evaluate
from .module import Module, is_of_self
from .project import Call, Definition, Project, bound_argument, parameters_of
from .tree import Function, Target, is_name, text_of

MAX_STEPS = 12
"""The length of a chain such as a = b; b = c."""

MAX_EVALUATED = 1000
"""The number of expressions to evaluate for one value. Functions that call each other could need millions."""

MAX_CALLS = 30
"""The values that calls of a function pass are listed one by one only for as many calls."""


class Origin(NamedTuple):
    """A place that a value comes from. Only a constant certainly keeps its value when the program runs."""

    kind: Literal["constant", "parameter", "caller"]
    """parameter: the default of a parameter, which no call in the project passes. caller: what the only call in the
    project passes."""

    name: str
    """Such as "train(clip=)" or CLIP."""

    module: Module
    line: int


@dataclass(frozen=True)
class Value:
    value: Any = None
    origins: Sequence[Origin] = ()
    """The places that the value comes from. Empty for a value that is written in the expression itself."""

    why_unknown: str = ""
    """A sentence, or '' if the value is known. Known values may be None."""

    passed: Sequence[Passed] = ()
    """What the calls in the project pass for a parameter, if the expression is only this parameter."""

    unused: Sequence[tuple[Module, ast.AST]] = ()
    """The parameters whose defaults no call uses."""


class Passed(NamedTuple):
    """What a call in the project passes for a parameter, or the default that it leaves."""

    module: Module
    node: ast.AST
    """The expression, or the parameter for calls that are not seen."""

    value: Value


class _UnknownError(Exception):
    """The message is a sentence that says why a value is unknown."""

    def __init__(self, why: str, passed: Sequence[Passed] = ()) -> None:
        super().__init__(why)
        self.passed = passed


class _EndedError(Exception):
    """Ends an evaluation. The message is a sentence, too."""


def value_of(project: Project, module: Module, node: ast.expr) -> Value:
    """Return the value of an expression at its place in a module."""
    evaluation = _Evaluation(project)
    try:
        return replace(evaluation.guarded(module, node), unused=evaluation.unused)
    except _EndedError as error:
        return Value(why_unknown=str(error))


class _Evaluation:
    def __init__(self, project: Project) -> None:
        self._project = project
        self._in_progress: list[ast.AST] = []
        self._evaluated = 0
        self.origins: list[Origin] = []
        self.unused: list[tuple[Module, ast.AST]] = []
        self._passed_last: Sequence[Passed] = ()

    def guarded(self, module: Module, node: ast.expr) -> Value:
        start = len(self.origins)
        try:
            value = self.value(module, node)
        except _UnknownError as error:
            return Value(why_unknown=str(error), passed=error.passed)
        return Value(value, tuple(dict.fromkeys(self.origins[start:])), passed=self._passed_last)

    def value(self, module: Module, node: ast.expr) -> Any:
        self._evaluated += 1
        if self._evaluated > MAX_EVALUATED:
            raise _EndedError("Too many calls may pass this value.")
        if node in self._in_progress or len(self._in_progress) > MAX_STEPS:
            raise _EndedError(f"The value of {ast.unparse(node)} depends on itself.")
        self._in_progress.append(node)
        self._passed_last = ()
        try:
            if isinstance(node, ast.Subscript):
                return self._entry(module, node)
            return evaluate(node, lambda target: self._named(module, target), module.full_name)
        except UnknownValueError as error:
            inner = error.node
            if inner is not node and isinstance(inner, ast.Subscript):
                return self.value(module, inner)
            raise _UnknownError(f"{ast.unparse(inner)} is computed when the code runs.") from None
        except _UnknownError as error:
            raise _UnknownError(str(error), error.passed if isinstance(node, Target) else ()) from None
        finally:
            self._in_progress.pop()
            if not isinstance(node, Target):  # what a call passes is only a part of this value
                self._passed_last = ()

    def _named(self, module: Module, node: Target) -> Any:
        if isinstance(node, ast.Attribute):
            found = self._project.definition(module, node)  # of a module
            if found is None or not found.assignments:
                raise _UnknownError(f"{ast.unparse(node)} is an attribute, which other code sets.")
            return self._assigned(found)
        assignments = module.scope(node).find(node.id)
        if assignments and all(each.alias is None for each in assignments):
            return self._assigned(Definition(module, assignments[0].node, node.id, assignments))
        definition = self._project.definition(module, node) or (
            None if assignments else self._project.member(module, node.id)
        )
        if definition is None:
            package = module.full_name(node)
            where = (
                f"comes from {package}, which is not in the project" if package else "is defined nowhere in the file"
            )
            raise _UnknownError(f"{node.id} {where}.")
        return self._assigned(definition)

    def _entry(self, module: Module, node: ast.Subscript) -> Any:
        """Return the value of a key in a dict that is written once, as in `CONFIG["clip"]`."""
        key, found = text_of(node.slice), self._project.definition(module, node.value)
        entries: list[tuple[str | None, ast.expr]] = []
        if found is not None and len(found.assignments) == 1:
            module, value = found.module, found.module.bound_value(found.node).value
            if isinstance(value, ast.Dict):
                entries = [(text_of(each), entry) for each, entry in zip(value.keys, value.values, strict=True)]
            elif isinstance(value, ast.Call) and is_name(value.func, "dict") and not value.args:
                entries = [(each.arg, each.value) for each in value.keywords]
            is_read = all(_is_plain_read(module, read) for read in found.assignments[0].reads)
            named = [entry for name, entry in entries if name == key]
            if key is not None and is_read and len(named) == 1 and all(name is not None for name, _ in entries):
                return self.value(module, named[0])
        raise _UnknownError(f"{ast.unparse(node)} is not an entry of a dict that the file writes once.")

    # -- variables and parameters

    def _assigned(self, definition: Definition) -> Any:
        module, name = definition.module, definition.name
        if len(definition.assignments) > 1:
            lines = " and ".join(str(module.position(each.node)[0]) for each in definition.assignments[:3])
            raise _UnknownError(f"{name} has several values, in lines {lines}.")
        if isinstance(definition.node, ast.arg):
            return self._parameter(module, definition.node)
        if module.scope(definition.node) is module.scopes.top:  # other files may set it, as in `module.CLIP = 2.0`
            self._check_stores(module, name)
        bound = module.bound_value(definition.node)
        value = bound.value if not isinstance(bound.node, ast.withitem) else None
        for index in bound.path:
            elements = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            value = elements[index] if index is not None and index < len(elements) else None
        if value is None:
            raise _UnknownError(f"{name} gets its value in a loop, a call or a definition.")
        reads = [module.parents[read] for each in definition.assignments for read in each.reads]
        if isinstance(value, ast.List) and any(isinstance(read, ast.Attribute | ast.Subscript) for read in reads):
            raise _UnknownError(f"{name} is a list that code may change.")
        if any(is_name(call.func, "exec") for call in module.calls):
            raise _UnknownError(f"The file calls exec, which may change {name}.")
        self._add("constant", name, module, definition.node)
        return self.value(module, value)

    def _parameter(self, module: Module, node: ast.arg) -> Any:
        function = module.enclosing_function(node)
        if not isinstance(function, Function) or node in (function.args.vararg, function.args.kwarg):
            raise _UnknownError(f"{node.arg} is a parameter without a name of its own in the calls.")
        definition = Definition(module, function, function.name)
        if isinstance(module.parents[function], ast.ClassDef):
            raise _UnknownError(f"{definition.name} is a method, and calls of methods cannot be told apart.")
        if place := self._project.passed_on(definition):
            raise _UnknownError(f"{definition.name} is passed on in {place}, so other code may call it.")
        calls, (names, defaults) = self._project.calls_of(definition), parameters_of(function)
        default, label = defaults.get(node.arg), f"{function.name}({node.arg}=)"
        passed = [*self._passed(label, node.arg, calls, names)]
        is_default_used = len(passed) < max(len(calls), 1)
        shows_all = self._project.shows_all_calls(definition)
        if default is None:
            if is_default_used:
                raise _UnknownError(f"No call in the project passes {node.arg} of {function.name}.")
            if not shows_all:
                why = f"{function.name} has another name, or an import of it cannot be followed."
                passed.append(Passed(module, node, Value(why_unknown=why)))
        elif is_default_used or not shows_all:
            self._add("parameter", label, module, node)
            passed.append(Passed(module, default, self.guarded(module, default)))
        else:
            self.unused.append((module, node))
        are_listed = 0 < len(calls) <= MAX_CALLS
        inner = [each for outer in passed for each in outer.value.passed or [outer]] if are_listed else []
        if unknown := [each.value.why_unknown for each in passed if each.value.why_unknown]:
            raise _UnknownError(unknown[0], inner)
        if any(each.value.value != passed[0].value.value for each in passed):
            places = " and ".join(call.place for call in calls[:3])
            raise _UnknownError(f"Calls pass different values for {node.arg}: {places}.", inner)
        self._passed_last = inner
        return passed[0].value.value

    def _passed(self, label: str, name: str, calls: Sequence[Call], names: Sequence[str]) -> Iterator[Passed]:
        """Yield what calls of a function pass for a parameter."""
        for call in calls:
            argument = bound_argument(call.node, names, name)
            if isinstance(argument, str):
                raise _UnknownError(f"{call.place} passes {argument}, which may contain {name}.")
            if argument is not None:
                self._add("caller", label, call.module, call.node)
                yield Passed(call.module, argument.value, self.guarded(call.module, argument.value))

    def _check_stores(self, module: Module, name: str) -> None:
        """Raise an error if code sets an attribute of this name on an object that may be this module."""
        for other, node in self._project.stores_of(name, module):
            if not is_of_self(node):
                place = f"{other.path.name if other.path else 'this file'}:{node.lineno}"
                raise _UnknownError(f"{other.code(node)} is also set in {place}.")

    def _add(self, kind: Any, name: str, module: Module, node: ast.AST) -> None:
        self.origins.append(Origin(kind, name, module, module.position(node)[0]))


def _is_plain_read(module: Module, read: ast.AST) -> bool:
    outer = module.parents[read]
    return isinstance(outer, ast.Subscript) and isinstance(outer.ctx, ast.Load)
