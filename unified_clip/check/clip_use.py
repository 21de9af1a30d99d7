"""A clip that was found in a file."""

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
"""Stands for the threshold in `ClipUse.call`."""

ONE_PER_GROUP = (
    "Paddle clips each group of parameters of an optimizer by a norm of its own. To clip by one norm, pass all "
    "parameters in one list. AdamW then excludes some from weight decay by apply_decay_param_fun=. Or ignore the clip "
    "with a reason in check.ignore."
)
"""Why the effect of a clip of Paddle is unknown. Paddle would also call a clip of unified_clip once for each group."""


class NamedValue(NamedTuple):
    """The value of a clip key, or a value in the table or list of such a key."""

    name: str
    """The name of the key. A value in a table has a dotted name, such as "grad_clip.max_norm"."""

    value: Any


@dataclass(frozen=True)
class ClipUse:
    """A clip in a file, or a file that leaves its clip to another file.

    Exactly one of three fields is set: `config` for a known effect, `why_unknown` for an unknown one, `set_elsewhere`
    for a file without a clip of its own.
    """

    path: Path
    line: int
    column: int
    clip: str
    """The code or key that clips, in words: a function, an argument, or a trainer with its key."""

    config: ClipConfig | None = None
    """The clip configuration that clips in the same way. None if the effect of the clip is unknown."""

    why_unknown: str = ""
    """The reason why the effect of the clip is unknown, or '' if it is known."""

    rule: ClipConfig | None = None
    """For a clip in Python source whose threshold is only known at run time: its other settings. The threshold in these
    settings stands for any number.
    """

    rejected: str = ""
    """For a trainer's clip in Python source: why the trainer rejects its threshold, such as another threshold of
    DeepSpeed. The effect is then unknown, unless `config` differs from the clip configuration.
    """

    unclipped: bool = False
    """Whether this is no clip, but an optimizer (or its step) that surely has none, in a file that clips for another
    optimizer. It does not count as a clip for `check.require`.
    """

    option: str = ""
    """For a clip in Python source: the command-line option that sets its threshold, such as "max_grad_norm". For a
    command line: the option that it passes, with the number in `values`.
    """

    values: tuple[NamedValue, ...] = ()
    """For a key that no known trainer reads: the values of all clip keys in its file, also in tables and lists."""

    read: Path | None = None
    """For a trainer's configuration: the file that was read, which may inherit the clip from `path`."""

    bases: tuple[Path, ...] = ()
    """For a trainer's configuration: the other files that the check read with it, such as base files."""

    by_default: bool = False
    """For a trainer: whether its file or its arguments have no clip key with a value."""

    has_key: bool = False
    """For a trainer's file: whether the file has a clip key, even if its value is null."""

    needs_key: bool = False
    """Whether `check.explicit` requires the key that the file does not set."""

    must_be_off: bool = False
    """Whether `check.off` requires that this clip is off. It then counts as no clip for `check.require`."""

    is_replaced: bool = False
    """For a trainer's clip: whether it is off, and the same file clips by unified_clip."""

    twice: str = ""
    """For a trainer's clip: the clip of unified_clip in the same file, with its line, if both clip."""

    is_set_outside: bool = False
    """For Python source: whether the trainer reads its clip from a file or the command line, as LightningCLI does."""

    set_elsewhere: str = ""
    """For a file without a clip of its own: a sentence with the place that sets the clip. '' for other files."""

    format: str = ""
    """For a trainer's configuration: the name of its format."""

    document: Document | None = None
    """For a trainer's configuration, unless a base file has an error: the parsed file."""

    version: Version | None = None
    """The trainer's version in `check.formats`."""

    engine: str = ""
    """The training engine, such as "DeepSpeed", that the file or the code chooses, if code cannot clip as usual under
    it.
    """

    package: str = ""
    """For Python source: the package of the function or class that clips, such as "torch"."""

    unused: str = ""
    """For a configuration that its Python file makes and no code uses: the name of its variable, or its code if it has
    no variable. The name of an attribute begins with ".". '' for all other clips. A configuration with `unused` is no
    clip for a pattern of `check.require`."""

    users: tuple[Path, ...] = ()
    """For a configuration that its Python file makes and does not use: the checked files that use it."""

    changes_nonfinite: bool = False
    """For code that changes a configuration: whether it changes only the key `nonfinite`."""

    note: str = ""
    """A sentence about a configuration in Python source that the file does not use, or ''."""

    call: str = ""
    """For a call of a function or class that clips: its code, with THRESHOLD in place of the threshold."""

    @property
    def is_own(self) -> bool:
        """Whether unified_clip clips: by its functions in Python source, or by a clip configuration."""
        return self.format == OWN or self.clip.partition(".")[0] == OWN

    @property
    def is_callback(self) -> bool:
        """Whether this is a `ClipCallback` in a configuration file, or one that Python source does not use."""
        return self.clip.endswith(".ClipCallback")

    @property
    def files(self) -> list[Path]:
        """The file with the clip, and the file that inherits it."""
        return [file for file in (self.path, self.read) if file is not None]


@dataclass
class Found:
    """The clips in the checked files, the numbers of files of each kind, and notes on files without a clip."""

    uses: list[ClipUse] = field(default_factory=list)
    trainers: int = 0
    """The number of trainers' configurations."""

    sources: int = 0
    """The number of Python files that clip."""

    bases: set[Path] = field(default_factory=set)
    """Files that trainers' configurations inherit from."""

    repeats: set[str] = field(default_factory=set)
    """Trainers' configurations that inherit a clip which `uses` has for another file."""

    files: set[str] = field(default_factory=set)
    """Trainers' configurations with a known clip. A base file is one of them, even if its clip is not in `uses`."""

    notes: list[str] = field(default_factory=list)
    """Notes on files without a clip of their own, on unread files that name no clip, and on configurations that their
    file does not use."""

    elsewhere: list[Path] = field(default_factory=list)
    """Files that leave their clip to another file or to the script."""

    unread: int = 0
    """The number of files that were not read: they are too large, or cannot be opened."""


def shown(path: Path) -> str:
    """Return a path as text with "/". It is relative to the working directory if the file is below that directory."""
    relative = os.path.relpath(path)
    return path.as_posix() if relative.startswith("..") else Path(relative).as_posix()
