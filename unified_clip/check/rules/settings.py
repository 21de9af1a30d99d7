"""Find the settings that hold the threshold of a clip: names that a clip reads, options of trainers, and names such as
`grad_clip`, whose reader is unknown."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from ..._kit import atomic_files
from ..._kit.static_values import is_number
from ...config.check_rules import CheckRules, DeclaredKey
from ...config.clip_config import ClipConfig
from ...config.documents import Document, format_value
from ...config.formats import FORMATS, convert, placement
from ...errors import ConfigError
from ...source.project import Project
from .. import settings
from ..clip_use import ClipUse, NamedValue, inner_values, listed, of_unread_file, with_threshold
from ..command_lines import MAX_NORM, MAY_BE_CLIP
from ..python import notebooks
from ..settings import NO_DEFAULT, REMOVED, WORDS, Setting
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


def named(readers: Readers, path: Path, of_trainer: Set[str], kind: Kind) -> Iterator[ClipUse]:
    """Yield the settings of a file that an entry of `check.key` declares, or that a clip reads.

    One `ClipUse` contains the values of all other settings that are named like a clip setting.

    of_trainer: The options that the trainer of a script reads. The check compares them with its other options.
    kind: "of clips" leaves out the settings that no clip reads. "declared" also leaves out those that a clip reads.
    """
    project, clips = readers.project, readers.clips
    near = [other for other in readers.sources if patterns.is_near(other, path, readers.entries.root)]
    others: list[Setting] = []
    of_clips: list[Setting] = []
    options = {plain(use.option) for use in clips if use.code}
    names = {plain(name) for use in clips for name in (use.attribute, use.option)}
    keys = readers.entries.of_file("key", path)

    def is_wanted(path: Sequence[str]) -> bool:
        if any(is_key(key, path) for _, key in keys):
            return True
        may_set_clip = MAY_BE_CLIP.search(".".join(path)) is not None or plain(path[-1]) in names
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
        replaces = any(_reads(use, path, setting) for use in clips if use.read_in in near)
        found_in = _clips_of(project, setting, clips, near, readers.sources, replaces=replaces)
        use, rule = None, found_in != []
        if reader := _trainer_reader(setting) or _rule_reader(setting, found_in):
            is_replaceable = setting.command or replaces or setting.is_parameter
            option = setting.name if is_replaceable else ""  # another value can be the one that counts
            is_part = setting.is_part_of_code
            use = _read(path, setting, reader, is_setting=True, option=option, is_part_of_code=is_part)
        elif setting.command:
            use = _of_command(path, setting, options)
        if use is not None:
            yield use
        elif has_number(setting.value) and not (setting.is_option or setting.is_parameter or setting.command):
            others += [setting] if rule or (kind == "all" and _is_like_clip(setting)) else []
            of_clips += [setting] if rule else []
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


def _rule_reader(setting: Setting, clips: Sequence[ClipUse]) -> Read | None:
    """Return the reader of a number, or of a list with the same number for several optimizers."""
    numbers = setting.value if isinstance(setting.value, list) and setting.value else [setting.value]
    number = numbers[0] if all(is_number(each) and each == numbers[0] for each in numbers) else None
    rule = next((rule for use in clips if (rule := use.rule or use.config) is not None), None)
    if rule is None:
        return None
    if number is not None and all(each.is_off_at(number) for each in clips):
        return lambda value: ClipConfig(rule="none")
    is_threshold = number is not None and 0 < number <= sys.float_info.max
    return (lambda value: with_threshold(rule, number)) if is_threshold or setting.changes else None


def _clips_of(
    project: Project,
    setting: Setting,
    clips: Sequence[ClipUse],
    near: Sequence[Path],
    sources: Sequence[Path],
    *,
    replaces: bool,
) -> Sequence[ClipUse]:
    """Return the clips that read a setting, or nothing if they are unknown or their rules differ.

    replaces: Whether code sets an attribute that a clip near it reads.
    """
    is_code = setting.node is not None and not setting.is_assigned
    is_named = not is_code and MAY_BE_CLIP.search(setting.name) is not None
    is_like_clip = _is_like_clip(setting)
    if not (is_like_clip or is_named or setting.is_option or replaces or setting.command):
        return []
    readers = _readers(project, setting, clips, near, sources)
    found = [use for use in readers if is_like_clip or use.read_in in near]
    rules = [use.rule or use.config for use in found]
    return found if len({with_threshold(rule, 1.0).dumps("json") for rule in rules if rule is not None}) == 1 else []


def _of_command(path: Path, setting: Setting, options: Set[str]) -> ClipUse | None:
    """Return a clip of unknown effect for an option that a clip of another script reads, or that is named like one."""
    name = ".".join(setting.path)
    if is_number(setting.value) and plain(name.replace(".", "_")) in options:
        return _named(path, setting, why_unknown=OF_A_SCRIPT, is_setting=True, option=setting.name)
    if MAY_BE_CLIP.search(name) and _is_like_clip(setting):
        numbers = (NamedValue(name, setting.value),) if is_number(setting.value) else ()
        return _named(path, setting, why_unknown=UNKNOWN_READER, values=numbers)
    return None


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
    name = plain(setting.name)
    readers = [use for use in clips if name in (plain(use.attribute), plain(use.option) if setting.command else "")]
    if "--deepspeed" in setting.command:  # the settings of DeepSpeed decide what a trainer does
        return []
    if setting.command and (script := _script_of(setting)):
        modules = [module for path in sources if path.name == script and (module := project.readable(path))]
        reached = {each.path for module in modules for each in (module, *project.reached_from(module))}
        return [use for use in readers if use.read_in in reached]
    return [use for use in readers if use.read_in in near] or readers


def _reads(use: ClipUse, path: Path, setting: Setting) -> bool:
    """Return whether the code of a clip has the attribute that an assignment in another line sets."""
    if not setting.is_assigned or len(setting.path) < 2 or (setting.path[0] == "self" and use.path != path):
        return False
    return re.search(rf"(?<![\w.]){re.escape('.'.join(setting.path))}(?!\w)", use.code) is not None


def plain(name: str) -> str:
    """Return a name as all its spellings, such as `CLIP_GRAD`, `clip-grad` and `_clip_grad`."""
    return name.replace("-", "_").strip("_").lower()


def _option(setting: Setting) -> str:
    return setting.name.replace("-", "_")


def _script_of(setting: Setting) -> str:
    """Return the name of the last script before an option of a command, or ''."""
    option = rf"(?<![\w./-])[+~-]*{re.escape('.'.join(setting.path))}(?![\w.-])"
    scripts = SCRIPT.findall(ARGUMENT.sub("", re.split(option, setting.command)[0]))
    return scripts[-1] if scripts else ""


def compared(uses: Sequence[ClipUse], config: ClipConfig, root: Path) -> list[ClipUse]:
    """Leave out what is unknown only without the declared keys, or an option without default that a declared key sets.
    Compare a clip by its rule if the check compares all settings that the clip reads."""
    known = [use for use in uses if use.is_declared and use.config is not None]
    uses = [use for use in uses if NO_DEFAULT not in use.why_unknown or not _read_by(use, known, root)]
    names: dict[Path, set[str]] = {}
    for use in uses:
        if use.is_declared:
            names.setdefault(use.path, set()).add(use.attribute)
    kept = [use for use in uses if use.is_declared or not _is_declared(use, names.get(use.path, set()))]
    settings = [use for use in kept if use.is_declared or (use.is_setting and not use.option)]
    unknown = [use for use in kept if use.values and not use.package and use.config is None]
    return [_by_its_rule(use, settings, unknown, config, root) for use in kept]


def _is_declared(use: ClipUse, names: Set[str]) -> bool:
    """Return whether a trainer's file, or a file of unknown kind, has no other clip keys than `names`."""
    own = {each.name.rpartition(".")[2].replace("-", "_") for each in use.values if is_number(each.value)}
    own = own or ({use.attribute} if use.attribute else set())
    is_of_trainer = use.format != "" and use.config is None and own != set() and own <= names
    return is_of_trainer or (use.clip == "file" and names != set())


def _by_its_rule(
    use: ClipUse, settings: Sequence[ClipUse], unknown: Sequence[ClipUse], config: ClipConfig, root: Path
) -> ClipUse:
    """If the check compares all settings that a clip reads, take their threshold for right in the clip itself."""
    rule, names = use.rule_of_any_threshold, {plain(name) for name in (use.attribute, use.option) if name}
    if rule is None or any(
        plain(each.name) in names and patterns.is_near(of.path, use.read_in, root)
        for of in unknown
        for each in of.values
    ):
        return use
    # what a call passes is read from an object that is unknown here
    read = [each for each in _read_by(use, settings, root) if not (use.reader and each.is_part_of_code)]
    if not read:
        return use
    places = tuple((each.path, each.line) for each in read)
    return replace(use, config=with_threshold(rule, config.threshold), why_unknown="", settings=places)


def _read_by(use: ClipUse, settings: Sequence[ClipUse], root: Path) -> list[ClipUse]:
    names = {plain(name) for name in (use.attribute, use.option) if name}
    return [
        each for each in settings if plain(each.attribute) in names and patterns.is_near(each.path, use.read_in, root)
    ]


# -- a key that a command declares


def imported(path: Path, key: str, rule: str, off: Sequence[str], family: str | None) -> ClipConfig:
    """Return the clip of a key in a file, for `config import --key`.

    Args:
        path: A file that an entry of `check.key` can name.
        key: The last names of the key, joined by dots.
        rule: The rule by which the user's code clips.
        off: The values with which the code does not clip.
        family: The family of the framework's function that the code calls.
    """
    declared = {"path": "**", "key": key, "rule": rule, "off": list(map(_number, off)), "family": family}
    config = ClipConfig(rule="none", check={"key": [declared]})
    atomic_files.read_bytes(path)  # raises if the file cannot be read
    entries = Entries(path, config.check or CheckRules())
    project = Project([path.resolve()], cache(notebooks.python_source))
    uses = list(named(Readers(project, config, entries, (), ()), path.resolve(), set(), "declared"))
    if not uses:
        raise ConfigError(f"{path}: no key ends with {key}. Correct --key. It has the last names of the key.")
    for use in uses:
        if use.config is None:
            raise ConfigError(f"{path}, line {use.line}, {use.clip}: {use.why_unknown}")
        if use.config.meaning != uses[0].config.meaning:  # type: ignore[union-attr]
            places = ", ".join(f"{each.clip} (line {each.line})" for each in uses)
            raise ConfigError(f"{path}: several keys end with {key}: {places}. Add the names of outer tables to --key.")
    notes = [f"Read from {uses[0].clip} (line {uses[0].line}), as --key declares."]
    own: dict[str, Any] = uses[0].config.data()  # type: ignore[union-attr]
    return ClipConfig(**own, provenance={"format": "key", "file": path.name, "notes": notes})


def _number(text: str) -> float | str:
    with contextlib.suppress(ValueError):
        return float(text)
    return text
