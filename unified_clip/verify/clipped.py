"""What a clip call has made of the gradients that a recording has stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..tensors.arithmetic import nearest_float
from ..tensors.files import safetensors
from ..tensors.types import Dense, encode

Line = dict[str, Any]
"""As a recording has it, with its gradients by name under `parameters`."""


def clipped(line: Line, directory: Path) -> dict[str, Dense]:
    """The gradients after a call, by their names in the recording; none where they were not stored."""
    if "after" in line:
        return safetensors.load(directory / line["after"])
    if not line.get("gradients"):
        return {}
    stored = safetensors.load(directory / line["gradients"])
    if line["rule"] == "value" and line["threshold"]:
        return {name: _bounded(each, *line["threshold"]) for name, each in stored.items()}
    coefs = zip(line["parameters"], each_coefficient(line), strict=False)
    return {name: _product(stored[name], coef) for name, coef in coefs if name in stored}


def each_coefficient(line: Line) -> list[float]:
    """One for each gradient of a line, where they have one."""
    count = len(line["parameters"])
    coefs = line["coef"] if isinstance(line["coef"], list) else [line["coef"]] * count
    return coefs if len(coefs) == count and line["rule"] in ("global", "each") else []


def _product(tensor: Dense, coef: float) -> Dense:
    """As ours compute it: in float32, but for float64."""
    if tensor.dtype == "float64":
        return encode(tensor.values() * coef, tensor.dtype)
    product = (tensor.values() * float(np.float32(coef))).astype(np.float32)
    return encode(product.astype(np.float64), tensor.dtype)


def _bounded(tensor: Dense, low: float, high: float) -> Dense:
    bounds = [nearest_float(each, tensor.dtype) for each in (low, high)]
    return encode(np.clip(tensor.values(), bounds[0], bounds[1]), tensor.dtype)
