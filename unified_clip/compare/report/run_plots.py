"""Plot two recorded runs by step, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from markupsafe import Markup

from ..._page.svg import LEFT, RIGHT, TOP, WIDTH, figure, line, power_of_ten, tag, text
from .curves import ClipPoint, Point

MOST_DOTS = 160
"""With more points, the curve has no dots at clipped steps."""

FLOOR = 226  # pixels from the top of the plot to the x axis

ROW = 16

NAMES = ("A", "B")

CLASSES = ("run-a", "run-b")

LOGARITHMIC = 50
"""The y axis is logarithmic if min > 0 and max > LOGARITHMIC * min."""

LEAST_DISTANCE = 1e-9

Curve = Sequence[Point]


@dataclass(frozen=True)
class Frame:
    first: int
    last: int
    low: float
    high: float
    """`low` and `high` are exponents of ten if the y axis is logarithmic."""

    logarithmic: bool

    def x(self, step: float) -> float:
        return LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * (step - self.first) / max(1, self.last - self.first)

    def y(self, number: float) -> float:
        if self.logarithmic:
            return self.at(math.log10(number) if number > 0 else self.low)
        return self.at(number)

    def at(self, number: float) -> float:
        return FLOOR - (FLOOR - TOP - 14) * (max(number, self.low) - self.low) / (self.high - self.low)

    def ticks(self) -> Iterator[tuple[float, str]]:
        if self.logarithmic:
            low, high = round(self.low), round(self.high)
            powers = range(low, high + 1, max(1, (high - low) // 6))
            yield from ((self.at(power), power_of_ten(power)) for power in powers)
            return
        for part in range(5):
            number = self.low + (self.high - self.low) * part / 4
            yield self.at(number), f"{number:.4g}"


def clips(runs: Sequence[Sequence[ClipPoint]], marked_steps: Sequence[int] = ()) -> Markup | None:
    numbers = [number for run in runs for each in run for number in (each.low, each.high, each.threshold)]
    frame = _frame(runs, [number for number in numbers if number is not None and number > 0], logarithmic=True)
    if frame is None:
        return None
    foot = FLOOR + 4 + ROW * len(runs)
    children = [*_axes(frame, foot), *_marked(frame, marked_steps)]
    counts = []
    for index, (name, class_, run) in enumerate(zip(NAMES, CLASSES, runs, strict=False)):
        top = FLOOR + 6 + ROW * index
        children.append(tag("g", *_clip_curves(run, frame), *_clip_marks(run, frame, top), class_=class_))
        children.append(text(LEFT - 8, top + 10, f"{name} clipped", "end"))
        clipped, calls = sum(each.clipped for each in run), sum(each.calls for each in run)
        counts.append(f"{name}: {clipped} of {calls} calls clipped")
    children.append(text((LEFT + WIDTH - RIGHT) / 2, foot + 16, ", ".join(counts), class_="heading"))
    return figure("record", "Norm and threshold at each step", foot + 22, children)


def numbers(name: str, runs: Sequence[Curve], marked_steps: Sequence[int] = ()) -> Markup | None:
    finite = [number for run in runs for each in run for number in (each.low, each.high) if number is not None]
    frame = _frame(
        runs, finite, logarithmic=bool(finite) and min(finite) > 0 and max(finite) > LOGARITHMIC * min(finite)
    )
    return None if frame is None else _lines(name, runs, frame, marked_steps, CLASSES)


def distances(name: str, curve: Curve, marked_steps: Sequence[int] = ()) -> Markup | None:
    differing = [each.high for each in curve if each.high] + [1.0 for each in curve if each.not_finite]
    if not differing:
        return None
    frame = _frame([curve], [LEAST_DISTANCE, 1.0, max(differing)], logarithmic=True)
    assert frame is not None
    return _lines(name, [curve], frame, marked_steps, ["distance"])


def _lines(
    name: str, runs: Sequence[Curve], frame: Frame, marked_steps: Sequence[int], classes: Sequence[str]
) -> Markup:
    foot = FLOOR + 4
    children = [*_axes(frame, foot), *_marked(frame, marked_steps)]
    for class_, run in zip(classes, runs, strict=True):
        children.append(tag("g", *_curves(run, frame), *_not_finite(run, frame, name), class_=class_))
    return figure(f"plot-{name.replace(' ', '-')}", f"{name} at each step", foot + 22, children)


def _frame(runs: Sequence[Curve], finite: Sequence[float], *, logarithmic: bool) -> Frame | None:
    steps = [each.step for run in runs for each in run]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if logarithmic:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        high += high == low
    elif high == low:
        low, high = low - (abs(low) or 1.0), high + (abs(high) or 1.0)
    return Frame(min(steps), max(steps), low, high, logarithmic)


def _axes(frame: Frame, foot: float) -> Iterator[Markup]:
    yield line(LEFT, FLOOR, WIDTH - RIGHT, FLOOR, "axis")
    for height, label in frame.ticks():
        yield line(LEFT, height, WIDTH - RIGHT, height, "grid")
        yield text(LEFT - 8, height + 4, label, "end")
    yield text(LEFT, foot + 16, f"step {frame.first}", "start")
    yield text(WIDTH - RIGHT, foot + 16, f"step {frame.last}", "end")


def _marked(frame: Frame, marked_steps: Sequence[int]) -> Iterator[Markup]:
    for index, step in enumerate(marked_steps):
        if not frame.first <= step <= frame.last:
            continue
        across = frame.x(step)
        words = tag("title", f"the runs differ at step {step}")
        yield tag("g", words, line(across, TOP, across, FLOOR, "parting"))
        if index == 0:
            is_left = across < (LEFT + WIDTH) / 2
            label = f"first difference: step {step}"
            yield text(across + (5 if is_left else -5), TOP + 8, label, "start" if is_left else "end", class_="first")


def _curves(run: Curve, frame: Frame) -> Iterator[Markup]:
    highest = [(frame.x(each.step), frame.y(each.high)) for each in run if each.high is not None]
    lowest = [(frame.x(each.step), frame.y(each.low)) for each in reversed(run) if each.low is not None]
    if highest:
        yield _path([*highest, *lowest], "band")
        yield _path(highest, "norm")
    if len(highest) == 1:
        yield tag("circle", cx=highest[0][0], cy=highest[0][1], r=2.5, class_="clip")


def _clip_curves(run: Sequence[ClipPoint], frame: Frame) -> Iterator[Markup]:
    yield from _curves(run, frame)
    limits = [(frame.x(each.step), frame.y(each.threshold)) for each in run if each.threshold is not None]
    # a threshold changes at a step, not between two steps
    corners = [(next_across, down) for (_, down), (next_across, _) in pairwise(limits)]
    if stairs := [point for pair in zip_longest(limits, corners) for point in pair if point is not None]:
        yield _path(stairs, "threshold")


def _path(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    return tag("path", d="M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in points), class_=class_)


def _clip_marks(run: Sequence[ClipPoint], frame: Frame, top: float) -> Iterator[Markup]:
    for each in run:
        if each.clipped:
            yield line(frame.x(each.step), top, frame.x(each.step), top + 10, "clipped")
        if each.clipped and each.high is not None and len(run) <= MOST_DOTS:
            words = tag("title", f"step {each.step}: norm {each.high:.6g}, threshold {each.threshold}")
            yield tag("circle", words, cx=frame.x(each.step), cy=frame.y(each.high), r=3.5, class_="clip")
    yield from _not_finite(run, frame, "the norm")


def _not_finite(run: Curve, frame: Frame, what: str) -> Iterator[Markup]:
    for each in run:
        if each.not_finite:
            words = tag("title", f"step {each.step}: {what} is not finite")
            yield tag("g", words, text(frame.x(each.step), TOP + 6, "x", class_="infinite"))
