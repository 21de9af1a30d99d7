"""Write the lines of a recording."""

from __future__ import annotations

import functools
import json
import os
import sys
import sysconfig
from collections.abc import Collection
from datetime import datetime, timezone
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import Any

from .._kit import plain_json

SCHEMA = 3
"""The schema version. Recordings of version 1 have no lines for optimizer steps, and those of version 2 no samples."""

READABLE = (1, 2, SCHEMA)

NO_CALLS = (
    "No clip calls were recorded. Recordings contain the calls of unified_clip and of the functions that "
    "docs/recording.md lists. Turn off torch.compile and jit_compile=True: calls inside them are not recorded. "
    'If the code does not clip, call ClipConfig(rule="none").attach_to(optimizer) to record the norms of its gradients.'
)


NOT_RECORDED = "is not recorded"
"""Each warning about a lost part of a recording contains this text."""

NOT_REPORTED = f"{NOT_RECORDED}, because that graph cannot report values"

NO_PROCESS = (
    "No clip calls were recorded, because no Python process that imports unified_clip or a framework was recorded. Put "
    "the training command after --, as in: unified-clip record run.jsonl -- python train.py. Processes in containers, "
    "on other machines, or with Python's option -I, -E or -S are not recorded."
)


def failure(exit_status: int | None) -> str:
    """Return a sentence about a command that failed, or "". A negative status is a signal."""
    if not exit_status:
        return ""
    end = f"failed with exit status {exit_status}" if exit_status > 0 else f"was ended by signal {-exit_status}"
    return f"The recorded command {end}."


def without_calls(exit_status: int | None, processes: Collection[object]) -> str:
    """Both arguments are from the header. `exit_status` is None if no command was recorded."""
    if failed := failure(exit_status):
        return f"No clip calls were recorded. {failed} Correct the command, and record it to another file."
    return NO_CALLS if processes or exit_status is None else NO_PROCESS


encode = json.JSONEncoder().encode

LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], sysconfig.get_path("stdlib")))

INSTALLED = {"site-packages", "dist-packages"}

AUTOGRAPH = "__autograph_generated_file"
"""The names of files that TensorFlow generates from the functions of `tf.function` contain this text."""


def caller() -> str | None:
    """Return the innermost line of the user's own code that is running, such as "train.py:12"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (file := _own_file(frame.f_code.co_filename)) is not None:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


@functools.cache
def _own_file(name: str) -> str | None:
    """Return the name of a file, or None for code of a library or without a file."""
    if name.startswith(("<", *LIBRARIES)) or AUTOGRAPH in name or INSTALLED & {*Path(name).parts}:
        return None
    try:
        relative = os.path.relpath(name)
    except (OSError, ValueError):  # the working directory was deleted, or is on another drive
        return name
    return name if relative.startswith("..") else relative


def header(*, norms: bool, gradients_every: int | None = None) -> dict[str, Any]:
    return {
        "unified_clip": sys.modules["unified_clip"].__version__,
        "schema": SCHEMA,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "norms": norms,
        "gradients_every": gradients_every,
    }


def write_line(file: FileIO, line: dict[str, Any]) -> None:
    """Write a line in one operation, so that a crash damages only the last line. After an OSError, callers must not
    write more lines."""
    text = encode(line)
    if "NaN" in text or "Infinity" in text:  # no JSON, or part of a name
        text = encode(plain_json.plain(line))
    data = text.encode() + b"\n"
    if file.write(data) < len(data):
        raise OSError("only a part of a line was written")
