"""The result of porting one clip: its effect, verdict and replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..config.clip_config import ClipConfig

Verdict = Literal["rewritten", "flagged", "left"]
Target = Literal["torch", "drop-in"]

UNUSED = "unused"
"""The `rule` of a call whose result no code uses."""

OFF = "off"
"""The `rule` of a trainer's argument whose value switches clipping off."""

SET_OUTSIDE = "might be set in a file, on the command line, or by arguments such as **kwargs"


@dataclass(frozen=True)
class Meaning:
    config: ClipConfig
    """If `threshold` below is not empty, this configuration has the threshold 1, or the bounds -1 and 1."""

    threshold: str = ""
    """The code of a threshold that is only known at run time, or ''. For two bounds, the code is "low, high"."""


@dataclass
class PortedClip:
    line: int
    column: int
    name: str
    """The full name of a function or argument, such as "keras.optimizers.Adam(clipnorm=)"."""

    text: str
    verdict: Verdict | None = None
    """"left" means that there is nothing to port. None means that no rule has decided yet."""

    meaning: Meaning | None = None
    """The effect of the clip, or None if no clip configuration has this effect."""

    becomes: str = ""

    reason: str = ""

    suggestion: list[str] = field(default_factory=list)
    rule: str = ""
    """UNUSED, OFF or ''."""


@dataclass(frozen=True)
class PortedFile:
    """If the file has no clips, `before` and `after` can be empty."""

    path: Path
    before: bytes
    after: bytes
    sites: Sequence[PortedClip] = ()

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class UnreadableFile:
    path: Path
    reason: str
