"""Find clip settings on command lines in shell scripts and in strings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .._kit import atomic_files
from ..config.clip_config import ClipConfig
from ..config.documents import Document, Key, format_value
from ..config.documents.script_options import (
    ASSIGNED,
    COMMENT,
    VARIABLE,
    assigned_numbers,
    option_value,
    script_options,
    without_unused_arrays,
)
from ..config.formats import FORMATS, Format, convert, placement
from ..errors import ConfigError
from .clip_use import ClipUse, NamedValue

SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".mk", "makefile")

SHEBANG = re.compile(rb"#!.*\b(ba|da|k|z)?sh\b")

NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
OVERRIDE = re.compile(rf"(?<![\w./$-])(?:[+~]*({NAME})=(?=\\?[\"']?([^\s;'\"\\)]*))|~({NAME})(?![\w.=/]))")
"""Matches an override in Hydra's syntax, such as trainer.max_grad_norm=1.0 or ~clip_grad_norm."""

YACS = re.compile(r"(?<!\S)((?:[A-Z][A-Z\d_]*\.)+[A-Z][A-Z\d_]*)\s+((?:[\d.]|\$[\w{])[^\s;'\"\\]*|True|False|None)")
"""Matches an override in the syntax of yacs, such as SOLVER.CLIP_GRADIENTS.CLIP_VALUE 1.0."""

WRITTEN = re.compile(
    rf"(?:^\s*(?:- )?|\b(?:echo|printf)\s+(?:-\w+\s+)?[\"']?|[{{,]\s*)"
    rf"(?:\\?[\"']({NAME})\\?[\"']\s*:\s*|({NAME}):\s+)"
    r"[\"']?((?:[\d.]|\$[\w{])[^\s,\"'}\\]*)"
)
"""Matches a key of YAML or JSON with a number or a variable, for example in a heredoc or after echo."""

MAY_BE_CLIP = re.compile(r"(?i)clip|grad|max[\W_]*norm")
"""Matches the name of every clip setting. Lines without a match are skipped to save time."""

CLIP_NAMES = [
    re.compile(pattern)  # single patterns with fixed case are ten times as fast as one large pattern
    for pattern in (
        rb"clip\w{0,12}(grad|norm)", rb"Clip\w{0,12}(Grad|Norm)", rb"CLIP\w{0,12}(GRAD|NORM)", rb"grad\w{0,20}[cC]lip",
        rb"GRAD\w{0,20}CLIP", rb"max[-_]?[gG]rad", rb"MAX_GRAD",
        rb"clip[-_]?(?:by[-_]?)?value[\"']?\s*[:=]",  # only as a key: tf.clip_by_value(image, 0, 1) clips no gradient
    )
]  # fmt: skip

MODE = re.compile(r"(?i)(grad(ient)?s?)?[-_]?clip(ping)?[-_]?(mode|type|method|algorithm|rule|by)")
MODES = ("norm", "global_norm", "value", "agc", "adaptive")
"""The values of an option such as --clip-mode, which sets the rule of a clip and not its threshold."""

MAX_NORM = re.compile(r"(?i)max_?norm")

OPTION = re.compile(r"--([\w-]+)")
REPEATED = re.compile(
    r"--([\w-]+)(?![\w-])(?=(?:(?!;|\|\s|&(?!\d)|\s#|\.py\b|(?<!\\)\n).){1,2000}?[\s\"']--\1(?![\w-]))", re.DOTALL
)
"""Matches an option that the same command repeats later. The command uses only the last value."""

RUN_TIME = ("$", "{")

REMOVED = "removed"
UNKNOWN_TRAINER = (
    "A command line or a script sets this key, and the trainer that reads the key is unknown. Move the key to the "
    "trainer's configuration file, or add the script to check.ignore with a reason."
)
IN_ENVIRONMENT = (
    "This variable is named like a clip setting, and the code that reads the variable is unknown. Move the value to "
    "the trainer's configuration file, or add this file to check.ignore with a reason."
)
AT_RUN_TIME = (
    "The value {value} is only known at run time. Write a number, or add the script to check.ignore with a reason."
)


class CommandLineSetting(NamedTuple):
    line: int
    name: str
    """A dotted key, or the name of an option without its leading "--"."""

    value: Any
    """The value: a float for a number, None for null or a missing value, and otherwise text."""

    is_override: bool
    is_variable: bool = False


def text_names_clip(text: bytes) -> bool:
    return any(pattern.search(text) for pattern in CLIP_NAMES)


def is_shell(path: Path) -> bool:
    return path.name.lower().endswith(SHELLS) or has_shebang(path)


def has_shebang(path: Path) -> bool:
    """Return whether a file without a suffix is a shell script, by its first line."""
    try:
        if path.suffix or not path.is_file():
            return False
        with atomic_files.reading(path) as file:
            return SHEBANG.match(file.readline(100)) is not None
    except OSError:
        return False


def clips(path: Path, text: str, read: Sequence[str] = ()) -> list[ClipUse]:
    """Return the clips that the command lines in `text` set.

    read: Options and overrides to skip.
    """
    if not MAY_BE_CLIP.search(text):
        return []
    own = [each for each in settings(without_unused_arrays(text)) if each.name not in read or each.value == REMOVED]
    own = [each for each in own if is_clip(each)]
    rules = tuple(NamedValue(each.name, each.value) for each in own if sets_rule(each))
    uses = [use(path, each) for each in own]
    return [replace(each, values=each.values + rules) if each.values else each for each in uses]


def in_strings(path: Path, document: Document) -> list[ClipUse]:
    return [
        replace(use, line=document.line(keys) or 1) for keys, text in texts(document.data) for use in clips(path, text)
    ]


def texts(data: Any, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield (path of keys, text) for each string, and for each list of strings, joined by spaces.

    A Kubernetes variable such as {name: A, value: "1"} becomes the text A=1.
    """
    if isinstance(data, list) and all(isinstance(each, str) for each in data):
        data = " ".join(data)
    if isinstance(data, str):
        yield path, data
    if isinstance(data, dict) and {type(data.get("name")), type(data.get("value"))} == {str}:
        yield path, f"{data['name']}={data['value']}"
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from texts(value, (*path, key))


def is_clip(setting: CommandLineSetting) -> bool:
    value = setting.value
    if not MAY_BE_CLIP.search(setting.name):
        return False
    if sets_rule(setting):
        return True
    if setting.is_override or (isinstance(value, str) and value.startswith(RUN_TIME)):
        value = value if isinstance(value, str) and not value.startswith(RUN_TIME) and value != REMOVED else 1.0
    return bool(placement.clip_keys(_document(setting, value)))


def sets_rule(setting: CommandLineSetting) -> bool:
    value = setting.value if isinstance(setting.value, str) else ""
    is_mode = value.lower() in MODES or value.startswith(RUN_TIME)
    return is_mode and MODE.fullmatch(setting.name.rpartition(".")[2]) is not None


def _document(setting: CommandLineSetting, value: Any) -> Document:
    data = value
    for key in reversed(setting.name.split(".")):
        data = {key: data}
    return Document(f"line {setting.line}", "", "args", data)


def settings(text: str) -> Iterator[CommandLineSetting]:
    """Yield each option and each override, in the order of lines.

    If the text assigns only one number to NAME, replace `$NAME` by this number.
    """
    variables = {first or second for first, second in VARIABLE.findall(text)}
    variables |= {*re.findall(r"\$\{(\w+)", text)}
    numbers = assigned_numbers(text)
    names = OPTION.findall(text)
    options = script_options(REPEATED.sub("--x", text) if len(set(names)) < len(names) else text)
    entries = [CommandLineSetting(line, name, value, False) for line, name, value in options]
    for line, code in enumerate(text.splitlines(), 1):
        if not MAY_BE_CLIP.search(code):
            continue
        assignment = ASSIGNED.match(code)
        for match in OVERRIDE.finditer(COMMENT.sub("", code)):
            if match[1] not in variables:
                is_null = match[2] in ("null", "None")
                value = REMOVED if match[3] else None if is_null else option_value(match[2], numbers)
                is_variable = assignment is not None and match[1] == assignment[1]
                entries.append(CommandLineSetting(line, match[1] or match[3], value, True, is_variable))
        for match in YACS.finditer(COMMENT.sub("", code)):
            entries.append(CommandLineSetting(line, match[1], option_value(match[2], numbers), True))
        for match in WRITTEN.finditer(code):
            entries.append(CommandLineSetting(line, match[1] or match[2], option_value(match[3], numbers), False))
    yield from sorted(entries, key=lambda each: each.line)


def use(path: Path, setting: CommandLineSetting) -> ClipUse:
    """Return a clip for a setting. The effect is unknown if no known trainer reads the setting."""
    line, name, value = setting.line, setting.name, setting.value
    keys = tuple(name.split("."))
    trainers = [each for each in FORMATS.values() if keys in each.option_keys]
    if trainers and isinstance(value, str) and (not value or value.startswith(RUN_TIME)):
        why = AT_RUN_TIME.format(value=value or name)
        return ClipUse(path, line, 1, f"{trainers[0].title}: {name}", why_unknown=why)
    if not trainers or value == REMOVED:
        shown = value if isinstance(value, str) else format_value(value)
        title = f"~{name}" if value == REMOVED else f"{name} = {shown:.60}"
        why = IN_ENVIRONMENT if setting.is_variable else UNKNOWN_TRAINER
        values = (NamedValue(name, value),) if isinstance(value, float) else ()
        option = name.replace("-", "_") if values and not setting.is_override else ""
        return ClipUse(path, line, 1, title, why_unknown=why, values=values, option=option)
    return _of_trainer(path, setting, trainers[0])


def _of_trainer(path: Path, setting: CommandLineSetting, trainer: Format) -> ClipUse:
    title = f"{trainer.title}: {setting.name}"
    try:
        config = ClipConfig(**convert.settings((trainer, _document(setting, setting.value))))
    except ConfigError as error:
        return ClipUse(path, setting.line, 1, title, why_unknown=str(error))
    return ClipUse(path, setting.line, 1, title, config)
