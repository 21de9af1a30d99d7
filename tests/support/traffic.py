"""The tables of benchmarks/results/traffic.md: bytes of memory that a clip reads and writes for each element."""

from __future__ import annotations

import math
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "traffic.md"
SHAPES = [(512, 1024), (2048, 512), (300, 300)]
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)
SMALL = 100_000
"""Arrays of fewer bytes are no gradients of SHAPES. They hardly count."""


def row_of(name: str) -> list[float]:
    """Return the numbers of a row: of float32, then of bfloat16, not clipped and clipped. Other cells are NaN."""
    (row,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [float(cell) if re.fullmatch(r" [\d.]+ ", cell) else math.nan for cell in row.split("|")]
