"""Find the settings that hold the threshold of a clip: names that a clip reads, options of trainers, and names such as
`grad_clip`, whose reader is unknown."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..._kit.static_values import is_number
from ...config.check_rules import DeclaredKey
from ...config.clip_config import ClipConfig
from ...config.documents import Document, format_value
from ...config.formats import FORMATS, convert, placement
from ...errors import ConfigError
from ...source.constants import followed
from ...source.module import Module
from ...source.project import Project
from .. import settings
from ..clip_use import ClipUse, NamedValue, inner_values, listed, of_unread_file, with_threshold
from ..command_lines import MAX_NORM, MAY_BE_CLIP
from ..settings import REMOVED, WORDS, Setting
from ..trainer_files import GLOB, SOURCES, has_number
from . import patterns
from .entries import Entries

ANY = "*"
"""In a declared key, this part matches any part."""

NO_NUMBER = (
    "The value of this key is {value}, which is no number, and the entry {index} of check.key does not list it in off."
)
AT_RUN_TIME = "The value of this key, {code}, is only known at run time. Write a number."
WHY = (
    "This setting is named like a clip setting, but the code that reads the setting is unknown. Compare its value with "
    "the clip configuration by hand, and add the setting to check.ignore with a reason."
)
NO_FORMAT = (
    "This key is named like a clip setting, but no clip in the checked code reads the key, and the file is not in the "
    f'format of a known trainer. If a known trainer reads this file, set "{GLOB}" in check.formats to the format of '
    "that trainer."
)
MAY_BE_OFF = (
    "A clip reads this setting, but whether the value switches the clip off is unknown. If it does, declare the key by "
    "an entry of check.key, with the value in off."
)
UNKNOWN_READER = (
    "A command line, a script or a variable sets this key, and the code that reads the key is unknown. Move the key to "
    "the trainer's configuration file, or add this file to check.ignore with a reason."
)
COMMAND_LINE = (
    "The command line sets a clip, and the check reads command lines only in shell scripts. Move the command into a "
    "script, or add the line to check.ignore with a reason."
)
MODE = re.compile(r"(?i)(grad(ient)?s?)?[-_]?clip(ping)?[-_]?(mode|type|method|algorithm|rule|by)")
MODES = ("norm", "global_norm", "value", "agc", "adaptive")
"""The values of an option such as --clip-mode, which sets the rule of a clip and not its threshold."""

SCRIPT = re.compile(r"(?<![\w.-])[\w-][\w.-]*\.py(?!\w|\.\w)")

ARGUMENT = re.compile(
    r"(?<=\.py)(?:\s+[^\s;&|-][^\s;&|]*\.py)+(?!\w)|--?[\w.-]*(?:config|cfg)[\w-]*[\s=]+\S+\.py(?!\w)"
)
"""Matches files that a command passes to its script, as in `train.py config.py`."""

OF_A_SCRIPT = (
    "A clip reads an option of this name, but no clip of this command's script gives the value a rule. Also check the "
    "script, or add the line to check.ignore with a reason."
)


Kind = Literal["all", "of clips", "declared"]


@dataclass(frozen=True)
class Readers:
    """What gives a setting its meaning: entries of `check.key`, trainers, and the clips that read the setting."""

    project: Project
    config: ClipConfig
    entries: Entries
    sources: Sequence[Path]
    """The files with code. Code near a setting is its reader. Other code is its reader only if no code near the
    setting reads this name, and if the name of the setting is the name of a clip setting."""

    clips: Sequence[ClipUse]

    @property
    def root(self) -> Path:
        return self.entries.root


def named(readers: Readers, path: Path, of_trainer: Set[str], kind: Kind) -> Iterator[ClipUse]:
    """Yield the settings of a file that an entry of `check.key` declares, or that a clip reads.

    One `ClipUse` contains the values of all other settings that are named like a clip setting.

    of_trainer: The options that the trainer of a script reads. The check compares them with its other options.
    kind: "of clips" leaves out the settings that no clip reads. "declared" also leaves out those that a clip reads.
    """
    project, clips = readers.project, readers.clips
    near = [other for other in readers.sources if patterns.is_near(other, path, readers.root)]
    others: list[Setting] = []
    of_clips: list[Setting] = []
    options = {use.option for use in clips if use.code}
    names = {name for use in clips for name in (use.attribute, use.option)}
    keys = readers.entries.of_file("key", path)

    def is_wanted(path: Sequence[str]) -> bool:
        if any(is_key(key, path) for _, key in keys):
            return True
        may_set_clip = MAY_BE_CLIP.search(".".join(path)) is not None or path[-1].replace("-", "_") in names
        return may_set_clip and kind != "declared"

    try:
        found = settings.of_file(project, path, is_wanted)
    except ConfigError as error:
        yield of_unread_file(path, "file with a declared key", str(error), is_declared=True)
        return
    for setting in found:
        declared = [(index, key) for index, key in keys if is_key(key, setting.path)]
        if declared and not isinstance(setting.value, dict):
            readers.entries.use("key", *(index for index, _ in declared))
            read = partial(_of_declared, *declared[0], readers.config)
            yield _read(path, setting, read, is_declared=True)
            continue
        is_of_trainer = setting.command and setting.value != REMOVED and _option(setting) in of_trainer
        if kind == "declared" or is_of_trainer:
            continue
        replaces = any(_reads(use, path, setting) for use in clips if use.path in near)
        rule = _rule(project, setting, clips, near, readers.sources, replaces=replaces)
        use = None
        if reader := _trainer_reader(setting) or _rule_reader(setting, rule):
            option = setting.name if setting.command or replaces else ""  # another value can be the one that counts
            use = _read(path, setting, reader, is_setting=True, option=option)
        elif setting.command:
            use = _of_command(path, setting, options)
        if use is not None:
            yield use
        elif has_number(setting.value) and not (setting.is_option or setting.command):
            others += [setting] if rule or (kind == "all" and _is_like_clip(setting)) else []
            of_clips += [setting] if rule else []
    for (line, column), text in settings.command_texts(project, path) if kind != "declared" else ():
        for setting in settings.in_commands(text) if "--" in text or MAY_BE_CLIP.search(text) else ():
            if _is_like_clip(setting) or _option(setting) in options:
                yield _named(path, setting._replace(line=line, column=column), why_unknown=COMMAND_LINE)
    values = tuple(leaf for each in others for leaf in inner_values(each.value, each.name))
    if others:
        why = WHY if path.suffix.lower() in SOURCES else NO_FORMAT.replace(GLOB, GLOB.format(file=path.name))
        why = MAY_BE_OFF if others[0] in of_clips else why
        yield _named(path, others[0], why_unknown=why, values=values, code=listed(values))


Read = Callable[[Any], ClipConfig]


def is_key(key: DeclaredKey, path: Sequence[str]) -> bool:
    parts = key.key.replace("-", "_").split(".")
    names = [name.replace("-", "_") for name in path[-len(parts) :]]
    return len(names) == len(parts) and all(part in (ANY, name) for part, name in zip(parts, names, strict=True))


def _of_declared(index: int, key: DeclaredKey, config: ClipConfig, value: Any) -> ClipConfig:
    """Return the clip of a value at a declared key. Raise ConfigError if the value is no number and not in `off`.

    index: The index of the entry in `check.key`.
    """
    if value is None or any(_equal(value, each) for each in key.off):
        return ClipConfig(rule="none")
    if not is_number(value):
        raise ConfigError(NO_NUMBER.format(value=format_value(value), index=index + 1))
    family = key.family or config.family
    settings: dict[str, Any] = {"family": family} if family and key.rule != "value" else {}
    return ClipConfig(rule=key.rule, threshold=float(value), **settings)


def _equal(value: Any, off: Any) -> bool:
    value, off = (WORDS.get(each.lower(), each) if isinstance(each, str) else each for each in (value, off))
    return bool(value == off) and isinstance(value, bool) == isinstance(off, bool)


def _read(path: Path, setting: Setting, read: Read, **fields: Any) -> ClipUse:
    """Return the clip of a setting, as `read` reads its value."""
    try:
        if setting.code:
            raise ConfigError(AT_RUN_TIME.format(code=setting.code))
        return _named(path, setting, config=read(setting.value), **fields)
    except (ConfigError, OverflowError) as error:
        unknown = (NamedValue(setting.name, None),)
        return _named(path, setting, why_unknown=str(error), values=unknown, **fields)


def _trainer_reader(setting: Setting) -> Read | None:
    """Return the reader of a key that only one trainer has, such as `training.max_norm`, in a command or in code."""
    keys = setting.path if setting.command else setting.path[-2:]
    is_long = len(keys) > 1 or setting.command != ""
    trainer = next((each for each in FORMATS.values() if is_long and keys in each.option_keys), None)
    if trainer is None or setting.value == REMOVED:
        return None

    def read(data: Any) -> ClipConfig:
        for key in reversed(keys):
            data = {key: data}
        return ClipConfig(**convert.settings((trainer, Document("", "", "args", data))))

    return read


def _rule_reader(setting: Setting, rule: ClipConfig | None) -> Read | None:
    is_threshold = is_number(setting.value) and 0 < setting.value <= sys.float_info.max
    return partial(with_threshold, rule) if rule is not None and (is_threshold or setting.changes) else None


def _rule(
    project: Project,
    setting: Setting,
    clips: Sequence[ClipUse],
    near: Sequence[Path],
    sources: Sequence[Path],
    *,
    replaces: bool,
) -> ClipConfig | None:
    """Return the rule of the clips that read a setting, or None if they are unknown or their rules differ.

    replaces: Whether code sets an attribute that a clip near it reads.
    """
    is_code = setting.node is not None and not setting.is_assigned
    is_named = not is_code and MAY_BE_CLIP.search(setting.name) is not None
    is_like_clip = _is_like_clip(setting)
    if not (is_like_clip or is_named or setting.is_option or replaces or setting.command):
        return None
    readers = _readers(project, setting, clips, near, sources)
    found = [use.rule or use.config for use in readers if is_like_clip or use.path in near]
    placeholders = (with_threshold(rule, 1.0) for rule in found if rule is not None)
    rules = {rule.dumps("json"): rule for rule in placeholders}
    return next(iter(rules.values())) if len(rules) == 1 else None


def _of_command(path: Path, setting: Setting, options: Set[str]) -> ClipUse | None:
    """Return a clip of unknown effect for an option that a clip of another script reads, or that is named like one."""
    name = ".".join(setting.path)
    if is_number(setting.value) and name.replace("-", "_").replace(".", "_") in options:
        return _named(path, setting, why_unknown=OF_A_SCRIPT, is_setting=True, option=setting.name)
    if MAY_BE_CLIP.search(name) and (_is_like_clip(setting) or _sets_rule(setting)):
        numbers = (NamedValue(name, setting.value),) if is_number(setting.value) else ()
        return _named(path, setting, why_unknown=UNKNOWN_READER, values=numbers)
    return None


def _sets_rule(setting: Setting) -> bool:
    """Return whether an option such as --clip-mode sets the rule of a clip, and not its threshold."""
    value = setting.value if isinstance(setting.value, str) else ""
    return MODE.fullmatch(setting.name) is not None and (value.lower() in MODES or bool(setting.code))


def _named(path: Path, setting: Setting, **fields: Any) -> ClipUse:
    is_short = path.suffix.lower() in SOURCES and not (setting.command or fields.get("is_declared"))
    name, value = setting.name if is_short else ".".join(setting.path), setting.code
    if not value:
        value = str(setting.value) if setting.command else format_value(setting.value)
    clip = f"~{name}" if setting.value == REMOVED else f"{name} = {value:.60}"
    return ClipUse(path, setting.line, setting.column, clip, attribute=_option(setting), **fields)


def _is_like_clip(setting: Setting) -> bool:
    name, value = setting.name, setting.value if has_number(setting.value) else 1.0
    if len(setting.path) < 2 and MAX_NORM.fullmatch(name) and value != 0:  # a search for the largest norm begins at 0
        return True
    tables: list[dict[str, Any]] = [{table: {name: value}} for table in setting.path[:-1]] or [{name: value}]
    keys = (keys for data in tables for keys, _ in placement.clip_keys(Document("", "", "python", data)))
    is_in_document = setting.node is None
    return any(each[-1] == name or MAX_NORM.fullmatch(name) or is_in_document for each in keys)


def _readers(
    project: Project, setting: Setting, clips: Sequence[ClipUse], near: Sequence[Path], sources: Sequence[Path]
) -> Sequence[ClipUse]:
    """Return the clips that read a setting: those of the script of its command, those near it, or else all."""
    name = _option(setting)
    readers = [use for use in clips if name in (use.attribute, use.option if setting.command else "")]
    if "--deepspeed" in setting.command:  # the settings of DeepSpeed decide what a trainer does
        return []
    if setting.command and (script := _script_of(setting)):
        modules = [module for path in sources if path.name == script and (module := project.readable(path))]
        reached = {each.path for module in modules for each in (module, *project.reached_from(module))}
        return [use for use in readers if use.path in reached]
    return [use for use in readers if use.path in near] or readers


def _reads(use: ClipUse, path: Path, setting: Setting) -> bool:
    """Return whether the code of a clip has the attribute that an assignment in another line sets."""
    if not setting.is_assigned or len(setting.path) < 2 or (setting.path[0] == "self" and use.path != path):
        return False
    return re.search(rf"(?<![\w.]){re.escape('.'.join(setting.path))}(?!\w)", use.code) is not None


def _option(setting: Setting) -> str:
    return setting.name.replace("-", "_")


def _script_of(setting: Setting) -> str:
    """Return the name of the last script before an option of a command, or ''."""
    option = rf"(?<![\w./-])[+~-]*{re.escape('.'.join(setting.path))}(?![\w.-])"
    scripts = SCRIPT.findall(ARGUMENT.sub("", re.split(option, setting.command)[0]))
    return scripts[-1] if scripts else ""


def name_of(module: Module, node: ast.expr) -> str:
    """Return the variable, attribute or key that an expression reads. For other code, return ''.

    For `config.grad_clip`, `config["grad_clip"]` and `config.get("grad_clip", 1.0)`, return "grad_clip".
    """
    for each in (followed(module, node), node):
        match each:
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
                return name
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                return name
    return ""
