"""The time that an adaptive threshold adds to a clip with a fixed one, on NumPy: python benchmarks/adaptive_overhead.py

Both clip the same gradients in turn, so that a slow phase of the machine slows both. Nothing exceeds the thresholds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from unified_clip import ClipConfig
from unified_clip.bench import lists

RULES: dict[str, dict[str, Any]] = {
    "zclip": {"rule": "zclip"},
    "ema_ratio": {"rule": "ema_ratio"},
    "percentile of 1000": {"rule": "percentile", "window": 1000, "percent": 100},
}


def measure(shapes: Sequence[tuple[int, ...]], repeats: int) -> dict[str, tuple[float, float]]:
    """Return (microseconds that a rule adds, ratio of the times) by rule: medians."""
    gradients = [np.full(shape, 1e-3, np.float32) for shape in shapes]
    clips = {"fixed": ClipConfig(rule="global_norm", threshold=1e9, family="paddle").clipper()}
    for name, rule in RULES.items():
        clips[name] = ClipConfig(rule="global_norm", family="paddle", adaptive=rule).clipper()
    times: dict[str, list[float]] = {name: [] for name in clips}
    for _ in range(repeats):
        for name, clip in clips.items():
            start = time.perf_counter()
            clip.clip_(gradients)
            times[name].append(1e6 * (time.perf_counter() - start))
    fixed = statistics.median(times["fixed"])
    return {name: (statistics.median(times[name]) - fixed, statistics.median(times[name]) / fixed) for name in RULES}


if __name__ == "__main__":
    for title, shapes, repeats in (("10 of 10 x 10", [(10, 10)] * 10, 2000), ("ResNet-50", lists.resnet50(), 200)):
        for name, (added, ratio) in measure(shapes, repeats).items():
            print(f"{title}, {name}: {added:+.1f} microseconds, {100 * (ratio - 1):+.2f} %")
