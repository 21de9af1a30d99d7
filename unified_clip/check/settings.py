"""Read the settings of all kinds of files: Python, documents, command lines, and text such as `key = 1.0`."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._kit import atomic_files
from ..config.documents import DOCUMENT_KINDS, Document, Key, script_options
from ..errors import ConfigError
from ..source.constants import constant
from ..source.module import Module
from ..source.project import Project, parameters_of
from ..source.tree import last_name, text_of
from . import command_lines
from .command_lines import MAY_BE_CLIP
from .python import notebooks
from .python.notebooks import NOTEBOOK
from .trainer_files import SOURCES, parsed

NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
OVERRIDE = re.compile(rf"(?<![\w./$-])(?:[+~]*({NAME})=(?=\\?[\"']?([^\s;'\"\\)]*))|~({NAME})(?![\w.=/]))")
"""Matches an override in Hydra's syntax, such as trainer.max_grad_norm=1.0 or ~clip_grad_norm."""

YACS = re.compile(r"(?<!\S)((?:[A-Z][A-Z\d_]*\.)+[A-Z][A-Z\d_]*)\s+((?:[\d.]|\$[\w{])[^\s;'\"\\]*|True|False|None)")
"""Matches an override in the syntax of yacs, such as SOLVER.CLIP_GRADIENTS.CLIP_VALUE 1.0."""

RUN_TIME = ("$", "{", "%")

REMOVED = "removed"
"""The value of an override such as `~clip_grad_norm`, which removes a key."""

LINE = re.compile(
    r"""(?:^[ \t]*(?:export[ \t]+)?|[{,][ \t]*)["']?([\w.-]+)["']?[ \t]*[:=][ \t]*([^,;{}\n]+)""", re.MULTILINE
)
"""Matches a setting in a file of another kind, such as `gradient_clipping_by_norm: 10.0` or `train.grad_clip = 1.0`."""

COMMENT = re.compile(r"(^|\s)(#|;|//).*$", re.MULTILINE)

WORDS = {"null": None, "none": None, "~": None, "false": False, "true": True}

FLAGS = ("DEFINE_float", "DEFINE_integer")
OPTIONS = ("add_argument", "add_option", "option", "set_defaults", *FLAGS)
UPDATES = ("setattr", "update", "__setattr__")

NO_DEFAULT = "an option without default"
"""The code of an option that gets its value only from a command line."""


class Setting(NamedTuple):
    path: tuple[str, ...]
    """The names from the outermost table to the key, such as ("train", "clip_grad", "max_norm")."""

    line: int
    column: int
    value: Any
    code: str = ""
    """The code of a value that is only known at run time. Otherwise ''."""

    node: ast.expr | ast.arg | None = None
    """The code of a setting in Python."""

    changes: bool = False
    """Whether Python code computes the value from the one that the setting has, as in `cfg.clip /= 2`."""

    command: str = ""
    """The command line that sets an option or a variable. Otherwise ''."""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def is_option(self) -> bool:
        """Whether the value is the default of an option that Python code defines."""
        return isinstance(self.node, ast.Call) and last_name(self.node.func) in OPTIONS

    @property
    def is_parameter(self) -> bool:
        """Whether the value is the default of a parameter of a function."""
        return isinstance(self.node, ast.arg)

    @property
    def is_part_of_code(self) -> bool:
        """Whether the value is the default of a parameter or of a field of a class, or an argument of a call."""
        is_field = isinstance(self.node, ast.Name) and len(self.path) > 1
        is_argument = self.node is not None and not (
            self.is_assigned or self.is_option or text_of(self.node) is not None
        )
        return self.is_parameter or is_field or is_argument

    @property
    def is_assigned(self) -> bool:
        """Whether Python code sets this attribute or variable: `args.clip = 1.0` or `setattr(args, "clip", 1.0)`."""
        is_call = isinstance(self.node, ast.Call) and last_name(self.node.func) in UPDATES
        return is_call or isinstance(getattr(self.node, "ctx", None), ast.Store)


def of_file(project: Project, path: Path, is_wanted: Callable[[Sequence[str]], bool]) -> list[Setting]:
    """Return the settings of a file whose names are wanted, in the order of lines."""
    found = (each for each in _of_file(project, path, is_wanted) if is_wanted(each.path))
    return sorted(found, key=lambda each: (each.line, each.column))


def _of_file(project: Project, path: Path, is_wanted: Callable[[Sequence[str]], bool]) -> Iterator[Setting]:
    suffix = path.suffix.lower()
    if suffix in SOURCES:
        if (module := project.readable(path)) is None:
            return
        yield from _in_python(module)
        if suffix == NOTEBOOK:
            yield from in_commands(notebooks.commands(path))
    elif command_lines.is_shell(path):
        yield from in_commands(atomic_files.read_text(path, errors="replace"))
    elif suffix in DOCUMENT_KINDS:
        document = parsed(path)
        yield from _in_document(document, document.data, is_wanted)
    else:
        yield from _in_text(path)


def _in_text(path: Path) -> Iterator[Setting]:
    text = COMMENT.sub("", atomic_files.read_text(path, errors="replace"))
    for match in LINE.finditer(text):
        value = _of_text(match[2].strip().strip("\"'"))
        yield Setting(tuple(match[1].split(".")), text.count("\n", 0, match.start(1)) + 1, 1, value)


def _in_python(module: Module) -> Iterator[Setting]:
    for node, path, code in [*_named_values(module.tree), *_options(module), *_set_by_text(module)]:
        value = _value(module, code)
        unknown = "" if value is not _UNKNOWN else NO_DEFAULT if code is node else ast.unparse(code)
        changes = isinstance(code, ast.BinOp) and any(
            last_name(each) == path[-1] and ast.unparse(each) == ast.unparse(node) for each in ast.walk(code)
        )
        yield Setting(path, *module.position(node), None if unknown else value, unknown, node, changes)


_UNKNOWN = object()


def _value(module: Module, node: ast.expr) -> Any:
    """Return the value of code such as 1.0, `dict(name=1.0)` or `field(default=1.0)`, or _UNKNOWN."""
    match node:
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=[ast.keyword(value=value)]):
            return _value(module, value.body if isinstance(value, ast.Lambda) else value)
        case ast.Call(keywords=keywords) if _is_dict(node):
            entries = {keyword.arg or "**": _value(module, keyword.value) for keyword in keywords}
        case ast.Dict(keys=keys, values=values):
            named = zip(keys, values, strict=True)
            entries = {getattr(key, "value", "**"): _value(module, value) for key, value in named}
        case _:
            with contextlib.suppress(ConfigError):
                return constant(module, node)
            return _UNKNOWN
    return {key: None if value is _UNKNOWN else value for key, value in entries.items()}


def in_commands(text: str) -> Iterator[Setting]:
    """Yield each option and each override of command lines.

    If the text assigns only one number to NAME, replace `$NAME` by this number.
    """
    text = script_options.without_unused_arrays(text)
    numbers = script_options.assigned_numbers(text)
    found = [*script_options.script_options(text), *_overrides(text, numbers)]
    lines = [script_options.COMMENT.sub("", each) for each in text.splitlines()]
    for line, name, value in sorted(found, key=lambda each: each[0]):
        is_known = not (value == "" or (isinstance(value, str) and value.startswith(RUN_TIME)))
        command = _command(lines, line - 1)
        yield Setting(tuple(name.split(".")), line, 1, value, "" if is_known else value or name, command=command)


def _overrides(text: str, numbers: Mapping[str, str]) -> Iterator[tuple[int, str, Any]]:
    """Yield (line, name, value) for each setting that is not written as an option."""
    variables = {first or second for first, second in script_options.VARIABLE.findall(text)}
    variables |= {*re.findall(r"\$\{(\w+)", text)}
    for line, code in enumerate(text.splitlines(), 1):
        if not MAY_BE_CLIP.search(code):
            continue
        command = script_options.COMMENT.sub("", code)
        for match in OVERRIDE.finditer(command):
            is_null = match[2] in ("null", "None")
            value = REMOVED if match[3] else None if is_null else script_options.option_value(match[2], numbers)
            if match[1] not in variables:
                yield line, match[1] or match[3], value
        for match in YACS.finditer(command):
            yield line, match[1], script_options.option_value(match[2], numbers)


def _command(lines: Sequence[str], index: int) -> str:
    """Return the command of a line, which can have several lines."""
    first = last = index
    while first > 0 and lines[first - 1].endswith("\\"):
        first -= 1
    while last < len(lines) - 1 and lines[last].endswith("\\"):
        last += 1
    return "\n".join(line.removesuffix("\\") for line in lines[first : last + 1])


def _of_text(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return float(text)
    return WORDS.get(text.lower(), text)


def _in_document(
    document: Document, data: Any, is_wanted: Callable[[Sequence[str]], bool], keys: tuple[Key, ...] = ()
) -> Iterator[Setting]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        inner = (*keys, key)
        is_list_of_values = isinstance(value, list) and not any(isinstance(each, dict | list) for each in value)
        if isinstance(value, dict) or (isinstance(value, list) and not is_list_of_values):
            yield from _in_document(document, value, is_wanted, inner)
        elif isinstance(key, str):
            names = tuple(name for each in inner for name in str(each).split("."))
            if is_wanted(names):  # to find a line takes time
                with contextlib.suppress(ValueError):  # code can convert a text such as "5.0"
                    value = float(value) if isinstance(value, str) else value
                yield Setting(names, document.line(inner) or 1, 1, value)


def _options(module: Module) -> Iterator[tuple[ast.expr, tuple[str, ...], ast.expr]]:
    """Yield command line options with their defaults, such as `add_argument("--clip", default=0.25)`.

    An option without default has the call itself as its value.
    """
    for call in module.calls:
        function, passed = last_name(call.func), {each.arg: each.value for each in call.keywords if each.arg}
        if function == "set_defaults":
            yield from ((call, (name,), value) for name, value in passed.items())
        elif function in OPTIONS:
            arguments, default = call.args, passed.get("default", call)
            if function in FLAGS:
                arguments, default = call.args[:1], passed.get("default", call.args[1] if len(call.args) > 1 else call)
            for each in arguments:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield call, (each.value.lstrip("-").replace("-", "_"),), default


def _set_by_text(module: Module) -> Iterator[tuple[ast.expr, tuple[str, ...], ast.expr]]:
    """Yield settings such as `setattr(args, "clip", 1.0)` and `OmegaConf.update(cfg, key="a.clip", value=1.0)`."""
    for call in module.calls:
        passed = {each.arg: each.value for each in call.keywords}
        arguments = [*call.args, *(passed[name] for name in ("key", "value") if name in passed)]
        if last_name(call.func) in UPDATES and len(arguments) > 1:
            name, value = arguments[-2:]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                owner = re.findall(r"\w+", ast.unparse(call.args[0])) if call.args[:1] != [name] else []
                yield call, (*owner, *name.value.split(".")), value


def _named_values(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.arg, tuple[str, ...], ast.expr]]:
    """Yield (node, path, value) for each assignment, keyword argument, entry of a dict, or default of a parameter.

    The path has the names of the objects, classes, functions and dicts around the value, and its own name. For
    `train = dict(clip=dict(max_norm=0.1))`, a path is ("train", "clip", "max_norm").
    """
    waiting: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while waiting:
        node, path = waiting.pop()
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=left)], value=ast.Tuple(elts=right)) if len(left) == len(right):
                waiting += [(ast.Assign([target], value), path) for target, value in zip(left, right, strict=True)]
                continue
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                names = tuple(re.findall(r"\w+", ast.unparse(target)))
                path = names if len(names) > 1 else (*path, *names)
                yield target, path, value
            case ast.AugAssign(target=target, op=op, value=value):
                names = tuple(re.findall(r"\w+", ast.unparse(target)))
                yield target, names if len(names) > 1 else (*path, *names), ast.BinOp(target, op, value)
            case ast.keyword(arg=str(name), value=value):
                path = (*path, name)
                yield value, path, value
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    inner = (*path, *str(key.value).split(".")) if isinstance(key, ast.Constant) else path
                    if key is not None and inner != path:
                        yield key, inner, value
                    waiting.append((value, inner))
                continue
            case ast.ClassDef(name=name):
                path = (name,)
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
                _, defaults = parameters_of(node)
                for each in (*args.posonlyargs, *args.args, *args.kwonlyargs):
                    if each.arg in defaults:
                        yield each, (*(path[-1:] or (name,)), each.arg), defaults[each.arg]
                path = ()
            case ast.Call(func=function) if last_name(function) == "set_defaults":  # _options has its arguments
                continue
            case ast.Call(func=function) if not _is_dict(node):
                path = (last_name(function),)
        waiting += [(child, path) for child in ast.iter_child_nodes(node)]


def _is_dict(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("dict", "ConfigDict", "update")
