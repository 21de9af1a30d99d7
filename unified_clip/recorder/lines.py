"""Write the lines of a recording, with names of parameters and places in the script."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import sys
import sysconfig
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from io import FileIO
    from types import FrameType

SCHEMA = 3
"""The schema version. Recordings of version 1 have no lines for optimizer steps, and those of version 2 no samples."""

encode = json.JSONEncoder().encode

OWN = Path(__file__).parents[1 if __name__.startswith("unified_clip.") else 0]
"""unified_clip, or only this folder if it runs alone."""

LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (OWN, sysconfig.get_path("stdlib")))

INSTALLED = {"site-packages", "dist-packages"}

AUTOGRAPH = "__autograph_generated_file"
"""The names of files that TensorFlow generates from the functions of `tf.function` contain this text."""


def caller() -> str | None:
    """Return the innermost line of the user's own code that is running, such as "train.py:12"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        place = _place(name, frame.f_lineno) or (_original_place() if AUTOGRAPH in name else None)
        if place is not None:
            return place
        frame = frame.f_back
    return None


def _original_place() -> str | None:
    """AutoGraph runs a copy of the user's code. TensorFlow knows the lines of the original."""
    tf_stack = sys.modules.get("tensorflow.python.util.tf_stack")
    entries = tf_stack.extract_stack() if tf_stack else ()
    places = (_place(entry.filename, entry.lineno) for entry in reversed(entries) if hasattr(entry, "filename"))
    return next(filter(None, places), None)


def _place(name: str, line: int) -> str | None:
    file = _own_file(name)
    return None if file is None else f"{file}:{line}"


@functools.lru_cache(maxsize=None)
def _own_file(name: str) -> str | None:
    """Return the name of a file, or None for code of a library or without a file."""
    if name.startswith(("<", *LIBRARIES)) or AUTOGRAPH in name or INSTALLED & {*Path(name).parts}:
        return None
    try:
        relative = os.path.relpath(name)
    except (OSError, ValueError):  # the working directory was deleted, or is on another drive
        return name
    return name if relative.startswith("..") else relative


def header(version: str, *, norms: bool, gradients_every: int | None = None) -> dict[str, Any]:
    return {
        "unified_clip": version,
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
        text = encode(plain_json(line))
    data = text.encode() + b"\n"
    if file.write(data) < len(data):
        raise OSError("only a part of a line was written")


def plain_json(value: Any) -> Any:
    """Write NaN and infinities as strings, because JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: plain_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# -- names of parameters

WRAPPER = re.compile(r"^((module|_orig_mod|_forward_module)\.)+|(?<=\.)(_orig_mod|_forward_module)\.")
"""The prefixes that DistributedDataParallel, `torch.compile` and Fabric add. A layer of the user can also have the name
`module`, but not at the start of all names."""


def canonical(name: str) -> str:
    """Return the name that all frameworks share: `dense/kernel:0` becomes `dense.kernel`."""
    shared = WRAPPER.sub("", name).replace("/", ".")
    return shared[:-2] if shared.endswith(":0") else shared


def unique_name(name: str, taken: Container[str]) -> str:
    if name not in taken:
        return name
    candidates = (f"{name}#{count}" for count in itertools.count(2))
    return next(each for each in candidates if each not in taken)


def unique_names(names: Iterable[str]) -> list[str]:
    taken: dict[str, None] = {}
    for name in names:
        taken[unique_name(name, taken)] = None
    return list(taken)
