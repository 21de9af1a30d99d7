"""Draw the plots of a benchmark as SVG. Equal results give equal bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

COLOURS = {
    "torch": "#d1422a",
    "tensorflow": "#e69f00",
    "paddle": "#2757c4",
    "jax": "#1b9e77",
    "numpy": "#6b6b6b",
}
MARKERS = "oDs^"
"""The marker of each function of a framework, in order."""

LINES: Any = {"ours_ms": "-", "native_ms": "--"}

STYLE: Any = {"svg.hashsalt": "unified_clip", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

Entry = Mapping[str, Any]


def ratios(data: Mapping[str, Any], path: Path) -> None:
    """Plot the ratios of times to a file: a panel for each dtype, a group of rows for each list."""
    entries = [entry for entry in data["results"] if entry["what"] != "norm alone" and entry["ratio"]]
    names, dtypes = _unique(entries, "list"), _unique(entries, "dtype")
    series = list(dict.fromkeys((entry["framework"], entry["native"]) for entry in entries))
    rows = len(names) * (len(series) + 1)
    with mpl.rc_context(STYLE):
        figure = Figure((9, 2.0 + 0.13 * rows), layout="constrained")
        panels = figure.subplots(1, max(1, len(dtypes)), sharex=True, sharey=True, squeeze=False)[0]
        for dtype, axes in zip(dtypes, panels, strict=False):
            _ratio_panel(axes, [entry for entry in entries if entry["dtype"] == dtype], names, series)
            axes.set_title(dtype)
        handles = [_key(native, COLOURS[name], _marker(series, index)) for index, (name, native) in enumerate(series)]
        handles += [_key("clipped", "black", "o"), _key("not clipped", "black", "o", hollow=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
        _save(figure, path)


def _ratio_panel(axes: Axes, entries: Sequence[Entry], names: Sequence[str], series: Sequence[tuple[str, str]]) -> None:
    step = len(series) + 1
    for entry in entries:
        index = series.index((entry["framework"], entry["native"]))
        clipped = entry["what"].startswith("clipped")
        row = names.index(entry["list"]) * step + index + (-0.15 if clipped else 0.15)
        low, median, high = entry["ratio"]
        colour = COLOURS[entry["framework"]]
        axes.errorbar(
            median, row, xerr=[[median - low], [high - median]], color=colour, elinewidth=1.2,
            fmt=_marker(series, index), markersize=4.5, markerfacecolor=colour if clipped else "white",
        )  # fmt: skip
    axes.axvline(1, color="black", linewidth=0.8)
    for border in range(1, len(names)):
        axes.axhline(border * step - 1, color="#dddddd", linewidth=0.8)
    axes.set_yticks([number * step + (len(series) - 1) / 2 for number in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) * step - 1, -1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.set_xlabel("time of the framework's function / time of unified_clip")


def growth(data: Mapping[str, Any], path: Path) -> None:
    """Plot the time by number of elements, and by number of tensors, to a file."""
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
        figure.axes[0].set_ylabel("milliseconds, clipped, float32")
        handles = [Line2D([], [], color=COLOURS[name], label=name) for name in frameworks]
        handles += [Line2D([], [], color="black", ls=line, label=key[:-3]) for key, line in LINES.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False)
        _save(figure, path)


def _unique(entries: Sequence[Entry], key: str) -> list[str]:
    return list(dict.fromkeys(entry[key] for entry in entries))


def _marker(series: Sequence[tuple[str, str]], index: int) -> str:
    framework = series[index][0]
    return MARKERS[[earlier for earlier, _ in series[:index]].count(framework)]


def _key(label: str, colour: str, marker: str, hollow: bool = False) -> Line2D:
    face = "white" if hollow else colour
    return Line2D([], [], color=colour, marker=marker, markersize=4.5, markerfacecolor=face, linestyle="", label=label)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
