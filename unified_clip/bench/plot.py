"""Draw the plots of a benchmark as SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .._kit import atomic_files

COLOURS = {
    "torch": "#d1422a",
    "tensorflow": "#e69f00",
    "paddle": "#2757c4",
    "jax": "#1b9e77",
    "numpy": "#6b6b6b",
}
MARKERS = "oDs^"

LINES: Any = {"ours_ms": "-", "native_ms": "--"}

SIDES = ("unified_clip", "the framework's function")

STYLE: Any = {"svg.hashsalt": "unified_clip", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

Entry = Mapping[str, Any]


def ratios(data: Mapping[str, Any], path: Path) -> None:
    entries = [entry for entry in data["results"] if entry["what"] != "norm alone" and entry["ratio"]]
    names, dtypes, frameworks = (_unique(entries, key) for key in ("list", "dtype", "framework"))
    series = {name: _unique([each for each in entries if each["framework"] == name], "native") for name in frameworks}
    heights = [len(names) * (len(natives) + 1) for natives in series.values()]
    with mpl.rc_context(STYLE):
        figure = Figure((9, 1.5 + 1.1 * len(frameworks) + 0.1 * sum(heights)), layout="constrained")
        grid = figure.subplots(
            max(1, len(frameworks)), max(1, len(dtypes)),
            sharex=True, sharey="row", squeeze=False, height_ratios=heights or [1],
        )  # fmt: skip
        for framework, panels in zip(frameworks, grid, strict=False):
            own = [entry for entry in entries if entry["framework"] == framework]
            for dtype, axes in zip(dtypes, panels, strict=False):
                _ratio_panel(axes, [entry for entry in own if entry["dtype"] == dtype], names, series[framework])
                axes.set_title(f"{framework}, {dtype}", loc="left", fontweight="bold")
            keys = [_key(native, COLOURS[framework], MARKERS[index]) for index, native in enumerate(series[framework])]
            place: Any = {"loc": "upper left", "bbox_to_anchor": (0, 0)}
            if framework == frameworks[-1]:  # the numbers of the axis are there
                place = {"loc": "best"}
            panels[0].legend(handles=keys, frameon=False, fontsize=7, **place)
        for axes in grid[-1]:
            axes.set_xlabel("times as fast as the framework's function\n(above 1, unified_clip is faster)")
        handles = [_key("clipped", "black", "o"), _key("not clipped", "black", "o", hollow=True)]
        figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False)
        _save(figure, path)


def _ratio_panel(axes: Axes, entries: Sequence[Entry], names: Sequence[str], natives: Sequence[str]) -> None:
    step = len(natives) + 1
    for entry in entries:
        index = natives.index(entry["native"])
        clipped = entry["what"].startswith("clipped")
        row = names.index(entry["list"]) * step + index + (-0.15 if clipped else 0.15)
        low, median, high = entry["ratio"]
        colour = COLOURS[entry["framework"]]
        axes.errorbar(
            median, row, xerr=[[median - low], [high - median]], color=colour, elinewidth=1.2,
            fmt=MARKERS[index], markersize=4.5, markerfacecolor=colour if clipped else "white",
        )  # fmt: skip
    if not entries:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="#666666")
    axes.axvline(1, color="black", linewidth=0.8)
    for border in range(1, len(names)):
        axes.axhline(border * step - 1, color="#dddddd", linewidth=0.8)
    axes.set_yticks([number * step + (len(natives) - 1) / 2 for number in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) * step - 1, -1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)


def growth(data: Mapping[str, Any], path: Path) -> None:
    titles = {"elements": "elements of one tensor", "tensors": "tensors of 100 elements"}
    frameworks = _unique(data["growth"], "framework")
    with mpl.rc_context(STYLE):
        figure = Figure((9, 4.2), layout="constrained")
        for axes, (along, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
            for framework in frameworks:
                points = [p for p in data["growth"] if p["framework"] == framework and p["along"] == along]
                counts = [point["count"] for point in points]
                for key, line in LINES.items():
                    medians = [point[key][1] if point[key] else math.nan for point in points]
                    axes.plot(counts, medians, line, color=COLOURS[framework], marker=".")
            axes.set(xscale="log", yscale="log", xlabel=title)
            axes.grid(color="#eeeeee")
            axes.set_axisbelow(True)
        figure.axes[0].set_ylabel("milliseconds to clip float32 (lower is better)")
        handles = [Line2D([], [], color=COLOURS[name], label=name) for name in frameworks]
        handles += [
            Line2D([], [], color="black", ls=line, label=label)
            for label, line in zip(SIDES, LINES.values(), strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False)
        _save(figure, path)


def _unique(entries: Sequence[Entry], key: str) -> list[str]:
    return list(dict.fromkeys(entry[key] for entry in entries))


def _key(label: str, colour: str, marker: str, hollow: bool = False) -> Line2D:
    face = "white" if hollow else colour
    return Line2D([], [], color=colour, marker=marker, markersize=4.5, markerfacecolor=face, linestyle="", label=label)


def _save(figure: Figure, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    atomic_files.write(path, image.getvalue())
