"""Merge the parts of all processes into one recording."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._kit import atomic_files
from ..._kit.atomic_files import LARGEST_REPORT, FileError
from ...recorder.process import FAILED, NOTES, PART, STARTED
from ..lines import without_calls


@dataclass(frozen=True)
class RecordingPart:
    header: dict[str, Any]
    lines: Sequence[str]
    incomplete_line: bool

    @property
    def order(self) -> tuple[float, str]:
        rank = self.header["process"]["rank"]
        return (float("inf") if rank is None else rank), self.header["started"]


def merge(directory: Path, file: Path, header: dict[str, Any], status: int) -> list[str]:
    """Merge the recordings of all processes. Return messages for the user."""
    parts = sorted(filter(None, map(_read_part, sorted(directory.glob(f"*{PART}")))), key=lambda part: part.order)
    merged = dict(parts[0].header if parts else header)
    merged.pop("process", None)
    merged["exit_status"] = status
    # Processes without a line are listed only if no process has one: often they only start the others.
    merged["processes"] = [{**part.header["process"], "incomplete_line": part.incomplete_line} for part in parts] or [
        json.loads(atomic_files.read_text(path)) for path in sorted(directory.glob(f"*{STARTED}"))
    ]
    lines = [json.dumps(merged)]
    for number, part in enumerate(parts):
        mark = f'{{"process": {number}, ' if len(parts) > 1 else "{"
        lines += [f"{mark}{line[1:]}" for line in part.lines]
    text, notes = "\n".join([*lines, ""]), _notes(directory)
    try:
        atomic_files.write(file, text)
    except FileError:  # often the disk is full: the parts take the space, and are in memory
        shutil.rmtree(directory)
        atomic_files.write(file, text)
    if not any('"call": ' in line for part in parts for line in part.lines):
        notes.append(f"{file}: {without_calls(status, merged['processes'])}")
    return notes


def _read_part(path: Path) -> RecordingPart | None:
    whole, _, rest = atomic_files.read_text(path, LARGEST_REPORT, errors="replace").rpartition("\n")
    if not whole:
        return None
    first, *lines = whole.split("\n")
    return RecordingPart(json.loads(first), lines, bool(rest))


def _notes(directory: Path) -> list[str]:
    notes = [
        json.loads(line)
        for path in sorted(directory.glob(f"*{NOTES}"))
        for line in atomic_files.read_text(path, LARGEST_REPORT, errors="replace").splitlines()
    ]
    for path in sorted(directory.glob(f"*{FAILED}")):
        lines = atomic_files.read_text(path, LARGEST_REPORT, errors="replace").splitlines()
        reason = lines[-1] if lines else "no reason was written"
        remedy = "If a package is missing, install unified_clip in the Python environment of the command."
        notes.append(f"process {path.stem} was not recorded: {reason}. {remedy}")
    return list(dict.fromkeys(notes))
