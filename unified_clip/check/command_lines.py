"""Recognise shell scripts, names of clip settings, and strings of documents that can be command lines."""

from __future__ import annotations

import re
from pathlib import Path

from .._kit import atomic_files

SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".mk", "makefile")

SHEBANG = re.compile(rb"#!.*\b(ba|da|k|z)?sh\b")

MAY_BE_CLIP = re.compile(r"(?i)clip|grad|max[\W_]*norm")
"""Matches the name of every clip setting. Lines without a match are skipped to save time."""

CLIP_NAMES = [
    re.compile(pattern)  # single patterns with fixed case are ten times as fast as one large pattern
    for pattern in (
        rb"clip[\w-]{0,12}(grad|norm)", rb"Clip\w{0,12}(Grad|Norm)", rb"CLIP\w{0,12}(GRAD|NORM)",
        rb"grad[\w-]{0,20}[cC]lip", rb"GRAD\w{0,20}CLIP", rb"max[-_]?[gG]rad", rb"MAX_GRAD",
        rb"clip[-_]?(?:by[-_]?)?value[\"']?\s*[:=]",  # only as a key: tf.clip_by_value(image, 0, 1) clips no gradient
    )
]  # fmt: skip

MAX_NORM = re.compile(r"(?i)max_?norm")


def text_names_clip(text: bytes) -> bool:
    return any(pattern.search(text) for pattern in CLIP_NAMES)


def is_shell(path: Path) -> bool:
    return path.name.lower().endswith(SHELLS) or has_shebang(path)


def has_shebang(path: Path) -> bool:
    """Return whether a file without a suffix is a shell script, by its first line."""
    try:
        if path.suffix or not path.is_file():
            return False
        with atomic_files.reading(path) as file:
            return SHEBANG.match(file.readline(100)) is not None
    except OSError:
        return False
