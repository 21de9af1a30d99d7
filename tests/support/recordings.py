"""Lines of recordings, and comparisons of two runs with these lines, for tests of `unified-clip compare`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from unified_clip.compare.recordings import RecordingComparison, compare
from unified_clip.recording.recorded_run import OF_A_CLIP

HEADER = {"unified_clip": "0.1.0", "schema": 3, "started": "2026-01-01T00:00:00Z", "norms": True}

NORMS = {"a": 3.0, "b": 4.0, "c": 12.0}
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}
SHAPES = {"a": [4, 2], "b": [2, 4], "c": [8]}

NEW_NAMES = {"a": "x.weight", "b": "y.weight", "c": "z.bias"}


def write_recording(path: Path, lines: Iterable[dict[str, Any]], **header: Any) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in ({**HEADER, **header}, *map(complete, lines)))
    path.write_text(text.replace("Infinity", '"inf"'), encoding="utf-8")
    return path


def complete(line: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that every recording has, and that a test does not need."""
    if "optimizer" in line:
        return {"settings": {}, **line}
    return {**dict.fromkeys(OF_A_CLIP), "dtype": "float32", **line} if "rule" in line else line


def write_and_compare(
    folder: Path, a: Iterable[dict[str, Any]], b: Iterable[dict[str, Any]], **options: Any
) -> RecordingComparison:
    paths = write_recording(folder / "a.jsonl", a), write_recording(folder / "b.jsonl", b)
    return compare(*paths, **{"max_ulp": 0, **options})


def cause_kinds(comparison: RecordingComparison) -> list[str]:
    return [cause.kind for cause in comparison.findings]


def add_ulps(number: float, ulps: int) -> float:
    return float((np.float32(number).view(np.int32) + np.int32(ulps)).view(np.float32))


def clip_line(step: int, norms: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the line of a clip by the total norm of gradients with these norms, by default with the threshold 1."""
    norms = NORMS if norms is None else norms
    total = float(np.float32(math.hypot(*norms.values())))
    eps, threshold = changes.get("eps", 0.0), changes.get("threshold", 1.0)
    weights = changes.pop("weights", WEIGHTS)
    line = {
        "step": step, "call": "clip_by_global_norm", "framework": "numpy", "rule": "global", "threshold": threshold,
        "norm_type": 2.0, "eps": eps, "dtype": "float32", "norm": total, "coef": min(1.0, threshold / (total + eps)),
        "clipped": total > threshold, "nan": 0, "inf": 0, "seconds": 0.001,
        "parameters": {
            name: {"norm": norm, "shape": SHAPES.get(name, [8]), "weight": weights.get(name)}
            for name, norm in norms.items()
        },
    }  # fmt: skip
    return {**line, **changes}


def per_tensor_line(step: int, norms: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    norms = NORMS if norms is None else norms
    lists = {"norm": list(norms.values()), "coef": [min(1.0, 1 / norm) for norm in norms.values()]}
    return clip_line(step, norms, **{"rule": "each", "call": "GradientClipByNorm.clip_", **lists, **changes})


def clip_loop(
    step: int, norms: dict[str, float] | None = None, named: bool = True, **changes: Any
) -> list[dict[str, Any]]:
    norms = NORMS if norms is None else norms
    calls = [per_tensor_line(step, {name: norm}, call="clip_by_norm", **changes) for name, norm in norms.items()]
    return calls if named else [rename_parameters(call, {name: "0"}) for call, name in zip(calls, norms, strict=True)]


def manual_clip(clip: dict[str, Any], coef: float | list[float]) -> dict[str, Any]:
    """Return a clip of the same gradients by code without recorded settings: `coef` is seen in its results."""
    coefs = [float(np.float32(each)) for each in coef] if isinstance(coef, list) else float(np.float32(coef))
    return {**clip, "call": "by hand", "watched": True, "threshold": None, "eps": None, "coef": coefs}


def rename_parameters(clip: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {**clip, "parameters": {names[name]: values for name, values in clip["parameters"].items()}}


def step_line(step: int, **changes: Any) -> dict[str, Any]:
    return {"step": step, "optimizer": "torch.optim.Adam", "settings": {"lr": 0.1, "eps": 1e-8}, **changes}


def with_steps(clips: Iterable[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    return [line for clip in clips for line in (clip, step_line(clip["step"], **changes))]
