"""Describe a clip that was found in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from ..config.clip_config import ClipConfig
from ..config.documents import Document

OWN = "unified_clip"

THRESHOLD = "__threshold__"
"""The placeholder for the threshold in `ClipUse.call`."""

ONE_PER_GROUP = (
    "Paddle clips each group of parameters of an optimizer by a norm of its own. To clip by one norm, pass all "
    "parameters in one list. AdamW then excludes some from weight decay by apply_decay_param_fun=. Or ignore the clip "
    "with a reason in check.ignore."
)
"""The reason why the effect of a clip of Paddle is unknown. Paddle calls a clip once for each parameter group."""


class NamedValue(NamedTuple):
    """A value of a clip key, or a value in a table or list of a clip key."""

    name: str
    """The name of the key. A value in a table has a dotted name, such as "grad_clip.max_norm"."""

    value: Any


@dataclass(frozen=True)
class ClipUse:
    """A clip in a file, or a file that leaves its clip to another file.

    Exactly one of three fields is set: `config`, `why_unknown` or `set_elsewhere`.
    """

    path: Path
    line: int
    column: int
    clip: str
    """The code or key that clips, in words: a function, an argument, or a trainer with its key."""

    config: ClipConfig | None = None
    """The clip configuration with the same effect, or None if the effect of the clip is unknown."""

    why_unknown: str = ""
    rule: ClipConfig | None = None
    """The settings of a clip whose threshold is only known at run time, with any number as the threshold."""

    rejected: str = ""
    """The reason why a trainer rejects the threshold, such as another threshold of DeepSpeed."""

    unclipped: bool = False
    """Whether an optimizer has no clip, in a file that clips for another optimizer."""

    option: str = ""
    values: tuple[NamedValue, ...] = ()
    """The values of all clip keys in a file, for a key that no known trainer reads."""

    read: Path | None = None
    """The trainer's configuration that was read. The clip can be inherited from `path`."""

    bases: tuple[Path, ...] = ()
    by_default: bool = False
    """Whether a trainer's file or arguments have no clip key with a value."""

    has_key: bool = False
    """Whether a trainer's file has a clip key, even if the value is null."""

    needs_key: bool = False
    must_be_off: bool = False
    is_replaced: bool = False
    """Whether a trainer's clip is off, and the same file clips by unified_clip."""

    twice: str = ""
    """The clip of unified_clip that clips in addition to a trainer's clip, with its line."""

    is_set_outside: bool = False
    """Whether a trainer reads its clip from a file or the command line, as LightningCLI does."""

    set_elsewhere: str = ""
    """A sentence with the place that sets the clip, for a file without a clip of its own."""

    format: str = ""
    document: Document | None = None
    """The parsed configuration of a trainer. None if a base file has an error."""

    version: Version | None = None
    engine: str = ""
    """The training engine, such as "DeepSpeed", if code cannot clip as usual under the engine."""

    package: str = ""
    """The package of the function or class that clips in Python source, such as "torch"."""

    unused: str = ""
    """The name or the code of a configuration that no code uses. The name of an attribute begins with "."."""

    users: tuple[Path, ...] = ()
    """The checked files that use a configuration from another Python file."""

    changes_nonfinite: bool = False
    note: str = ""
    """A sentence about a configuration that its Python file does not use."""

    call: str = ""
    """The code of a call that clips, with THRESHOLD in place of the threshold."""

    @property
    def is_own(self) -> bool:
        return self.format == OWN or self.clip.partition(".")[0] == OWN

    @property
    def is_callback(self) -> bool:
        """Whether this is a `ClipCallback` in a configuration file, or an unused one in Python source."""
        return self.clip.endswith(".ClipCallback")

    @property
    def files(self) -> list[Path]:
        """The file with the clip, and the file that inherits the clip."""
        return [file for file in (self.path, self.read) if file is not None]


@dataclass
class Found:
    uses: list[ClipUse] = field(default_factory=list)
    trainers: int = 0
    sources: int = 0
    bases: set[Path] = field(default_factory=set)
    repeats: set[str] = field(default_factory=set)
    """Trainers' configurations that inherit a clip which `uses` lists for another file."""

    files: set[str] = field(default_factory=set)
    """All trainers' configurations with a known clip, including base files."""

    notes: list[str] = field(default_factory=list)
    elsewhere: list[Path] = field(default_factory=list)
    """Files that leave their clip to another file or to the script."""

    unread: int = 0


def shown(path: Path) -> str:
    """Return a path with "/" on all systems. Files below the working directory get a relative path."""
    relative = os.path.relpath(path)
    return path.as_posix() if relative.startswith("..") else Path(relative).as_posix()
