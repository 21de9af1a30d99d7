"""Draw a plot in docs/performance.md from benchmarks/results/bench.json: GPT-2's gradients, eager and compiled.

`python benchmarks/speed_plot.py` writes benchmarks/results/speed.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

RESULTS = Path(__file__).parent / "results"
LIST, DTYPE = "GPT-2", "float32"

ROWS = [
    ("PyTorch", "torch", "torch.nn.utils.clip_grad_norm_"),
    ("PyTorch, torch.compile", "torch", "torch.nn.utils.clip_grad_norm_ (torch.compile)"),
    ("TensorFlow", "tensorflow", "tf.clip_by_global_norm"),
    ("TensorFlow, tf.function", "tensorflow", "tf.clip_by_global_norm (in tf.function)"),
    ("TensorFlow, XLA", "tensorflow", "tf.clip_by_global_norm (in XLA)"),
    ("Paddle", "paddle", "paddle.nn.ClipGradByGlobalNorm"),
    ("Paddle, static program", "paddle", "paddle.nn.ClipGradByGlobalNorm (static program)"),
    ("JAX, optax in jit", "jax", "optax.clip_by_global_norm (jit)"),
    ("JAX, both in jit", "jax", "optax.clip_by_global_norm (both in jit)"),
    ("NumPy, plain", "numpy", "plain NumPy"),
]
"""(label, framework in bench.json, function in bench.json)"""

KINDS = {"not clipped": "#0f766e", "clipped": "#5eb5ab"}
WIDTH, LEFT, RIGHT, TOP, BAR = 760, 190, 50, 74, 13
LOW, HIGH = 0.25, 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the plot is stale")
    options = parser.parse_args(arguments)
    svg = plot(json.loads((RESULTS / "bench.json").read_text(encoding="utf-8")))
    path = RESULTS / "speed.svg"
    if not options.check:
        path.write_text(svg, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != svg:
        print(f"{path.name} is stale; run python benchmarks/speed_plot.py", file=sys.stderr)
        return 1
    return 0


def ratio(data: Mapping[str, Any], framework: str, native: str, kind: str) -> float:
    """Return the median ratio of a comparison, eager or in a graph."""
    (value,) = (
        entry["ratio"][1]
        for entry in data["results"]
        if (entry["framework"], entry["native"], entry["list"], entry["dtype"]) == (framework, native, LIST, DTYPE)
        and entry["what"].removesuffix(", in a graph") == kind
    )
    return float(value)


def x(value: float) -> float:
    """Return the place of a ratio on a logarithmic scale."""
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / LOW) / math.log(HIGH / LOW)


def plot(data: Mapping[str, Any]) -> str:
    step = BAR * len(KINDS) + 9
    bottom = TOP + step * len(ROWS)
    elements = [
        f'<rect width="{WIDTH}" height="{bottom + 40}" fill="#fff"/>',
        text(LEFT, 18, "Time of the framework's own function / time of unified_clip", weight="600"),
        text(x(1) + 6, 40, "unified_clip is faster →", fill="#0f766e"),
        text(x(1) - 6, 40, "← slower", anchor="end", fill="#b45309"),
    ]
    for index, (kind, colour) in enumerate(KINDS.items()):
        left = LEFT + 110 * index
        elements += [
            f'<rect x="{left}" y="50" width="10" height="10" fill="{colour}"/>',
            text(left + 15, 59, kind),
        ]
    for value in (0.25, 0.5, 1, 2, 4, 8):
        colour = "#444" if value == 1 else "#ddd"
        elements += [
            f'<path d="M{x(value):.1f} {TOP - 6}V{bottom}" stroke="{colour}"/>',
            text(x(value), bottom + 16, f"{value:g}x", anchor="middle"),
        ]
    for row, (label, framework, native) in enumerate(ROWS):
        top = TOP + row * step
        elements.append(text(LEFT - 10, top + BAR + 4, label, anchor="end"))
        for index, (kind, colour) in enumerate(KINDS.items()):
            elements += bar(top + index * BAR, ratio(data, framework, native, kind), colour)
    machine = f"{LIST}'s gradients, {DTYPE}, {data['threads']} threads of a CPU. Right of 1x, unified_clip is faster."
    elements.append(text(LEFT, bottom + 34, machine, fill="#555"))
    size = f'width="{WIDTH}" height="{bottom + 40}" viewBox="0 0 {WIDTH} {bottom + 40}"'
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(elements) + "\n</svg>\n"


def bar(top: float, value: float, colour: str) -> list[str]:
    """Return a bar from 1 to a ratio, with its number at the end."""
    left, right = sorted((x(1), x(value)))
    at, anchor = (right + 4, "start") if value >= 1 else (left - 4, "end")
    return [
        f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{BAR - 2}" fill="{colour}"/>',
        text(at, top + BAR - 3, f"{value:.2f}", anchor=anchor, size=10),
    ]


def text(left: float, top: float, content: str, *, anchor: str = "start", size: int = 12, **style: str) -> str:
    extra = "".join(f' {"font-weight" if name == "weight" else name}="{value}"' for name, value in style.items())
    place = f'x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}{extra}>{escape(content)}</text>"


if __name__ == "__main__":
    sys.exit(main())
