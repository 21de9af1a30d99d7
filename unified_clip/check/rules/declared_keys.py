"""The keys that `check.key` declares: find them in all files, and read one for `config import --key`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..._kit import atomic_files
from ..._kit.static_values import is_number
from ...config.check_rules import DeclaredKey
from ...config.clip_config import ClipConfig
from ...config.documents import format_value
from ...errors import ConfigError
from ...source.project import Project
from .. import settings
from ..clip_use import ClipUse, FoundClips, with_threshold
from ..python import notebooks
from ..settings import WORDS, Setting
from . import patterns
from .settings import AT_RUN_TIME

ANY = "*"
"""In a declared key, this part matches any part."""

NO_NUMBER = (
    "The value of this key is {value}, which is no number, and the entry {index} of check.key does not list it in off."
)


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
    return replace(use, config=with_threshold(rule, config.threshold), why_unknown="")


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


# -- `config import --key`


def imported(path: Path, key: str, rule: str, off: Sequence[str], family: str | None) -> ClipConfig:
    """Return the clip of a key in a file.

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
    real = Path(os.path.realpath(path))
    uses = read(Project([real], cache(notebooks.python_source)), real, config, real.parent)
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
