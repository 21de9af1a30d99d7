"""Find the settings that hold the threshold of a clip: names that a clip reads, options of trainers, and names such as
`grad_clip`, whose reader is unknown."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._kit.static_values import is_number
from ...config.clip_config import ClipConfig
from ...config.documents import Document, format_value
from ...config.formats import FORMATS, convert, placement
from ...errors import ConfigError
from ...source.constants import followed
from ...source.module import Module
from ...source.project import Project
from .. import settings
from ..clip_use import ClipUse, NamedValue, inner_values, with_threshold
from ..command_lines import MAX_NORM, MAY_BE_CLIP
from ..settings import REMOVED, Setting
from ..trainer_files import GLOB, SOURCES, has_number
from . import patterns

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


def named(
    project: Project,
    path: Path,
    sources: Sequence[Path],
    clips: Sequence[ClipUse],
    root: Path,
    of_trainer: Set[str],
    *,
    is_known: bool,
) -> Iterator[ClipUse]:
    """Yield the settings of a file that a clip reads, such as grad_clip = 1.0, with the rule of this clip.

    One `ClipUse` contains the values of all other settings that are named like a clip setting.

    sources: The files with code. Code near a setting is its reader. Other code is its reader only if no code near the
    setting reads this name, and if the name of the setting is the name of a clip setting.
    of_trainer: The options that the trainer of a script reads. The check compares them with its other options.
    is_known: Whether the clip of this file is known. If so, leave out the settings that no clip reads.
    """
    near = [other for other in sources if patterns.is_near(other, path, root)]
    others: list[Setting] = []
    of_clips: list[Setting] = []
    options = {use.option for use in clips if use.code}
    names = {name for use in clips for name in (use.attribute, use.option)}

    def may_set_clip(path: Sequence[str]) -> bool:
        return MAY_BE_CLIP.search(".".join(path)) is not None or path[-1].replace("-", "_") in names

    for setting in settings.of_file(project, path, may_set_clip):
        if setting.command and setting.value != REMOVED and _option(setting) in of_trainer:
            continue
        replaces = any(_reads(use, path, setting) for use in clips if use.path in near)
        rule = _rule(project, setting, clips, near, sources, replaces=replaces)
        use = _with_key_of_trainer(path, setting) or _with_rule(path, setting, rule, replaces=replaces)
        if use is None and setting.command:
            use = _of_command(path, setting, options)
        if use is not None:
            yield use
        elif has_number(setting.value) and not (setting.is_option or setting.command):
            others += [setting] if rule or (not is_known and _is_like_clip(setting)) else []
            of_clips += [setting] if rule else []
    for (line, column), text in settings.command_texts(project, path):
        for setting in settings.in_commands(text) if "--" in text or MAY_BE_CLIP.search(text) else ():
            if _is_like_clip(setting) or _option(setting) in options:
                yield _named(path, setting._replace(line=line, column=column), why_unknown=COMMAND_LINE)
    values = tuple(leaf for each in others for leaf in inner_values(each.value, each.name))
    if others:
        why = WHY if path.suffix.lower() in SOURCES else NO_FORMAT.replace(GLOB, GLOB.format(file=path.name))
        why = MAY_BE_OFF if others[0] in of_clips else why
        every = ", ".join(f"{each.name} = {format_value(each.value)}" for each in values)
        yield _named(path, others[0], why_unknown=why, values=values, code=every)


def _with_key_of_trainer(path: Path, setting: Setting) -> ClipUse | None:
    """Return the clip of a key that only one trainer has, such as `training.max_norm`, on a command line or in code."""
    keys = setting.path if setting.command else setting.path[-2:]
    is_long = len(keys) > 1 or setting.command != ""
    trainer = next((each for each in FORMATS.values() if is_long and keys in each.option_keys), None)
    if trainer is None or setting.value == REMOVED:
        return None
    use = ClipUse(path, setting.line, setting.column, f"{trainer.title}: {'.'.join(keys)}")
    data: Any = setting.value
    for key in reversed(keys):
        data = {key: data}
    try:
        if setting.code:
            raise ConfigError(AT_RUN_TIME.format(code=setting.code))
        return replace(use, config=ClipConfig(**convert.settings((trainer, Document("", "", "args", data)))))
    except ConfigError as error:
        return replace(use, why_unknown=str(error))


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


def _with_rule(path: Path, setting: Setting, rule: ClipConfig | None, *, replaces: bool) -> ClipUse | None:
    if rule is not None and is_number(setting.value) and 0 < setting.value <= sys.float_info.max:
        config = with_threshold(rule, float(setting.value))
        option = setting.name if setting.command or replaces else ""  # another value can be the one that counts
        return _named(path, setting, config=config, is_setting=True, option=option)
    if rule is not None and setting.changes:
        why = AT_RUN_TIME.format(code=setting.code)
        return _named(path, setting, why_unknown=why, values=(NamedValue(setting.name, None),))
    return None


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
    is_short = path.suffix.lower() in SOURCES and not setting.command
    name = setting.name if is_short else ".".join(setting.path)
    value = setting.value if isinstance(setting.value, str) else format_value(setting.value)
    clip = f"~{name}" if value == REMOVED else f"{name} = {value:.60}"
    return ClipUse(path, setting.line, setting.column, clip, **fields)


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
