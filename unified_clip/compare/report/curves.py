"""Reduce a recorded run to curves with few points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..._kit.report_model import Real, ReportModel
from ...recording.recorded_run import OptimizerStep, RecordedCall

Item = TypeVar("Item")

MOST_COLUMNS = 640
"""The largest number of points in a curve. In longer runs, a point combines neighbouring steps."""


class Point(ReportModel):
    """A point of a curve: the numbers at one step, or at several neighbouring steps."""

    step: int
    """The first step of the point."""

    low: Real | None
    high: Real | None
    """`low` and `high` are the smallest and the largest finite number, or null if no number is finite."""

    not_finite: int
    """The number of values that are NaN or infinite."""


class ClipPoint(Point):
    """A point of a curve of norms: the norms at one step, or at several neighbouring steps."""

    threshold: Real | None
    """The latest finite threshold at these steps, or null if no threshold is finite."""

    clipped: int
    """The number of calls that clipped a gradient."""

    calls: int


def clip_points(calls: Sequence[RecordedCall]) -> list[ClipPoint]:
    points = []
    for group in _groups((call.step, call) for call in calls):
        thresholds = [call.threshold for call in group if isinstance(call.threshold, float)]
        finite = [threshold for threshold in thresholds if math.isfinite(threshold)]
        point = _point(group[0].step, [norm for call in group for norm in call.norms()])
        clipped = sum(bool(call.clipped) for call in group)
        points.append(
            ClipPoint(**point.model_dump(), threshold=finite[-1] if finite else None, clipped=clipped, calls=len(group))
        )
    return points


def number_points(numbers: Iterable[tuple[int, float]]) -> list[Point]:
    groups = _groups((step, (step, number)) for step, number in numbers)
    return [_point(group[0][0], [number for _, number in group]) for group in groups]


def learning_rates(steps: Sequence[OptimizerStep]) -> list[Point]:
    rates = [(step.step, step.settings.get("lr")) for step in steps]
    listed = ((step, rate if isinstance(rate, tuple) else [rate]) for step, rate in rates if rate is not None)
    return number_points((step, float(rate)) for step, of_groups in listed for rate in of_groups)


def _point(step: int, numbers: Sequence[float]) -> Point:
    finite = [number for number in numbers if math.isfinite(number)]
    low, high = (min(finite), max(finite)) if finite else (None, None)
    return Point(step=step, low=low, high=high, not_finite=len(numbers) - len(finite))


def _groups(items: Iterable[tuple[int, Item]]) -> list[list[Item]]:
    by_step: dict[int, list[Item]] = {}
    for step, item in items:
        by_step.setdefault(step, []).append(item)
    steps = sorted(by_step)
    size = max(1, -(-len(steps) // MOST_COLUMNS))
    parts = (steps[start : start + size] for start in range(0, len(steps), size))
    return [[item for step in part for item in by_step[step]] for part in parts]
