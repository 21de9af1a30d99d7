"""Thresholds that a script reads from its command line: their defaults, and the command lines that set them."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...._static_values import is_number
from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source, last_name
from ....errors import ConfigError
from ...clip_use import ClipUse

PARSES = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"})
"""The methods of parsers, such as argparse's, that read the command line."""

PARSE_FUNCTIONS = frozenset({"simple_parsing.parse", "tyro.cli"})
"""The functions that read the command line into a class."""

DICT = re.compile(r"vars\(|__dict__")
"""Matches an object's attributes as a dict."""

FLAGS = ("absl.flags.FLAGS", "absl.app.flags.FLAGS")
DEFINITIONS = ("DEFINE_float", "DEFINE_integer")


class Option(NamedTuple):
    """An option of the command line."""

    name: str
    """The name of the option's value in Python, such as "max_grad_norm"."""

    shown: str
    """The option, such as "--max-grad-norm", or the field of a class, such as "Args.max_grad_norm"."""

    default: float | None
    """The default. None if there is none, or if it is no number."""


def find(source: Source, code: str) -> Option | None:
    """Return the option that an expression reads, such as `args.max_grad_norm`.

    Return None if the expression reads no option of a parser in the source, or if other code may set the value.
    """
    try:
        node = source.followed(ast.parse(code, mode="eval").body)
    except SyntaxError:
        return None
    if not isinstance(node, ast.Attribute) or _is_set(source, node.attr) or not _is_parsed(source, node.value):
        return None
    defaults = list(_defaults(source, node.attr))
    if len(defaults) != 1:
        return None
    shown, expression = defaults[0]
    value = None
    with contextlib.suppress(ConfigError):
        value = source.constant(expression)
    return Option(node.attr, shown, value if is_number(value) else None)


def passed(uses: Sequence[ClipUse]) -> list[ClipUse]:
    """Return all clips, with the effect of command lines that pass a threshold to a script among them.

    A command line belongs to a script if its file has the script's file name. The script must read the option as the
    threshold of a clip. If scripts of that name clip by several rules, the effect is unknown.

    uses: All clips in files and in Python source.
    """
    readers = [use for use in uses if use.package and use.option]
    return [_as_read(use, readers) if use.option and not use.package else use for use in uses]


def _as_read(use: ClipUse, readers: Sequence[ClipUse]) -> ClipUse:
    (value,) = use.values
    text = use.path.read_text("utf-8", "replace")
    configs = {
        ClipConfig(**{**rule.data(), "threshold": value}).dumps("json")
        for reader in readers
        if reader.option == use.option and re.search(rf"(?<![\w.]){re.escape(reader.path.name)}(?!\w)", text)
        if (rule := reader.config or reader.rule) is not None and value > 0
    }
    return replace(use, config=ClipConfig.loads(configs.pop(), "json"), why_unknown="") if len(configs) == 1 else use


def _is_set(source: Source, name: str) -> bool:
    """Return whether code may set the option, other than by the command line and by the option's own default."""
    for node in source.nodes:
        match node:
            case ast.Attribute(attr=attribute, ctx=ast.Store()) if attribute == name:
                return True
            case ast.Call(func=function, keywords=keywords) if name in [each.arg for each in keywords]:
                classes = [each for each in source.nodes if isinstance(each, ast.ClassDef)]
                if last_name(function) in ("set_defaults", "replace", *(each.name for each in classes)):
                    return True
            case ast.Call(func=ast.Name(id="setattr")):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr="update")) if DICT.search(ast.unparse(owner)):
                return True
    return False


def _defaults(source: Source, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield (option, expression) for each default that the source gives to an option."""
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=names, keywords=keywords):
                given = {each.arg: each.value for each in keywords}
                texts = [each.value for each in names if isinstance(each, ast.Constant) and isinstance(each.value, str)]
                option = next((text for text in texts if text.startswith("--")), "")
                destination = given.get("dest", ast.Constant(option.lstrip("-").replace("-", "_")))
                if isinstance(destination, ast.Constant) and destination.value == name:
                    yield option, given.get("default", ast.Constant(None))
            case ast.Call(func=function, args=[ast.Constant(value=option), default, *_]) if option == name:
                if last_name(function) in DEFINITIONS:
                    yield f"--{name}", default
            case ast.ClassDef(name=owner, body=body):
                for line in body:
                    if isinstance(line, ast.AnnAssign) and last_name(line.target) == name:
                        yield f"{owner}.{name}", _field_default(line.value)


def _field_default(value: ast.expr | None) -> ast.expr:
    if isinstance(value, ast.Call) and last_name(value.func) == "field":
        return next((each.value for each in value.keywords if each.arg == "default"), ast.Constant(None))
    return value or ast.Constant(None)


def _is_parsed(source: Source, owner: ast.expr) -> bool:
    """Return whether an expression, such as `args` or `self.args`, has the values of the command line for sure."""
    if source.dotted(owner) in FLAGS:
        return True
    name = last_name(owner)
    values = [*_assigned(source, name), *_passed(source, name)]
    return bool(values) and all(_parses(source, value) or _calls_parser(source, value) for value in values)


def _assigned(source: Source, name: str) -> list[ast.expr]:
    """Return the values of a name. That of the first target is the whole value, as in `args, rest = parse()`."""
    values = [value for value in source.bound.get(name, []) if value is not None]
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=[first, *_])], value=value) if last_name(first) == name:
                values.append(value)
    return values


def _passed(source: Source, name: str) -> list[ast.expr]:
    """Return the first arguments of calls of the source's functions whose first parameter has a name."""
    functions = {
        node.name
        for node in source.nodes
        if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[0].arg == name
    }
    passed = [call.args[0] for call in source.calls if last_name(call.func) in functions and call.args]
    return [each for each in passed if last_name(each) != name]


def _parses(source: Source, value: ast.expr) -> bool:
    """Return whether an expression reads the command line, or makes an object of a class with its defaults."""
    value = value.value if isinstance(value, ast.Subscript) else value
    if not isinstance(value, ast.Call):
        return False
    if source.dotted(value.func) in PARSE_FUNCTIONS:
        return True
    classes = [node.name for node in source.nodes if isinstance(node, ast.ClassDef)]
    return last_name(value.func) in (*PARSES, *classes) and not value.args and not value.keywords


def _calls_parser(source: Source, value: ast.expr) -> bool:
    """Return whether an expression calls a function of the source that returns what it reads from the command line."""
    if not isinstance(value, ast.Call):
        return False
    name = last_name(value.func)
    functions = [node for node in source.nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    values: list[ast.expr | None] = []
    for node in itertools.chain.from_iterable(map(ast.walk, functions)):
        if isinstance(node, ast.Return):
            values += _assigned(source, node.value.id) if isinstance(node.value, ast.Name) else [node.value]
    # The variable outside of the function often has the same name, as in `args = get_args()`.
    values = [each for each in values if not (isinstance(each, ast.Call) and last_name(each.func) == name)]
    return bool(values) and all(inner is not None and _parses(source, inner) for inner in values)
