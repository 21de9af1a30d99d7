"""Check the files of `check.off`, in which the trainer's own clip has to be off."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..clip_use import ClipUse, FoundClips, shown
from ..trainer_files import SOURCES
from . import patterns

NOT_UNDERSTOOD = (
    "check.off requires that the trainer's own clip is off, but the file shows no clip key of a known trainer. So "
    "the effect of the trainer is unknown."
)
EDIT = (
    "Set the trainer's clip key to a value that switches clipping off. If the file already has this value, set the "
    "format of the file in check.formats. If no trainer reads the file, add the file to check.ignore with a reason."
)


def marked(use: ClipUse) -> ClipUse:
    if use.is_own or use.unclipped:
        return use
    return replace(use, must_be_off=True, set_elsewhere="", why_unknown=use.why_unknown or use.set_elsewhere)


def not_understood(globs: Sequence[str], files: Sequence[Path], file_uses: FoundClips, root: Path) -> Iterator[ClipUse]:
    """Yield a clip of unknown effect for each file that matches `check.off` and has no known trainer."""
    shows = {os.path.realpath(file) for use in file_uses.uses if not use.is_own for file in use.files}
    shows |= file_uses.repeats
    reported: set[Path] = set()
    for glob in globs:
        matching = [file for file in files if patterns.matches(glob, file, root)]
        is_shown = any(os.path.realpath(file) in shows for file in matching)
        for file in matching:
            is_part = file.suffix.lower() in SOURCES or file.resolve() in file_uses.bases
            if os.path.realpath(file) in shows or (is_shown and is_part) or file in reported:
                continue
            reported.add(file)
            yield ClipUse(file, 1, 1, f'check.off "{glob}"', why_unknown=f"{shown(file)}: {NOT_UNDERSTOOD}")
