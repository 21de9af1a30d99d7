"""The value of an expression, if the code of the project fixes it, and how it was found."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from .._kit.static_values import UnknownValueError, evaluate
from .module import SELF, Module, is_of_self
from .objects import MAX_STEPS, SettingsObjects
from .options import FLAGS, Option, field_of, options_named
from .project import Call, Definition, Project, bound_argument, parameters_of
from .tree import Function, Target, is_name, keywords_of, last_name, text_of

MAX_EVALUATED = 1000
"""The number of expressions to evaluate for one value. Functions that call each other could need millions."""

MAX_CALLS = 30
"""The values that calls of a function pass are listed one by one only for as many calls."""


Shown = Literal["all", "some", "of the class", "by name"]
"""Which calls of a function are known. some: other code may call it, and use its default. by name: those of methods of
this name, also of other classes."""


class Origin(NamedTuple):
    """A place that a value comes from. Only a constant certainly keeps its value when the program runs."""

    kind: Literal["constant", "option", "field", "parameter", "caller"]
    """option: the default of an option of the command line. field: the default of a field of a class. parameter: the
    default of a parameter, which no call in the project passes. caller: what the only call in the project passes."""

    name: str
    """Such as "--max-grad-norm", "Config.clip", "train(clip=)" or CLIP."""

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
    """What the calls in the project pass for a parameter, if the expression is only this parameter. A parameter of a
    method has none, because a method is found by its name alone."""

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
        self._objects = SettingsObjects(project)
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
            return self._attribute(module, node)
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
        if module.scopes.top.names.get(name) == list(definition.assignments):
            self._check_stores(module, name)
        self._add("constant", name, module, definition.node)
        return self.value(module, value)

    def _parameter(self, module: Module, node: ast.arg) -> Any:
        function = module.enclosing_function(node)
        if not isinstance(function, Function) or node in (function.args.vararg, function.args.kwarg):
            raise _UnknownError(f"{node.arg} is a parameter without a name of its own in the calls.")
        options = [each for each in options_named(module, node.arg) if each.node in function.decorator_list]  # of click
        if options:
            return self._default(options[0])
        names, defaults = parameters_of(function)
        owner = module.parents[function]
        definition = Definition(module, function, function.name)
        if place := self._project.passed_on(definition):
            raise _UnknownError(f"{definition.name} is passed on in {place}, so other code may call it.")
        calls: Sequence[Call] = self._project.calls_of(definition)
        shown: Shown = "by name"
        if not isinstance(owner, ast.ClassDef):
            shown = "all" if self._project.shows_all_calls(definition) else "some"
        elif names[:1] and names[0] in SELF:
            names = names[1:]
        if isinstance(owner, ast.ClassDef) and function.name == "__init__":
            created, other = self._project.calls_of_subclasses(Definition(module, owner, owner.name))
            if other:
                raise _UnknownError(f"The class {other} derives from {owner.name}, and has its own __init__.")
            calls, shown = [*calls, *created], "of the class"
        default = Option(module, node, "", defaults.get(node.arg))
        return self._passed(function.name, node.arg, calls, names, default, shown)

    def _passed(
        self,
        function: str,
        name: str,
        calls: Sequence[Call],
        names: Sequence[str],
        default: Option,
        shown: Shown = "of the class",
    ) -> Any:
        """Return the value that all calls of a function pass for a parameter."""
        label = f"{function}({name}=)"
        passed: list[Passed] = []
        for call in calls:
            argument = bound_argument(call.node, names, name)
            if isinstance(argument, str):
                raise _UnknownError(f"{call.place} passes {argument}, which may contain {name}.")
            if argument is not None:
                self._add("caller", label, call.module, call.node)
                passed.append(Passed(call.module, argument.value, self.guarded(call.module, argument.value)))
        is_default_used = len(passed) < max(len(calls), 1)
        if default.default is None:
            if is_default_used:
                raise _UnknownError(f"No call in the project passes {name} of {function}.")
            if shown == "some":
                unseen = Value(why_unknown=f"{function} has another name, or an import of it cannot be followed.")
                passed.append(Passed(default.module, default.node, unseen))
        elif is_default_used or shown == "some":
            self._add("parameter", label, default.module, default.node)
            passed.append(Passed(default.module, default.default, self.guarded(default.module, default.default)))
        elif shown == "all":
            self.unused.append((default.module, default.node))
        are_listed = shown != "by name" and 0 < len(calls) <= MAX_CALLS
        inner = [each for outer in passed for each in outer.value.passed or [outer]] if are_listed else []
        if unknown := [each.value.why_unknown for each in passed if each.value.why_unknown]:
            raise _UnknownError(unknown[0], inner)
        if any(each.value.value != passed[0].value.value for each in passed):
            places = " and ".join(call.place for call in calls[:3])
            raise _UnknownError(f"Calls pass different values for {name}: {places}.", inner)
        self._passed_last = inner
        return passed[0].value.value

    # -- attributes

    def _attribute(self, module: Module, node: ast.Attribute) -> Any:
        if module.full_name(node.value) in FLAGS:
            return self._option(module, node.attr)
        if node.attr == "value" and (flag := self._flag(module, node.value)):
            return self._option(module, flag)
        definition = self._project.definition(module, node)
        if definition is not None and definition.assignments:
            return self._assigned(definition)
        owner = module.enclosing(node, ast.ClassDef)
        if is_of_self(node) and owner is not None:
            return self._of_object(Definition(module, owner, owner.name), node.attr)
        parsed = list(self._objects.of(module, node.value))
        if not parsed:
            return self._of_unknown_class(module, node)
        values = [
            self._option(module, node.attr)
            if each.owner is None
            else self._of_object(each.owner, node.attr, [each.call] if each.call is not None else None)
            for each in parsed
        ]
        if any(value != values[0] for value in values):
            raise _UnknownError(f"{ast.unparse(node)} has several values.")
        return values[0]

    def _of_unknown_class(self, module: Module, node: ast.Attribute) -> Any:
        """Return what the only call passes that makes an object, as in `hparams = HParams(clip=1.0)`."""
        made = self._project.definition(module, node.value)
        call = made.module.bound_value(made.node).value if made is not None and len(made.assignments) == 1 else None
        is_class = isinstance(call, ast.Call) and last_name(call.func)[:1].isupper()
        passed = keywords_of(call).get(node.attr) if isinstance(call, ast.Call) and is_class else None
        if made is None or passed is None:
            raise _UnknownError(f"The object {ast.unparse(node.value)} is not known.")
        self._check_stores(made.module, node.attr)
        return self._default(Option(made.module, passed.value, f"{made.name}.{node.attr}", passed.value))

    def _flag(self, module: Module, node: ast.expr) -> str:
        """Return the name of an absl flag in `CLIP = flags.DEFINE_float("clip", ...)`, or ''."""
        values = module.binding(node).values or []
        call = values[0] if len(values) == 1 else None
        is_flag = isinstance(call, ast.Call) and last_name(call.func).startswith("DEFINE_") and call.args
        return text_of(call.args[0]) or "" if is_flag and isinstance(call, ast.Call) else ""

    def _of_object(self, owner: Definition, name: str, calls: Sequence[Call] | None = None) -> Any:
        """Return an attribute of an object: set once in its class, or passed by the calls that create the object."""
        module, node = owner.module, owner.node
        calls = self._project.calls_of(owner) if calls is None else calls
        if not isinstance(node, ast.ClassDef):
            raise _UnknownError(f"{ast.unparse(node)}.{name} is set outside of the project.")
        stores = [each for each in module.attributes.get((node, name), []) if module.is_target(each)]
        self._check_stores(module, name, {id(each) for each in stores})
        if len(stores) > 1:
            lines = " and ".join(str(module.position(each)[0]) for each in stores[:3])
            raise _UnknownError(f"{node.name}.{name} is set in several lines: {lines}.")
        if not stores:
            bases = [self._project.definition(module, base) for base in node.bases]
            classes = [base for base in bases if base is not None and isinstance(base.node, ast.ClassDef)]
            if not classes and len(calls) == 1 and name in (passed := keywords_of(calls[0].node)):
                value = passed[name].value
                return self._default(Option(calls[0].module, value, f"{node.name}.{name}", value))
            if node.bases and not classes:
                raise _UnknownError(f"{node.name}.{name} is set outside of the project.")
            if not classes:
                raise _UnknownError(f"No line of the class {node.name} sets {name}.")
            return self._of_object(classes[0], name, calls)
        field = field_of(module, node, name)
        if field is None:
            bound = module.bound_value(stores[0])
            if bound.value is None or bound.path:
                raise _UnknownError(f"{node.name}.{name} gets its value in a loop, a call or a definition.")
            self._add("constant", f"{node.name}.{name}", module, stores[0])
            return self.value(module, bound.value)
        fields = [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        if name in fields and any(bound_argument(each.node, fields, name) is not None for each in calls):
            return self._passed(node.name, name, calls, fields, field)
        return self._default(field)

    def _check_stores(self, module: Module, name: str, own: set[int] | None = None) -> None:
        """Raise an error if code sets an attribute of this name on an object that may be this one."""
        for other, node in self._project.stores_of(name, module):
            if id(node) in (own or ()):
                continue
            outer = other.enclosing(node, ast.ClassDef)
            if is_of_self(node) and outer is not None and (own is None or not _may_derive(other, outer, own, module)):
                continue
            place = f"{other.path.name if other.path else 'this file'}:{node.lineno}"
            raise _UnknownError(f"{other.code(node)} is also set in {place}.")

    # -- settings of a command line

    def _option(self, module: Module, name: str) -> Any:
        self._check_stores(module, name)
        found = list(options_named(module, name))
        if not found:
            found = [
                each for other in self._project.mentioning_option(name, module) for each in options_named(other, name)
            ]
        near = [each for each in found if each.module in self._project.reached_from(module)] if len(found) > 1 else []
        found = near or found
        defaults = {ast.unparse(each.default) if each.default is not None else "" for each in found}
        if len(defaults) > 1:
            places = " and ".join(each.place for each in found[:3])
            raise _UnknownError(f"The option {found[0].shown} has several defaults: {places}.")
        if not found:
            raise _UnknownError(f"No file of the project defines the option {name}.")
        for call in module.calls:
            if last_name(call.func) == "set_defaults" and name in keywords_of(call):
                raise _UnknownError(f"Line {call.lineno} changes the default of {found[0].shown}.")
        return self._default(found[0])

    def _default(self, option: Option) -> Any:
        kind: Literal["option", "field"] = "option" if option.shown.startswith("-") else "field"
        if option.default is None:
            raise _UnknownError(f"The {kind} {option.shown} has no default that is known.")
        self._add(kind, option.shown, option.module, option.node)
        return self.value(option.module, option.default)

    def _add(self, kind: Any, name: str, module: Module, node: ast.AST) -> None:
        self.origins.append(Origin(kind, name, module, module.position(node)[0]))


def _is_plain_read(module: Module, read: ast.AST) -> bool:
    outer = module.parents[read]
    return isinstance(outer, ast.Subscript) and isinstance(outer.ctx, ast.Load)


def _may_derive(module: Module, owner: ast.ClassDef, own: set[int], of: Module) -> bool:
    """Return whether a class may have the attribute from a class of the project: as itself or as a subclass."""
    names = {last_name(base) for base in owner.bases}
    classes = {each.name for each, _ in of.attributes if any(id(node) in own for node in of.attributes[each, _])}
    return bool(names & classes) or (module is of and owner.name in classes)
