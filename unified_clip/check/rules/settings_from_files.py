"""Check scripts in which a trainer such as LightningCLI reads the clip from a configuration file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..advice import is_of_trainer
from ..clip_use import ClipUse, shown
from . import patterns

CONFIGURATIONS = re.compile(r"conf(ig)?s?/")
"""Matches the files of a Hydra program whose code is in another folder, such as src."""

NOTE = (
    "{place} {clip}: The source does not set this clip. The check compares the clip in {files}, and assumes that the "
    "trainer gets its arguments from there. Options on a command line override a file."
)


def files_of(use: ClipUse, uses: Sequence[ClipUse], root: Path, *, is_hydra: bool = False) -> list[ClipUse]:
    """Return the clips in files of the same trainer near a script. A script with Hydra can also read `conf/**`."""
    of_trainer = [
        each for each in uses if is_of_trainer(use, each.format) or (each.is_callback and each.config is not None)
    ]
    near = [each for each in of_trainer if patterns.is_near(each.path, use.path, root)]
    if near or not is_hydra:
        return near
    return [each for each in of_trainer if CONFIGURATIONS.match(patterns.relative(each.path, root))]


def note(use: ClipUse, files: Sequence[ClipUse]) -> str:
    return NOTE.format(place=f"{shown(use.path)}:{use.line}", clip=use.clip, files=_names(files))


def _names(files: Sequence[ClipUse]) -> str:
    return " and ".join(dict.fromkeys(f"{shown(each.path)}:{each.line}" for each in files))
