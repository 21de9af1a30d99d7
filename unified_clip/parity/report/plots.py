"""Draw the plots of the HTML page as SVG."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from ..._page.svg import LEFT, RIGHT, TOP, WIDTH, figure, line, power_of_ten, tag, text
from ..elements import SIDES, Side
from ..results import ParityReport, Result

BINS = ["0", "1", "2 to 9", "10s", "100s", *(f"≥ 10{digit}" for digit in "³⁴⁵⁶⁷⁸⁹"), "not finite"]

SHAPES: Mapping[str, Callable[[float, float], str]] = defaultdict(
    lambda: lambda x, y: f"M{x - 3.5:.1f} {y:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    {
        "tensorflow": lambda x, y: f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        "paddle": lambda x, y: f"M{x:.1f} {y - 4.2:.1f}l4.2 7.4h-8.4z",
        "jax": lambda x, y: f"M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
    },
)


def plot_ulps(report: ParityReport) -> Markup | None:
    sides: tuple[Side, ...] = ("ours", "native")
    rows = [(name, side, _distances(report, name, side)) for side in sides for name in report.frameworks]
    rows = [(name, side, counts) for name, side, counts in rows if counts]
    if not rows:
        return None
    height, step = 44, (WIDTH - LEFT - RIGHT) / len(BINS)
    most = max(max(counts.values()) for _, _, counts in rows)
    children = []
    for index, (name, side, counts) in enumerate(rows):
        floor = TOP + 20 + (index + 1) * height + (26 if side == "native" else 0)
        title = name if side == "ours" else report.titles.get(name, name)
        if index == 0 or rows[index - 1][1] != side:
            heading = "unified_clip, all modes" if side == "ours" else "the frameworks' functions"
            children.append(text(4, floor - height - 4, heading, "start", class_="heading"))
        children += [text(LEFT - 8, floor - 4, title, "end"), line(LEFT, floor, WIDTH - RIGHT, floor, "axis")]
        for place, count in sorted(counts.items()):
            tall = 3 + (height - 24) * math.log(count + 1) / math.log(most + 1)
            x = LEFT + place * step
            words = f"{title}, {SIDES[side]}: {count} results, {BINS[place]} ULP"
            bar = tag("rect", tag("title", words), x=x + 5, y=floor - tall, width=step - 10, height=tall)
            children += [tag("g", bar, class_=f"bar {name}"), text(x + step / 2, floor - tall - 3, f"{count}")]
    floor += 16
    children += [text(LEFT + (place + 0.5) * step, floor, words) for place, words in enumerate(BINS)]
    children.append(
        text((LEFT + WIDTH - RIGHT) / 2, floor + 18, "distance from the exact result, in units in the last place")
    )
    return figure("histogram", "Histogram of the distances from the exact results", int(floor + 26), children)


def _distances(report: ParityReport, framework: str, side: Side) -> Counter[int]:
    bins = Counter[int]()
    results: Sequence[tuple[str, Result]] = report.natives() if side == "native" else report.results()
    for name, result in results:
        # The distance at the first stage that differs. A result without numbers to compare counts only if it agrees.
        number = result.details and (result.details.native if side == "native" else result.details.ours)
        if name == framework and (number or (not result.details and result.verdict in ("equal", "close"))):
            bins[_bin(number.ulps if number else 0.0)] += 1
    return bins


def _bin(distance: float) -> int:
    if not math.isfinite(distance):
        return len(BINS) - 1
    if distance < 2:
        return math.ceil(distance)
    return min(2 + int(math.log10(distance)), len(BINS) - 2)


class NormPoint(NamedTuple):
    framework: str
    elements: int
    error: float
    case: str


def plot_norms(report: ParityReport) -> Markup | None:
    points = [
        NormPoint(framework, case.elements, native.norm, case.name)
        for case in report.cases
        for framework, native in case.natives.items()
        if native.norm is not None and case.elements
    ]
    if not points:
        return None
    height, floor, ceiling = 330, 262, TOP + 26
    most = max(1, math.ceil(math.log10(max(point.elements for point in points))))
    low, high = -10, 2

    def x(elements: float) -> float:
        return LEFT + 12 + (WIDTH - LEFT - RIGHT - 24) * math.log10(elements) / most

    def y(error: float) -> float:
        if not math.isfinite(error):
            return TOP + 6
        power = max(low, min(high, math.log10(error))) if error else low
        return floor - (floor - ceiling) * (power - low) / (high - low)

    children = [text(LEFT - 8, y(math.inf) + 4, "inf or NaN", "end"), text(LEFT - 8, y(0) + 4, "none", "end")]
    for power in range(low, high + 1, 2):
        children.append(line(LEFT, y(10.0**power), WIDTH - RIGHT, y(10.0**power), "axis" if power == low else "grid"))
        if power > low:
            children.append(text(LEFT - 8, y(10.0**power) + 4, power_of_ten(power), "end"))
    for power in range(most + 1):
        children.append(text(x(10.0**power), floor + 18, power_of_ten(power)))
    for error, words in ((2.0**-24, "half a unit in the last place of float32"), (1e-5, "larger: a known difference")):
        children.append(line(LEFT, y(error), WIDTH - RIGHT, y(error), "limit"))
        children.append(text(WIDTH - RIGHT, y(error) - 4, words, "end", class_="note"))
    children += _marks(points, x, y)
    children.append(text((LEFT + WIDTH - RIGHT) / 2, floor + 36, "elements of the list"))
    children += _key(
        [name for name in report.frameworks if any(point.framework == name for point in points)], report, height
    )
    words = "Relative error of the norm by the number of elements, for the functions of each framework"
    return figure("norms", words, height, children)


def _marks(points: Sequence[NormPoint], x: Callable[[float], float], y: Callable[[float], float]) -> Iterator[Markup]:
    """Points of one framework at the same pixel share a mark."""
    places: dict[tuple[str, int, int], list[NormPoint]] = {}
    for point in points:
        places.setdefault((point.framework, round(x(point.elements)), round(y(point.error))), []).append(point)
    for (framework, across, down), group in places.items():
        first = group[0]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        words = f"{framework}: relative error {first.error:.2g}, {first.elements} elements: {first.case}{more}"
        yield tag("path", tag("title", words), d=SHAPES[framework](across, down), class_=f"mark {framework}")


def _key(frameworks: Sequence[str], report: ParityReport, height: int) -> Iterator[Markup]:
    for index, name in enumerate(frameworks):
        across = LEFT + 12 + index * 150
        yield tag("path", d=SHAPES[name](across, height - 14), class_=f"mark {name}")
        yield text(across + 10, height - 10, report.titles.get(name, name), "start")
