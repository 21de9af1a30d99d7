"""The dtype of recorded samples, which recordings do not name, and their loss scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..recording.recorded_run import RecordedCall, RecordedTable
from ..tensors.arithmetic import Float64s

UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""{dtype: the relative rounding error of one operation}."""

ENOUGH = 32
"""Fewer different numbers can have few bits by chance."""

ODD = 0.25
"""Of rounded numbers, half need the last bit of their dtype. Of differences of rounded numbers, such as the noise in
the gradient of a bias before BatchNorm, and of numbers such as 0.75, few need it."""

SMALLEST_FLOAT16 = 2.0**-14
"""Smaller numbers of float16 have fewer bits: they are small multiples of one number, as noise is."""


def dtype_of(arrays: Iterable[Float64s | None]) -> str:
    """Return the least precise dtype that has all numbers, and whose bits the numbers need."""
    found = [each for each in arrays if each is not None]
    numbers = np.unique(np.abs(np.concatenate(found))) if found else np.zeros(0)
    if len(numbers) < ENOUGH:
        return "float32"
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
        half = single.astype(np.float16)
    bits = single.view(np.uint32)
    if not (bits & 0xFFFF).any() and (bits >> 16 & 1).mean() >= ODD:
        return "bfloat16"
    normal = half[single >= SMALLEST_FLOAT16]
    needs_last_bit = len(normal) >= ENOUGH and (normal.view(np.uint16) & 1).mean() >= ODD
    return "float16" if needs_last_bit and np.array_equal(half, single) else "float32"


def largest_unit(samples: Iterable[Iterable[Float64s | None]]) -> float:
    """Return the rounding error of the least precise parameter. samples: Those of each parameter."""
    return max((UNITS[dtype_of(each)] for each in samples), default=UNITS["float32"])


def unscaled(line: RecordedCall) -> RecordedCall:
    """Divide by the loss scale of the call, which can differ from that of the next call."""
    if line.loss_scale is None:
        return line
    factor = line.loss_scale

    def divide(table: RecordedTable, *names: str) -> dict[str, object]:
        return {name: divided(getattr(table, name), factor) for name in names}

    own = {name: each.model_copy(update=divide(each, "norm", "sample")) for name, each in line.parameters.items()}
    numbers = divide(line, "threshold", "norm", "passed_norm", "returned_norm", "stored_norm")
    return line.model_copy(update={**numbers, "parameters": own})


def divided(value: Any, factor: float) -> Any:
    if value is None or isinstance(value, float | int):
        return None if value is None else value / factor
    return type(value)(divided(each, factor) for each in value)
