"""Measure the processor time that an adaptive threshold adds to a clip: python benchmarks/adaptive_overhead.py

All clips take turns on the same gradients of NumPy, or of PyTorch with `--torch`. No norm exceeds its threshold. With
`--clipped`, nearly all norms do. Each number is a difference of 10th percentiles, which other processes disturb little.
The numbers in parentheses are differences of medians.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from unified_clip import ClipConfig
from unified_clip.bench import lists
from unified_clip.config.clipper import Clipper

RULES: dict[str, dict[str, Any]] = {
    "zclip": {"rule": "zclip"},
    "ema_ratio": {"rule": "ema_ratio"},
    "percentile of 100": {"rule": "percentile", "window": 100, "percent": 100},
    "percentile of 1000": {"rule": "percentile", "window": 1000, "percent": 100},
}
STEADY: dict[str, dict[str, Any]] = {
    "zclip": {"alpha": 1.0},
    "ema_ratio": {"alpha": 1.0, "ratio": 1.0},
    "percentile of 100": {"include_current": False, "percent": 0},
    "percentile of 1000": {"include_current": False, "percent": 0},
}
"""With these settings, nearly all norms exceed their thresholds if they are `CLIPPED` times larger."""

FIXED = "a fixed threshold"

CLIPPED = 3.0

WARM_UP = 30
"""Calls before the first round: every rule is after its warm-up."""

FACTORS = 0.8, 1.2
"""The range of the norms, relative to the norm of the first round."""

LISTS: dict[str, tuple[Sequence[tuple[int, ...]], int, int]] = {
    "10 of 10 x 10": ([(10, 10)] * 10, 300, 10),
    "ResNet-50": (lists.resnet50(), 40, 2),
    "500 of 10 x 10": ([(10, 10)] * 500, 40, 3),
}
"""{name of the list: (shapes, number of rounds, calls in a round)}"""


def gradients(shapes: Sequence[tuple[int, ...]], *, on_torch: bool) -> tuple[Any, Any]:
    """Return (the gradients, the argument of `clip_`)."""
    random = np.random.default_rng(0)
    arrays = [random.normal(0.0, 1e-3, shape).astype(np.float32) for shape in shapes]
    if not on_torch:
        return arrays, arrays
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter, array in zip(parameters, arrays, strict=True):
        parameter.grad = torch.from_numpy(array)
    return arrays, parameters


def fill_window(clip: Clipper, length: int) -> None:
    state = clip.state_dict()
    norms = np.random.default_rng(1).uniform(*FACTORS, length) * clip.last.norm
    state["adaptive"][""]["state"] = {"steps": float(length), "norms": norms.tolist()}
    clip.load_state_dict(state)


def measure(
    shapes: Sequence[tuple[int, ...]], rounds: int, calls: int, *, on_torch: bool = False, clipped: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return {rule: (added microseconds, ratios)}, each at the 10th percentile and the median."""
    arrays, clip_input = gradients(shapes, on_torch=on_torch)
    first, random = [array.copy() for array in arrays], np.random.default_rng(2)
    limit = float(np.linalg.norm([np.linalg.norm(array) for array in arrays])) if clipped else 1e9
    clips = {FIXED: ClipConfig(rule="global_norm", threshold=limit, family="paddle").clipper()}
    for name, rule in RULES.items():
        settings = {**rule, **(STEADY[name] if clipped else {})}
        clips[name] = ClipConfig(rule="global_norm", family="paddle", adaptive=settings).clipper()
    for _ in range(WARM_UP):
        factor = np.float32(random.uniform(*FACTORS))
        for clip in clips.values():
            put(arrays, [factor * array for array in first])
            clip.clip_(clip_input)
    for name, rule in RULES.items():
        if "window" in rule:
            fill_window(clips[name], rule["window"])
    times: dict[str, list[float]] = {name: [] for name in clips}
    changed = dict.fromkeys(clips, 0)
    for _ in range(rounds):
        factor = np.float32(random.uniform(*FACTORS) * (CLIPPED if clipped else 1.0))
        values = [factor * array for array in first]
        for name, clip in clips.items():
            for _ in range(calls):
                put(arrays, values)
                start = time.process_time()
                clip.clip_(clip_input)
                times[name].append(1e6 * (time.process_time() - start))
            changed[name] += clip.last.clipped is True
    if any(count < 0.8 * rounds if clipped else count for count in changed.values()):
        raise SystemExit(f"of {rounds} rounds, these were clipped: {changed}")
    typical = {name: np.percentile(values, (10, 50)) for name, values in times.items()}
    return {name: (typical[name] - typical[FIXED], typical[name] / typical[FIXED]) for name in RULES}


def put(arrays: Sequence[Any], values: Sequence[Any]) -> None:
    for array, value in zip(arrays, values, strict=True):
        np.copyto(array, value)


def main() -> None:
    for title, (shapes, rounds, calls) in LISTS.items():
        options = {"on_torch": "--torch" in sys.argv, "clipped": "--clipped" in sys.argv}
        for name, (added, ratios) in measure(shapes, rounds, calls, **options).items():
            shares = 100 * (ratios - 1)
            print(
                f"{title}, {name}: {added[0]:+.1f} microseconds, {shares[0]:+.2f} % "
                f"({added[1]:+.1f} microseconds, {shares[1]:+.2f} %)"
            )


if __name__ == "__main__":
    main()
