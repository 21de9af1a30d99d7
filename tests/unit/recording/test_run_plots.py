"""The plots of recordings: norms, thresholds, clipped steps, losses and distances are at the right heights."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest

from unified_clip.compare.report import run_plots
from unified_clip.compare.report.curves import Point, clip_points, number_points
from unified_clip.recording.recorded_run import RecordedCall


def calls(lines: list[dict[str, Any]]) -> list[RecordedCall]:
    return [RecordedCall.model_validate({"call": "clip_grad_norm_", **line}) for line in lines]


CALLS = calls(
    [
        {"step": step, "threshold": 1.0, "norm": norm, "clipped": norm > 1}
        for step, norm in enumerate([0.5, 2.0, math.inf, 0.25, 4.0], 1)
    ]
)
"""Calls. Three of them are clipped."""


def ticks(plot: object) -> dict[str, float]:
    grid = re.findall(r'y1="([\d.]+)"[^>]*class="grid"></line><text[^>]*>([^<]+)</text>', str(plot))
    return {label: float(height) for height, label in grid}


def heights(plot: object) -> list[float]:
    path = re.findall(r'<path d="M([^"]+)" class="norm"', str(plot))[0]
    return [float(point.split()[1]) for point in path.split("L")]


def test_a_recorded_run_shows_norms_thresholds_and_which_steps_were_clipped() -> None:
    plot = str(run_plots.clips([clip_points(CALLS)]))
    assert "3 of 5 calls clipped" in plot
    assert plot.count('class="clipped"') == 3
    assert plot.count("the norm is not finite") == 1
    assert run_plots.clips([[]]) is None


def test_a_threshold_changes_at_a_step_and_not_between_two() -> None:
    thresholds = [1.0, 1.0, 0.1, 0.1]
    lines = [{"step": step, "norm": 5.0, "threshold": limit} for step, limit in enumerate(thresholds, 1)]
    (path,) = re.findall(r'<path d="M([^"]+)" class="threshold"', str(run_plots.clips([clip_points(calls(lines))])))
    points = [tuple(map(float, point.split())) for point in path.split("L")]
    assert all(left[0] == right[0] or left[1] == right[1] for left, right in pairwise(points))
    assert len({down for _, down in points}) == 2


def test_a_loss_is_drawn_at_the_height_of_its_number() -> None:
    plot = run_plots.numbers("loss", [number_points(enumerate([1.0, 2.0, 3.0, 1.5], 1)), []])
    labels = ticks(plot)
    assert list(labels) == ["1", "1.5", "2", "2.5", "3"]
    assert heights(plot) == [labels["1"], labels["2"], labels["3"], labels["1.5"]]
    assert labels["1"] > labels["2"] > labels["3"], "y coordinates grow downwards"
    assert labels["1"] - labels["2"] == pytest.approx(labels["2"] - labels["3"], abs=0.11)


def test_a_distance_is_drawn_at_the_height_of_its_logarithm_and_none_below_the_least() -> None:
    distances = [1.0, 1e-3, 1e-9, 1e-12, 0.0]
    points = [Point(step=step, high=each, low=each, not_finite=0) for step, each in enumerate(distances, 1)]
    plot = run_plots.distances("norms", points)
    labels = ticks(plot)
    assert {"1", "10⁻⁹"} <= labels.keys()
    high, middle, *least = heights(plot)
    assert high == labels["1"]
    assert least == [labels["10⁻⁹"]] * 3
    assert middle == pytest.approx((2 * labels["1"] + labels["10⁻⁹"]) / 3, abs=0.11)
