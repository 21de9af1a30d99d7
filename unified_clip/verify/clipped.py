"""Reconstruct the clipped gradients of recorded calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..tensors.arithmetic import nearest_float
from ..tensors.files import safetensors
from ..tensors.types import Dense, encode

Line = dict[str, Any]
"""A line of a recording. `parameters` has its gradients by name."""


def clipped_gradients(line: Line, directory: Path) -> dict[str, Dense]:
    """Return the gradients after a call, by their names in the recording; none if they were not stored."""
    if "after" in line:
        return safetensors.load(directory / line["after"])
    if not line.get("gradients"):
        return {}
    stored = safetensors.load(directory / line["gradients"])
    if line["rule"] == "value" and line["threshold"]:
        return {name: _bounded(each, *line["threshold"]) for name, each in stored.items()}
    coefs = zip(line["parameters"], coefficients(line), strict=False)
    return {name: _product(stored[name], coef) for name, coef in coefs if name in stored}


def coefficients(line: Line) -> list[float]:
    """Return the coefficient of each gradient of a line; none if the gradients have none."""
    count = len(line["parameters"])
    coefs = line["coef"] if isinstance(line["coef"], list) else [line["coef"]] * count
    return coefs if len(coefs) == count and line["rule"] in ("global", "each") else []


def _product(tensor: Dense, coef: float) -> Dense:
    """Multiply as unified_clip does: in float32, except for float64."""
    if tensor.dtype == "float64":
        return encode(tensor.values() * coef, tensor.dtype)
    product = (tensor.values() * float(np.float32(coef))).astype(np.float32)
    return encode(product.astype(np.float64), tensor.dtype)


def _bounded(tensor: Dense, low: float, high: float) -> Dense:
    bounds = [nearest_float(each, tensor.dtype) for each in (low, high)]
    return encode(np.clip(tensor.values(), bounds[0], bounds[1]), tensor.dtype)
