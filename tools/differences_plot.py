"""Draw docs/native_differences.svg: by how much the frameworks' own clips differ from the exact result.

The numbers are those of the table in docs/native_differences.md, from parity/known.toml.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.native_tables import read  # noqa: E402

PLOT = ROOT / "docs/native_differences.svg"
COLUMNS = {"PyTorch": "PyTorch", "TensorFlow": "TensorFlow", "Paddle": "Paddle", "optax on JAX": "optax", "MLX": "MLX"}
OURS = "unified_clip"
WIDTH, LEFT, TOP, STEP = 1020, 460, 46, 25
COLOURS = ((1e-5, "#fef9c3"), (0.01, "#fde68a"), (0.5, "#fdba74"), (math.inf, "#f87171"))
"""(sizes below this, colour)"""

EXACT = "#ccfbf1"

INTERFACES = ("need_clip=False", "set_gradient_clip", "dicts, ")
"""How differences begin that are of the arguments which a function accepts, not of what it computes: the plot leaves
them out."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the plot is stale")
    options = parser.parse_args()
    svg = plot(largest())
    if not options.check:
        PLOT.write_text(svg, encoding="utf-8")
    elif not PLOT.exists() or PLOT.read_text(encoding="utf-8") != svg:
        print(f"{PLOT.relative_to(ROOT)} is stale. Type: make native-tables", file=sys.stderr)
        return 1
    return 0


def largest() -> dict[str, dict[str, tuple[float, str]]]:
    """Return {what differs: {framework: (largest size, in words)}} of the newest releases, without INTERFACES."""
    found: dict[str, dict[str, tuple[float, str]]] = {}
    for each in read():
        if each.number:
            row = found.setdefault(each.what, {})
            row[each.framework] = max(row.get(each.framework, (0.0, "")), (each.number, each.by))
    left_out = [what for what in found if what.startswith(INTERFACES)]
    if len(left_out) != len(INTERFACES):
        raise ValueError(f"INTERFACES has {len(INTERFACES)} beginnings, but leaves out {left_out}")
    return {what: row for what, row in found.items() if what not in left_out}


def plot(rows: Mapping[str, Mapping[str, tuple[float, str]]]) -> str:
    names = [*COLUMNS.values(), OURS]
    column = (WIDTH - LEFT - 8) / len(names)
    bottom = TOP + STEP * len(rows)
    elements = [f'<rect width="{WIDTH}" height="{bottom + 34}" fill="#fff"/>']
    elements += [text(LEFT + column * (at + 0.5), 32, name, weight="600") for at, name in enumerate(names)]
    for line, (what, sizes) in enumerate(rows.items()):
        top = TOP + STEP * line
        elements.append(text(LEFT - 12, top + 16, what, "end"))
        for at, name in enumerate([*COLUMNS, OURS]):
            number, words = sizes.get(name, (0.0, "exact" if name == OURS else ""))
            fill = next(colour for limit, colour in COLOURS if number < limit or limit == math.inf)
            fill = fill if name in sizes else EXACT if name == OURS else "#f5f5f4"
            left = LEFT + column * at
            place = f'x="{left:.1f}" y="{top}" width="{column - 3:.1f}" height="{STEP - 3}"'
            elements.append(f'<rect {place} fill="{fill}"/>')
            elements.append(text(left + (column - 3) / 2, top + 16, words))
    note = "The largest difference from the exact result, for eager tensors in CPU memory. Grey: none is known."
    elements.append(text(WIDTH - 12, bottom + 20, note, "end", fill="#555"))
    size = f'width="{WIDTH}" height="{bottom + 34}" viewBox="0 0 {WIDTH} {bottom + 34}"'
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(elements) + "\n</svg>\n"


def text(x: float, y: float, content: str, anchor: str = "middle", *, weight: str = "400", fill: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f"<text {place}>{escape(content)}</text>"


if __name__ == "__main__":
    sys.exit(main())
