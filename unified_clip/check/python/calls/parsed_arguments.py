"""Decide whether an expression such as `args.max_grad_norm` has its value from the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Set

from ....config.formats.python_source import FUNCTIONS, Source, last_name
from ....port.catalog import settings

PARSES = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"})

HF_PARSES = ("parse_args_into_dataclasses", "parse_args_and_config", "parse_dict", "parse_json_file", "parse_yaml_file")

MAX_GRAD_NORM = "max_grad_norm"
TRAINER_ARGUMENTS = ("args", "config")

PARSE_FUNCTIONS = frozenset({"simple_parsing.parse", "tyro.cli"})

FLAGS = (
    "absl.flags.FLAGS",
    "absl.app.flags.FLAGS",
    "tensorflow.app.flags.FLAGS",
    "tensorflow.compat.v1.app.flags.FLAGS",
)

ATTRIBUTES = re.compile(r"vars\(|__dict__|globals\(|locals\(")

SETTERS = frozenset({"setattr", "__setattr__", "set_default", "set_defaults", "exec"})

CHANGES = re.compile(r"_*(update|load|merge|set|override|from|read|pop|clear|replace|__setitem__)")

CONFIG_FILES = ("config_files", "default_config_files", "fromfile_prefix_chars")
"""Arguments that make a parser read options from files, too."""


def is_unchanged(source: Source, read: ast.Attribute, owner: str) -> bool:
    """Return whether the value of an expression such as `args.max_grad_norm` certainly comes from the command line.

    owner: The class that has the option as a field, or '' if a parser defines the option.
    """
    classes = with_derived(source, {owner} if owner else set())
    if any(_sets(source, node, read, classes) for node in source.nodes) or "configargparse" in source.packages:
        return False
    if source.dotted(read.value) in FLAGS:
        return not owner
    name = last_name(read.value)
    values = [*_assigned(source, name, type(read.value)), *_passed(source, name)]
    others = [value for value in values if not _is_same(value, name)]
    is_stored = any(isinstance(node, type(read.value)) for node in _stores(source, name))
    is_known = is_stored or isinstance(read.value, ast.Name)
    return bool(others and is_known) and all(_has_options(source, value, classes) for value in others)


def attribute_settings(source: Source) -> Iterator[tuple[ast.Assign, ast.Attribute]]:
    for node in source.nodes:
        if isinstance(node, ast.Assign):
            yield from ((node, target) for target in node.targets if isinstance(target, ast.Attribute))


def is_other_object(source: Source, setting: ast.Attribute) -> bool:
    owner, arguments = setting.value, _training_arguments(source)
    if not arguments or not isinstance(owner, ast.Name) or not any(_stores(source, owner.id)):
        return False
    function = source.function(setting)
    nodes = ast.walk(function.args) if isinstance(function, FUNCTIONS) else ()
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return arguments.isdisjoint({owner.id, ast.unparse(source.followed(owner))}) and owner.id not in parameters


def training_arguments_name(source: Source) -> str:
    """Return the variable that gets the parsed training arguments, or "training_args" if no line assigns them."""
    trainers = [call for call in source.calls if last_name(call.func).endswith("Trainer")]
    passed = [each.value for call in trainers for each in call.keywords if each.arg in TRAINER_ARGUMENTS]
    objects = [*_parsed_objects(source, _argument_classes(source))] or passed
    names = {*map(ast.unparse, objects)} or _training_arguments(source)
    return min(filter(str.isidentifier, names), key=len, default="training_args")


def _argument_classes(source: Source) -> set[str]:
    names = {name.rpartition(".")[2] for each in settings() if each.keyword == MAX_GRAD_NORM for name in each.classes}
    return with_derived(source, names)


def _parsed_objects(source: Source, classes: Collection[str]) -> Iterator[ast.expr]:
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple() | ast.List() as target], value=ast.Call(func=function) as call):
                if last_name(function) in HF_PARSES:
                    parsed = zip(_parsed_classes(source, call), target.elts, strict=False)
                    yield from [element for name, element in parsed if name in classes]


def _training_arguments(source: Source) -> set[str]:
    classes = _argument_classes(source)
    objects = list(_parsed_objects(source, classes))
    for node in source.nodes:
        match node:
            case ast.Call(func=function, args=args, keywords=keywords) if last_name(function).endswith("Trainer"):
                objects += [*args[:2], *(each.value for each in keywords if each.arg in TRAINER_ARGUMENTS)]
            case ast.Assign(targets=[target], value=ast.Call(func=function)):
                objects += [target] if last_name(function) in classes else []
    return {ast.unparse(code) for each in objects for code in (each, source.followed(each))}


def _parsed_classes(source: Source, parsing: ast.Call) -> list[str]:
    parser = source.followed(parsing.func.value) if isinstance(parsing.func, ast.Attribute) else None
    if not isinstance(parser, ast.Call):
        return []
    passed = [*parser.args[:1], *(each.value for each in parser.keywords if each.arg == "dataclass_types")]
    parsed = source.followed(passed[0]) if passed else None
    return [*map(last_name, parsed.elts if isinstance(parsed, ast.Tuple | ast.List) else [parsed])] if parsed else []


def is_set_after_parsing(source: Source, argument: str) -> bool:
    """Return whether code always sets an argument between parsing and training, as in `args.max_grad_norm = 1.0`."""
    parsings = [
        node
        for node in source.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last_name(node.value.func) in HF_PARSES
    ]
    return bool(parsings) and any(
        target.attr == argument and all(_is_set_after(source, node, target, parsing) for parsing in parsings)
        for node, target in attribute_settings(source)
    )


def _is_set_after(source: Source, setting: ast.Assign, target: ast.Attribute, parsing: ast.Assign) -> bool:
    if not isinstance(source.parents[setting], (*FUNCTIONS, ast.Module)):
        return False
    lines = range(parsing.lineno + 1, setting.lineno)
    has_trained = any(call.lineno in lines and last_name(call.func) == "train" for call in source.calls)
    names = {ast.unparse(node) for each in parsing.targets for node in ast.walk(each)}
    is_same = ast.unparse(target.value) in names and source.function(parsing) is source.function(setting)
    is_after = parsing.lineno < setting.lineno and not has_trained
    return is_same and is_after and not is_other_object(source, target)


def with_derived(source: Source, classes: Set[str]) -> set[str]:
    names, before = {*classes}, -1
    while before < len(names):
        before = len(names)
        names |= {
            node.name
            for node in source.nodes
            if isinstance(node, ast.ClassDef) and names & {*map(last_name, node.bases)}
        }
    return names


def _sets(source: Source, node: ast.AST, read: ast.Attribute, classes: Collection[str]) -> bool:
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name in (read.attr, "default", "__dict__")
        case ast.Subscript(value=table, slice=ast.Constant(value=key)) if source.dotted(table) in FLAGS:
            return key == read.attr
        case ast.Subscript(value=table, slice=key, ctx=ast.Store()):
            is_other = isinstance(key, ast.Constant) and key.value not in (read.attr, last_name(read.value))
            return not is_other and _is_attributes(source, table)
        case ast.AugAssign(target=table, op=ast.BitOr()):
            return _is_attributes(source, table)
        case ast.Call(func=function, args=positional, keywords=keywords):
            names = {each.arg for each in keywords}
            is_named = not names.isdisjoint({None, read.attr})
            name = last_name(function)
            if name in SETTERS:
                return is_named or bool(positional)
            if name in ("replace", *classes) and is_named:
                return True
            if isinstance(function, ast.Attribute) and CHANGES.match(name):
                return _is_attributes(source, function.value) or _is_same(function.value, last_name(read.value))
            return not names.isdisjoint(CONFIG_FILES)
    return False


def _is_attributes(source: Source, table: ast.expr) -> bool:
    values = source.bound.get(table.id, []) if isinstance(table, ast.Name) else [table]
    return any(value is not None and ATTRIBUTES.search(ast.unparse(value)) for value in values)


def _is_same(value: ast.AST, name: str) -> bool:
    is_own = isinstance(value, ast.Attribute) and last_name(value.value) == "self"
    return last_name(value) == name and (isinstance(value, ast.Name) or is_own)


def _stores(source: Source, name: str) -> Iterator[ast.Name | ast.Attribute]:
    for node in source.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store) and last_name(node) == name:
            yield node


def _assigned(source: Source, name: str, kind: type[ast.expr] = ast.Name) -> Iterator[ast.AST]:
    for node in _stores(source, name):
        if isinstance(node, ast.Attribute) and kind is ast.Name:
            continue
        parent = source.parents[node]
        match parent, source.parents.get(parent):
            case ((ast.Assign(value=value) | ast.NamedExpr(value=value)), _):
                yield value
            case ast.AnnAssign(value=value), _:
                yield from [value] if value is not None else []
            case ast.Tuple(elts=[first, *_]), ast.Assign(value=value) if first is node:
                yield value
            case _:
                yield parent
    for other in source.nodes:
        match other:
            case ast.MatchAs(name=bound) | ast.alias(name=bound, asname=None) | ast.alias(asname=bound):
                yield from [other] if bound == name else []


def _passed(source: Source, name: str) -> Iterator[ast.AST]:
    for node in source.nodes:
        if not isinstance(node, FUNCTIONS):
            continue
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        if isinstance(node, ast.Lambda):
            yield from [node] if name in names else []
            continue
        outer = source.parents[node]
        function = outer.name if node.name == "__init__" and isinstance(outer, ast.ClassDef) else node.name
        index = names.index(name) - (names[0] in ("self", "cls")) if name in names else len(names)
        for call in source.calls:
            if last_name(call.func) == function and name in [*names, *(each.arg for each in node.args.kwonlyargs)]:
                yield from call.args[index : index + 1]
                yield from [each.value for each in call.keywords if each.arg == name]


def _has_options(source: Source, value: ast.AST, classes: Collection[str]) -> bool:
    value = source.followed(value) if isinstance(value, ast.expr) else value
    return _parses(source, value, classes) or _calls_parser(source, value, classes)


def _parses(source: Source, value: ast.AST, classes: Collection[str]) -> bool:
    """Return whether an expression reads the command line, or is a call such as `Args()`.

    classes: The classes with a field for the option. Empty if a parser defines the option.
    """
    value = value.value if isinstance(value, ast.Subscript) else value
    if not isinstance(value, ast.Call):
        return False
    if source.dotted(value.func) in PARSE_FUNCTIONS:
        is_plain = {each.arg for each in value.keywords} <= {"description", "prog"}
        return is_plain and len(value.args) == 1 and last_name(value.args[0]) in classes
    if value.args or value.keywords:
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in PARSES:
        parser = source.followed(value.func.value)
        return not classes or any(last_name(node) in classes for node in ast.walk(parser))
    return last_name(value.func) in classes


def _calls_parser(source: Source, value: ast.AST, classes: Collection[str]) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = last_name(value.func)
    functions = [node for node in source.nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    values: list[ast.AST | None] = []
    for node in [inner for function in functions for inner in ast.walk(function)]:
        if isinstance(node, ast.Return):
            values += _assigned(source, node.value.id) if isinstance(node.value, ast.Name) else [node.value]
    # The variable outside of the function often has the same name, as in `args = get_args()`.
    others = [each for each in values if each is None or not _parses(source, each, classes)]
    is_outside = (isinstance(each, ast.Call) and last_name(each.func) == name for each in others)
    return len(others) < len(values) and all(is_outside)
