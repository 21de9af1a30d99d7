"""Check scripts in which a trainer such as LightningCLI reads the clip from a configuration file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..config.formats import FORMATS
from ..port.catalog import settings
from .advice import is_of_trainer
from .clip_use import ARGUMENT_FORMATS, ClipUse, shown
from .rules import patterns

CONFIGURATIONS = re.compile(r"conf(ig)?s?/")
"""Matches the files of a Hydra program whose code is in another folder, such as src."""

READS = "{function} reads {keyword} from a configuration file or the command line."
NOTE = (
    "{place} {function} reads {keyword} from a file. The clip in {files} agrees with {own}. Options on a command line "
    "override the file. The check sees only the command lines in checked files."
)
PASSED = (
    "{place} {clip}: The source does not set this clip. The check compares the clip in {files}, and assumes that the "
    "trainer gets its arguments from there. Options on a command line override a file."
)


def _parts(use: ClipUse) -> tuple[str, str]:
    function, _, keyword = use.clip.partition("(")
    return function, keyword.rstrip("=)")


def reads_file(use: ClipUse) -> bool:
    return use.is_set_outside and any(_parts(use)[0] in each.elsewhere for each in settings())


def files_of(use: ClipUse, uses: Sequence[ClipUse], root: Path, *, is_hydra: bool = False) -> list[ClipUse]:
    """Return the clips in files of the same trainer near a script. A script with Hydra can also read `conf/**`."""
    of_trainer = [
        each
        for each in uses
        if is_of_trainer(use, each.format) or (each.is_callback and each.config is not None)
        if not each.must_be_off
    ]
    near = [each for each in of_trainer if any(patterns.is_near(file, use.path, root) for file in each.files)]
    if near or not is_hydra:
        return near
    return [each for each in of_trainer if CONFIGURATIONS.match(patterns.relative(each.path, root))]


def why(use: ClipUse, files: Sequence[ClipUse], own: str) -> str:
    function, keyword = _parts(use)
    title = FORMATS[ARGUMENT_FORMATS[use.package]].title
    reason = READS.format(function=function, keyword=keyword)
    if not files:
        return f"{reason} No checked file near this script is a configuration of {title}."
    return f"{reason} The clips in these files near the script differ from {own}: {_names(files)}."


def note(use: ClipUse, files: Sequence[ClipUse], own: str) -> str:
    function, keyword = _parts(use)
    return NOTE.format(
        place=f"{shown(use.path)}:{use.line}", function=function, keyword=keyword, files=_names(files), own=own,
    )  # fmt: skip


def note_of_passed(use: ClipUse, files: Sequence[ClipUse]) -> str:
    return PASSED.format(place=f"{shown(use.path)}:{use.line}", clip=use.clip, files=_names(files))


def _names(files: Sequence[ClipUse]) -> str:
    return " and ".join(dict.fromkeys(f"{shown(each.path)}:{each.line}" for each in files))
