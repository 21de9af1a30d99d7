"""Find the settings that hold the threshold of a clip: keys that `check.key` declares, names that a clip reads, and
names such as `grad_clip`, whose reader is unknown."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit import atomic_files
from ..._kit.parse import parse_expression
from ..._kit.static_values import is_number
from ...config import documents
from ...config.check_rules import DeclaredKey
from ...config.clip_config import ClipConfig
from ...config.documents import DOCUMENT_KINDS, Document, Key, format_value
from ...config.formats import placement
from ...errors import ConfigError
from ...source.constants import constant
from ...source.module import Module
from ...source.project import Project
from ...source.tree import last_name, shortened
from .. import command_lines
from ..clip_use import ClipUse, FoundClips, inner_values
from ..command_lines import MAX_NORM, MAY_BE_CLIP
from ..trainer_files import SOURCES, has_number
from . import patterns

ANY = "*"
"""In a declared key, this part matches any part."""

LINE = re.compile(
    r"""(?:^[ \t]*(?:export[ \t]+)?|[{,][ \t]*)["']?([\w.-]+)["']?[ \t]*[:=][ \t]*([^,;{}\n]+)""", re.MULTILINE
)
"""Matches a setting in a file of another kind, such as `gradient_clipping_by_norm: 10.0` or `train.grad_clip = 1.0`."""

COMMENT = re.compile(r"(^|\s)(#|;|//).*$", re.MULTILINE)

WORDS = {"null": None, "none": None, "~": None, "false": False, "true": True}

NO_NUMBER = (
    "The value of this key is {value}, which is no number, and the entry {index} of check.key does not list it in off."
)
AT_RUN_TIME = "The value of this key, {code}, is only known at run time. Write a number."
FLAGS = ("DEFINE_float", "DEFINE_integer")
OPTIONS = ("add_argument", "add_option", "option", *FLAGS)

PLAIN_BASES = ("ABC", "BaseModel", "Enum", "Generic", "NamedTuple", "Protocol", "TypedDict", "object")
"""Base classes that read no setting."""

WHY = (
    "This setting is named like a clip setting, but the code that reads the setting is unknown. Compare its value with "
    "the clip configuration by hand, and add the setting to check.ignore with a reason."
)
UNREAD = (
    "This setting is named like a clip setting, but no clip reads the setting. The name of the setting "
    "occurs nowhere else in the checked code."
)


class Setting(NamedTuple):
    path: tuple[str, ...]
    """The names from the outermost table to the key, such as ("train", "clip_grad", "max_norm")."""

    line: int
    column: int
    value: Any
    code: str = ""
    """The code of a value that is only known at run time. Otherwise ''."""

    node: ast.expr | None = None

    @property
    def name(self) -> str:
        return self.path[-1]


# -- settings in Python that a clip reads, or that are named like a clip


def of_python(
    project: Project, path: Path, near: Sequence[Path], clips: Sequence[ClipUse], *, is_known: bool
) -> Iterator[ClipUse]:
    """Yield the settings that are named like a clip setting, such as grad_clip = 1.0.

    If a clip reads a setting, the `ClipUse` of the setting has the rule of this clip. One `ClipUse` contains
    the values of all other settings.

    near: The files whose code might read the settings.
    is_known: Whether `clips` contains a clip in the file `path`. If so, leave out the settings that no clip reads.
    """
    if (module := project.readable(path)) is None:
        return  # `source_files` reports files that name a clip and are not Python
    others: list[Setting] = []
    for setting in sorted(_in_python(module), key=lambda each: (each.line, each.column)):
        is_option = isinstance(setting.node, ast.Call)
        is_assigned = isinstance(getattr(setting.node, "ctx", None), ast.Store) and MAY_BE_CLIP.search(setting.name)
        may_be_clip = is_assigned or is_option or _is_like_clip(setting._replace(value=1.0))
        rule = _rule_of_readers(setting.name, clips, near) if may_be_clip else None
        if rule is not None and is_number(setting.value) and 0 < setting.value <= sys.float_info.max:
            config = ClipConfig(**{**rule.data(), "threshold": float(setting.value)})
            yield _named(path, setting, config=config, is_setting=True)
        elif has_number(setting.value) and not is_option and (rule or (not is_known and _is_like_clip(setting))):
            others.append(setting)
    values = tuple(leaf for each in others for leaf in inner_values(each.value, each.name))
    are_read = [_is_read(project, module, each, near) for each in others]
    if others and not any(are_read):
        yield _named(path, others[0], why_unknown=UNREAD, values=values, unused=others[0].name)
    elif others:
        yield _named(path, others[are_read.index(True)], why_unknown=WHY, values=values)


def _named(path: Path, setting: Setting, **fields: Any) -> ClipUse:
    title = f"{setting.name} = {format_value(setting.value)}"
    return ClipUse(path, setting.line, setting.column, title, **fields)


def _is_like_clip(setting: Setting) -> bool:
    name, value = setting.name, setting.value
    if len(setting.path) < 2 and MAX_NORM.fullmatch(name) and value != 0:  # a search for the largest norm begins at 0
        return True
    tables: list[dict[str, Any]] = [{table: {name: value}} for table in setting.path[:-1]] or [{name: value}]
    keys = (keys for data in tables for keys, _ in placement.clip_keys(Document("", "", "python", data)))
    return any(each[-1] == name or MAX_NORM.fullmatch(name) for each in keys)


def _rule_of_readers(name: str, clips: Sequence[ClipUse], near: Sequence[Path]) -> ClipConfig | None:
    """Return the rule of the clips that read `name` in the files `near`, or None if their rules differ."""
    found = [use.rule or use.config for use in clips if use.attribute == name and use.path in near]
    placeholders = (ClipConfig(**{**rule.data(), "threshold": 1.0}) for rule in found if rule is not None)
    rules = {rule.dumps("json"): rule for rule in placeholders}
    return next(iter(rules.values())) if len(rules) == 1 else None


def _is_read(project: Project, module: Module, setting: Setting, near: Sequence[Path]) -> bool:
    """Return whether code might read a setting: code in the files `near`, or a library that gets the setting."""
    assert setting.node is not None
    readers: list[str] = []
    for node in module.ancestors(setting.node):
        if isinstance(node, ast.Call) and last_name(node.func) not in ("dict", "field"):
            readers = [last_name(node.func)]
            break
        if isinstance(node, ast.ClassDef):
            readers = [last_name(base) for base in node.bases if last_name(base) not in PLAIN_BASES]
            break
    if not all(_occurs(project, name, rf"^[ \t]*(class|def)\s+{re.escape(name)}\b", near) for name in readers):
        return True
    other = rf"(?<!\w){re.escape(setting.name)}(?!\w)(?![\"']?\s*(:[^=\n]*)?(=[^=]|:))"
    return _occurs(project, setting.name, other, near)


def _occurs(project: Project, word: str, pattern: str, near: Sequence[Path]) -> bool:
    texts = (text for path in near if word.encode() in (text := project.read(path)))
    code = (COMMENT.sub("", text.decode("utf-8", "replace")) for text in texts)
    return any(re.search(pattern, each, re.MULTILINE) for each in code)


def passed(module: Module | None) -> str:
    """Return the first argument that is named like a clip and is only known at run time, as code, or ''."""
    for call in module.calls if module is not None else ():
        for each in call.keywords:
            setting = Setting((last_name(call.func), str(each.arg)), 0, 0, 1.0)
            if each.arg is not None and not isinstance(each.value, ast.Constant) and _is_like_clip(setting):
                return shortened(each)
    return ""


def name_of(code: str) -> str:
    """Return the variable, attribute or key that an expression reads. For other code, return ''.

    For `config.grad_clip` and `config["grad_clip"]`, return "grad_clip".
    """
    match parse_expression(code):
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


# -- declared keys


def add_declared(found: FoundClips, project: Project, files: Sequence[Path], config: ClipConfig, root: Path) -> None:
    """Add the declared keys of all files, and leave out what was unknown without them.

    If a clip reads its threshold from a declared key, or from another setting that was found, the check compares the
    threshold where it is set. Here it only compares the rule.
    """
    keys = config.check.key if config.check else []
    uses = [use for path in files for use in read(project, path, config, root)] if keys else []
    declared = {(use.path, use.line, _last(use)) for use in uses}
    settings = [*uses, *(use for use in found.uses if use.is_setting)]
    kept = []
    for use in found.uses:
        in_file = {_last(each) for each in uses if each.path == use.path}
        numbers = [each.name.rpartition(".")[2].replace("-", "_") for each in use.values if is_number(each.value)]
        is_listed = bool(numbers) and in_file.issuperset(numbers)
        is_listed |= use.clip == "file" and bool(in_file)
        is_listed |= not numbers and (use.path, use.line, _last(use)) in declared
        read_names = {use.attribute, use.option}
        rule = use.rule_of_any_threshold
        places = (each.path for each in settings if rule is not None and _last(each) in read_names)
        if rule is not None and any(patterns.is_near(place, use.path, root) for place in places):
            use = replace(use, config=ClipConfig(**{**rule.data(), "threshold": config.threshold}), why_unknown="")
        is_elsewhere = use.config is not None and not use.is_setting
        is_double = use.is_setting and (use.path, use.line, _last(use)) in declared
        if is_elsewhere or not (is_listed or is_double):
            kept.append(use)
    found.uses = kept + uses


def _last(use: ClipUse) -> str:
    """Return the last name of a setting, such as "grad_clip" for "optim.grad-clip = 1.0"."""
    return re.split(r"[.\[\]'\"]+", use.clip.partition(" = ")[0].rstrip("]'\""))[-1].replace("-", "_")


def read(project: Project, path: Path, config: ClipConfig, root: Path) -> list[ClipUse]:
    """Return a clip for each declared key in a file. A key matches the last names of a setting."""
    keys = config.check.key if config.check else []
    declared = [(index, key) for index, key in enumerate(keys) if patterns.matches(key.path, path, root)]
    if not declared:
        return []
    try:
        found = list(_settings(project, path))
    except ConfigError as error:
        return [ClipUse(path, 1, 1, "file with a declared key", why_unknown=str(error), is_declared=True)]
    named = [(index, key, setting) for index, key in declared for setting in found if matches(key, setting.path)]
    return [_use(path, setting, key, index, config) for index, key, setting in named]


def matches(key: DeclaredKey, path: Sequence[str]) -> bool:
    parts = key.key.replace("-", "_").split(".")
    names = [name.replace("-", "_") for name in path[-len(parts) :]]
    return len(names) == len(parts) and all(part in (ANY, name) for part, name in zip(parts, names, strict=True))


def _use(path: Path, setting: Setting, key: DeclaredKey, index: int, config: ClipConfig) -> ClipUse:
    name = ".".join(setting.path)
    place = (path, setting.line, setting.column)
    if setting.code:
        why = AT_RUN_TIME.format(code=setting.code)
        return ClipUse(*place, name, why_unknown=why, is_declared=True)
    clip = f"{name} = {format_value(setting.value)}"
    if setting.value is None or any(_equal(setting.value, each) for each in key.off):
        return ClipUse(*place, clip, ClipConfig(rule="none"), is_declared=True)
    if not is_number(setting.value):
        why = NO_NUMBER.format(value=format_value(setting.value), index=index + 1)
        return ClipUse(*place, clip, why_unknown=why, is_declared=True)
    family = key.family or config.family
    settings: dict[str, Any] = {"family": family} if family and key.rule != "value" else {}
    try:
        own = ClipConfig(rule=key.rule, threshold=float(setting.value), **settings)
        return ClipUse(*place, clip, own, is_declared=True)
    except (ConfigError, OverflowError) as error:
        return ClipUse(*place, clip, why_unknown=str(error), is_declared=True)


def _equal(value: Any, off: Any) -> bool:
    value, off = (WORDS.get(each.lower(), each) if isinstance(each, str) else each for each in (value, off))
    return bool(value == off) and isinstance(value, bool) == isinstance(off, bool)


# -- settings of all kinds of files


def _in_python(module: Module) -> Iterator[Setting]:
    for node, path, code in [*_named_values(module.tree), *_options(module)]:
        value = _value(module, code)
        unknown = "" if value is not _UNKNOWN else ast.unparse(code)
        yield Setting(path, *module.position(node), None if unknown else value, unknown, node)


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


def _settings(project: Project, path: Path) -> Iterator[Setting]:
    suffix = path.suffix.lower()
    if suffix in SOURCES:
        module = project.readable(path)
        settings = _in_python(module) if module is not None else ()
        yield from (each for each in settings if not isinstance(each.value, dict))
    elif kind := DOCUMENT_KINDS.get(suffix):
        document = documents.parse(documents.read_text(path), kind, path.name)
        yield from _in_document(document, document.data)
        for keys, text in command_lines.texts(document.data):
            yield from _in_commands(text, document.line(keys) or 1)
    elif command_lines.is_shell(path):
        yield from _in_commands(atomic_files.read_text(path, errors="replace"))
    else:
        text = COMMENT.sub("", atomic_files.read_text(path, errors="replace"))
        for match in LINE.finditer(text):
            value = _of_text(match[2].strip().strip("\"'"))
            yield Setting(tuple(match[1].split(".")), text.count("\n", 0, match.start(1)) + 1, 1, value)


def _in_commands(text: str, line: int | None = None) -> Iterator[Setting]:
    for each in command_lines.settings(text):
        is_known = not (isinstance(each.value, str) and each.value.startswith(command_lines.RUN_TIME))
        place = each.line if line is None else line
        yield Setting(tuple(each.name.split(".")), place, 1, each.value, "" if is_known else str(each.value))


def _of_text(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return float(text)
    return WORDS.get(text.lower(), text)


def _in_document(document: Document, data: Any, keys: tuple[Key, ...] = ()) -> Iterator[Setting]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        inner = (*keys, key)
        is_list_of_values = isinstance(value, list) and not any(isinstance(each, dict | list) for each in value)
        if isinstance(value, dict) or (isinstance(value, list) and not is_list_of_values):
            yield from _in_document(document, value, inner)
        elif isinstance(key, str):
            names = tuple(name for each in inner for name in str(each).split("."))
            yield Setting(names, document.line(inner) or 1, 1, value)


def _options(module: Module) -> Iterator[tuple[ast.expr, tuple[str, ...], ast.expr]]:
    """Yield the defaults of command line options, such as `add_argument("--clip", default=0.25)`."""
    for call in module.calls:
        names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        passed = {each.arg: each.value for each in call.keywords}
        second = call.args[1] if last_name(call.func) in FLAGS and len(call.args) > 1 else None
        default = passed.get("default", second)
        if last_name(call.func) in OPTIONS and default is not None:
            for name in names:
                yield call, (name.lstrip("-").replace("-", "_"),), default


def _named_values(tree: ast.AST) -> Iterator[tuple[ast.expr, tuple[str, ...], ast.expr]]:
    """Yield (node, path, value) for each assignment, keyword argument or entry of a dict.

    The path has the names of the objects, classes, functions and dicts around the value, and its own name. For
    `train = dict(clip=dict(max_norm=0.1))`, a path is ("train", "clip", "max_norm").
    """
    waiting: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while waiting:
        node, path = waiting.pop()
        match node:
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
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                path = ()
            case ast.Call(func=function) if not _is_dict(node):
                path = (last_name(function),)
        waiting += [(child, path) for child in ast.iter_child_nodes(node)]


def _is_dict(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("dict", "ConfigDict", "update")
