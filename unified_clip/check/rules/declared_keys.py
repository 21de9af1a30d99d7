"""What the keys that `check.key` declares change in other clips, and `config import --key`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..._kit import atomic_files
from ..._kit.static_values import is_number
from ...config.check_rules import CheckRules
from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...source.project import Project
from ..clip_use import ClipUse, with_threshold
from ..python import notebooks
from . import patterns, settings
from .entries import Entries


def compared(uses: Sequence[ClipUse], config: ClipConfig, root: Path) -> list[ClipUse]:
    """Leave out what is unknown only without the declared keys, and compare a clip by its rule if the check compares
    all settings that the clip reads."""
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
    rule, names = use.rule_of_any_threshold, {use.attribute, use.option}
    if rule is None or any(
        each.name in names and patterns.is_near(of.path, use.path, root) for of in unknown for each in of.values
    ):
        return use
    if not any(each.attribute in names and patterns.is_near(each.path, use.path, root) for each in settings):
        return use
    return replace(use, config=with_threshold(rule, config.threshold), why_unknown="")


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
    uses = list(settings.named(settings.Readers(project, config, entries, (), ()), path.resolve(), set(), "declared"))
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
