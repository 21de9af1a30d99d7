"""Read a key that the user's own code reads, as an entry of `check.key` declares it, for `config import --key`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..._kit import atomic_files
from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...source.project import Project
from ..python import notebooks
from . import settings


def read(path: Path, key: str, rule: str, off: Sequence[str], family: str | None) -> ClipConfig:
    """Return the clip of a key in a file.

    Args:
        path: A file that an entry of `check.key` can name.
        key: The last names of the key, joined by dots.
        rule: The rule by which the user's code clips.
        off: The values with which the code does not clip.
        family: The family of the framework's function that the code calls.
    """
    declared = {"path": "**", "key": key, "rule": rule, "off": list(map(_value, off)), "family": family}
    config = ClipConfig(rule="none", check={"key": [declared]})
    atomic_files.read_bytes(path)  # raises if the file cannot be read
    real = Path(os.path.realpath(path))
    uses = settings.read(Project([real], cache(notebooks.python_source)), real, config, real.parent)
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


def _value(text: str) -> float | str:
    with contextlib.suppress(ValueError):
        return float(text)
    return text
