"""Find the settings that hold the threshold of a clip: keys that `check.key` declares, names that a clip reads, and
names such as `grad_clip`, whose reader is unknown."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._kit.static_values import is_number
from ...config.check_rules import DeclaredKey
from ...config.clip_config import ClipConfig
from ...config.documents import Document, format_value
from ...config.formats import placement
from ...errors import ConfigError
from ...source.constants import followed
from ...source.module import Module
from ...source.project import Project
from ...source.tree import last_name
from .. import settings
from ..clip_use import ClipUse, FoundClips, NamedValue, inner_values
from ..command_lines import MAX_NORM, MAY_BE_CLIP
from ..settings import COMMENT, WORDS, Setting
from ..trainer_files import GLOB, SOURCES, has_number
from . import patterns

ANY = "*"
"""In a declared key, this part matches any part."""

NO_NUMBER = (
    "The value of this key is {value}, which is no number, and the entry {index} of check.key does not list it in off."
)
AT_RUN_TIME = "The value of this key, {code}, is only known at run time. Write a number."
PLAIN_BASES = ("ABC", "BaseModel", "Enum", "Generic", "NamedTuple", "Protocol", "TypedDict", "object")
"""Base classes that read no setting."""

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
SCRIPT = re.compile(r"(?<![\w.-])[\w-][\w.-]*\.py(?!\w|\.\w)")

ARGUMENT = re.compile(
    r"(?<=\.py)(?:\s+[^\s;&|-][^\s;&|]*\.py)+(?!\w)|--?[\w.-]*(?:config|cfg)[\w-]*[\s=]+\S+\.py(?!\w)"
)
"""Matches files that a command passes to its script, as in `train.py config.py`."""

OF_A_SCRIPT = (
    "A clip reads an option of this name, but no clip of this command's script gives the value a rule. Also check the "
    "script, or add the line to check.ignore with a reason."
)
UNREAD = (
    "This setting is named like a clip setting, but no clip reads the setting. The name of the setting "
    "occurs nowhere else in the checked code."
)


# -- settings that a clip reads, or that are named like a clip


def named(
    project: Project, path: Path, sources: Sequence[Path], clips: Sequence[ClipUse], root: Path, *, is_known: bool
) -> Iterator[ClipUse]:
    """Yield the settings of a file that a clip reads, such as grad_clip = 1.0, with the rule of this clip.

    One `ClipUse` contains the values of all other settings that are named like a clip setting.

    sources: The files with code. Code near a setting is its reader. Other code is its reader only if no code near the
    setting reads this name, and if the name of the setting is the name of a clip setting.
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
        is_option = setting.is_option
        is_code = setting.node is not None and not setting.is_assigned
        is_like_clip = _is_like_clip(setting)
        may_be_clip = is_option or (not is_code and MAY_BE_CLIP.search(setting.name)) or setting.command or is_like_clip
        replaces = any(_reads(use, path, setting) for use in clips if use.path in near)
        may_be_clip = may_be_clip or replaces
        readers = _readers(project, setting, clips, near, sources) if may_be_clip else []
        rule = _rule_of(readers if is_like_clip else [each for each in readers if each.path in near])
        if rule is not None and is_number(setting.value) and 0 < setting.value <= sys.float_info.max:
            config = ClipConfig(**{**rule.data(), "threshold": float(setting.value)})
            option = setting.name if setting.command or replaces else ""  # another value can be the one that counts
            yield _named(path, setting, config=config, is_setting=True, option=option)
        elif rule is not None and setting.changes:
            why = AT_RUN_TIME.format(code=setting.code)
            yield _named(path, setting, why_unknown=why, values=(NamedValue(setting.name, None),))
        elif setting.command and is_number(setting.value) and "_".join(setting.path).replace("-", "_") in options:
            yield _named(path, setting, why_unknown=OF_A_SCRIPT, is_setting=True, option=setting.name)
        elif (
            has_number(setting.value)
            and not (is_option or setting.command)
            and (rule or (not is_known and is_like_clip))
        ):
            others.append(setting)
            of_clips += [setting] if rule else []
    values = tuple(leaf for each in others for leaf in inner_values(each.value, each.name))
    module = project.readable(path) if path.suffix.lower() in SOURCES else None
    are_read = [module is None or _is_read(project, module, each, near) for each in others]
    if others and not any(are_read):
        yield _named(path, others[0], why_unknown=UNREAD, values=values, unused=others[0].name)
    elif others:
        first = others[are_read.index(True)]
        why = WHY if module is not None else NO_FORMAT.replace(GLOB, GLOB.format(file=path.name))
        yield _named(path, first, why_unknown=MAY_BE_OFF if first in of_clips else why, values=values)


def _named(path: Path, setting: Setting, **fields: Any) -> ClipUse:
    name = setting.name if path.suffix.lower() in SOURCES else ".".join(setting.path)
    return ClipUse(path, setting.line, setting.column, f"{name} = {format_value(setting.value)}", **fields)


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


def _rule_of(readers: Sequence[ClipUse]) -> ClipConfig | None:
    """Return the rule of clips, or None if their rules differ."""
    found = [use.rule or use.config for use in readers]
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


# -- declared keys


def add_declared(found: FoundClips, project: Project, files: Sequence[Path], config: ClipConfig, root: Path) -> None:
    """Add the declared keys of all files, and leave out what was unknown without them.

    If a clip reads its threshold from a declared key, or from another setting that was found, the check compares the
    threshold where it is set. Here it only compares the rule.
    """
    keys = config.check.key if config.check else []
    uses = [use for path in files for use in read(project, path, config, root)] if keys else []
    declared = {_place(use) for use in uses}
    compared = [*uses, *(use for use in found.uses if use.is_setting and not use.option)]
    kept = []
    for use in found.uses:
        names = [each.name.rpartition(".")[2].replace("-", "_") for each in use.values if is_number(each.value)]
        in_file = {_last(each) for each in uses if each.path == use.path}
        is_listed = bool(names) and in_file.issuperset(names)
        is_listed |= use.clip == "file" and bool(in_file)
        is_listed |= not names and _place(use) in declared
        if use.is_setting or use.config is not None:
            is_listed = use.is_setting and _place(use) in declared
        if not is_listed:
            kept.append(use)
    unknown = [use for use in kept if use.values and not use.package and use.config is None]
    found.uses = [_by_its_rule(use, compared, unknown, config, root) for use in kept] + uses


def _by_its_rule(
    use: ClipUse, compared: Sequence[ClipUse], unknown: Sequence[ClipUse], config: ClipConfig, root: Path
) -> ClipUse:
    """If the check compares all settings that a clip reads, take their threshold for right in the clip itself."""
    rule, names = use.rule_of_any_threshold, {use.attribute, use.option}
    if rule is None or any(
        each.name in names and patterns.is_near(of.path, use.path, root) for of in unknown for each in of.values
    ):
        return use
    if not any(_last(each) in names and patterns.is_near(each.path, use.path, root) for each in compared):
        return use
    return replace(use, config=ClipConfig(**{**rule.data(), "threshold": config.threshold}), why_unknown="")


def without_repeats(uses: Sequence[ClipUse]) -> Iterator[ClipUse]:
    """Yield each setting once: with the rule of its trainer, or of the clip that reads the setting."""
    by_trainer = {_place(use) for use in uses if use.config is not None and not use.is_setting}
    by_reader = {_place(use) for use in uses if use.is_setting}
    for use in uses:
        is_repeated = use.config is None and not (use.package or use.is_setting) and _place(use) in by_reader
        if not (is_repeated or (use.is_setting and _place(use) in by_trainer)):
            yield use


def _place(use: ClipUse) -> tuple[Path, int, str]:
    return use.path, use.line, _last(use)


def _last(use: ClipUse) -> str:
    """Return the last name of a setting, such as "grad_clip" for "optim.grad-clip = 1.0"."""
    return re.split(r"[.:\s\[\]'\"]+", use.clip.partition(" = ")[0].rstrip("]'\""))[-1].replace("-", "_")


def read(project: Project, path: Path, config: ClipConfig, root: Path) -> list[ClipUse]:
    """Return a clip for each declared key in a file. A key matches the last names of a setting."""
    keys = config.check.key if config.check else []
    declared = [(index, key) for index, key in enumerate(keys) if patterns.matches(key.path, path, root)]
    if not declared:
        return []
    try:
        wanted = settings.of_file(project, path, lambda names: any(matches(key, names) for _, key in declared))
        found = [each for each in wanted if not isinstance(each.value, dict)]
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
