"""Plot a recorded training run: norm and threshold at each step, and the clipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from markupsafe import Markup

from ...recording.runs import RecordedCall
from .svg import LEFT, RIGHT, TOP, WIDTH, figure, line, power_of_ten, tag, text

MOST_COLUMNS = 640
"""The plot has at most this many columns. With more steps than that, neighbouring steps share a column."""

MOST_DOTS = 160
"""With more columns than this, clipped steps are marked below the curve, but not on it."""

HEIGHT, FLOOR = 300, 226

Place = Callable[[float], float]


@dataclass(frozen=True)
class Column:
    """The calls that are drawn at one x coordinate: a step, or several neighbouring steps."""

    step: float
    norms: Sequence[float]
    threshold: float | None
    clipped: int
    calls: int

    @property
    def finite(self) -> list[float]:
        return [norm for norm in self.norms if math.isfinite(norm)]


def plot(calls: Sequence[RecordedCall]) -> Markup | None:
    """Return the plot of recorded calls. None if no norm or threshold is above 0."""
    columns = _columns(calls)
    values = [value for each in columns for value in (*each.finite, each.threshold or 0) if value > 0]
    if not values:
        return None
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high += high == low
    first, last = columns[0].step, columns[-1].step

    def x(step: float) -> float:
        return LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * (step - first) / max(1, last - first)

    def at(power: float) -> float:
        return FLOOR - (FLOOR - TOP - 14) * (power - low) / (high - low)

    def y(value: float) -> float:
        return at(math.log10(value) if value > 0 else low)

    children = [*_axes(columns, low, high, at), *_curves(columns, x, y), *_marks(columns, x, y), *_key()]
    return figure("record", "Norm and threshold at each step of the recorded run", HEIGHT, children)


def _axes(columns: Sequence[Column], low: int, high: int, at: Place) -> Iterator[Markup]:
    yield line(LEFT, FLOOR, WIDTH - RIGHT, FLOOR, "axis")
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        yield line(LEFT, at(power), WIDTH - RIGHT, at(power), "grid")
        yield text(LEFT - 8, at(power) + 4, power_of_ten(power), "end")
    yield text(LEFT - 8, FLOOR + 20, "clipped", "end")
    yield text(LEFT, FLOOR + 36, f"step {columns[0].step:g}", "start")
    yield text(WIDTH - RIGHT, FLOOR + 36, f"step {columns[-1].step:g}", "end")
    clipped, calls = sum(each.clipped for each in columns), sum(each.calls for each in columns)
    yield text((LEFT + WIDTH - RIGHT) / 2, FLOOR + 36, f"{clipped} of {calls} calls clipped", class_="heading")


def _curves(columns: Sequence[Column], x: Place, y: Place) -> Iterator[Markup]:
    """Yield the curve of each column's largest norm, the band from there to its smallest norm, and the threshold."""
    highest = [(x(each.step), y(max(each.finite))) for each in columns if each.finite]
    lowest = [(x(each.step), y(min(each.finite))) for each in reversed(columns) if each.finite]
    limits = [(x(each.step), y(each.threshold)) for each in columns if each.threshold is not None]
    # Each value lasts until the next one: a threshold changes at a step, not between two.
    corners = [(next_across, down) for (_, down), (next_across, _) in pairwise(limits)]
    stairs = [point for pair in zip_longest(limits, corners) for point in pair if point is not None]
    for class_, points in (("band", [*highest, *lowest]), ("norm", highest), ("threshold", stairs)):
        if points:
            yield tag("path", d="M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in points), class_=class_)


def _marks(columns: Sequence[Column], x: Place, y: Place) -> Iterator[Markup]:
    """Yield a mark for each clipped step, and for each norm that is not finite."""
    for each in columns:
        if each.clipped:
            yield line(x(each.step), FLOOR + 10, x(each.step), FLOOR + 20, "clipped")
        if each.clipped and each.finite and len(columns) <= MOST_DOTS:
            words = tag("title", f"step {each.step:g}: norm {max(each.finite):.6g}, threshold {each.threshold}")
            yield tag("circle", words, cx=x(each.step), cy=y(max(each.finite)), r=3.5, class_="clip")
        if len(each.finite) < len(each.norms):
            words = tag("title", f"step {each.step:g}: the norm is not finite")
            yield tag("g", words, text(x(each.step), TOP + 6, "x", class_="infinite"))


def _key() -> Iterator[Markup]:
    for across, name in ((LEFT, "norm"), (LEFT + 90, "threshold")):
        yield line(across, HEIGHT - 6, across + 24, HEIGHT - 6, name)
        yield text(across + 30, HEIGHT - 2, name, "start")


def _columns(calls: Sequence[RecordedCall]) -> list[Column]:
    """Return a column for each step, or for groups of neighbouring steps if there are many."""
    size = max(1, -(-len({call.step for call in calls}) // MOST_COLUMNS))
    groups: dict[int, list[RecordedCall]] = {}
    for call in calls:
        groups.setdefault(call.step // size, []).append(call)
    columns = []
    for _, group in sorted(groups.items()):
        thresholds = [call.threshold for call in group if isinstance(call.threshold, float)]
        finite = [threshold for threshold in thresholds if math.isfinite(threshold)]
        norms = [norm for call in group for norm in call.norms()]
        clipped = sum(bool(call.clipped) for call in group)
        columns.append(Column(group[0].step, norms, finite[-1] if finite else None, clipped, len(group)))
    return columns
