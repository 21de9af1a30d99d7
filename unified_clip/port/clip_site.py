"""What was found in source: a clip, what it means, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..config.clip_config import ClipConfig

Verdict = Literal["rewritten", "flagged", "left"]
Target = Literal["torch", "drop-in"]


@dataclass(frozen=True)
class Meaning:
    """What a clip does."""

    config: ClipConfig
    """With a threshold of 1 where that is only known at run time."""

    threshold: str = ""
    """The expression, where the threshold is only known at run time ('low, high' of bounds); else ''."""


@dataclass(frozen=True)
class ClipSite:
    """A clip in a file."""

    line: int
    column: int
    name: str
    """In full, by what is imported: 'paddle.nn.ClipGradByGlobalNorm'; of an optimizer's argument
    'keras.optimizers.Adam(clipnorm=)'."""

    text: str
    """As it is written there, its first line."""

    verdict: Verdict
    meaning: Meaning | None = None
    """None where it has none in our terms."""

    becomes: str = ""
    """The full name that took its place; '' where nothing did."""

    becomes_meaning: Meaning | None = None
    """Of what took its place."""

    reason: str = ""
    """Why it is flagged or left."""

    suggestion: Sequence[str] = ()
    """Lines for a person to write."""

    checks: Sequence[str] = ()
    """What a person should look at, also where it is rewritten."""

    rule: str = ""
    """The rule that decided, as 'need_clip.flag'; '' where none had to."""


@dataclass(frozen=True)
class PortedFile:
    """A file that was read."""

    path: Path
    before: bytes
    after: bytes
    sites: Sequence[ClipSite] = field(default=())

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class UnreadableFile:
    """A file that could not be read, and why."""

    path: Path
    reason: str
