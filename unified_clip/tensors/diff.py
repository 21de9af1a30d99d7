"""Describe the differences between two sets of gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from .._display import safe
from .types import PARTS, Dense, Gradient, densify, form
from .ulp import differences

Sides = tuple[str, str]

MOST_TENSORS = 5


def describe(
    left: Mapping[str, Gradient], right: Mapping[str, Gradient], sides: Sides, max_ulp: float = 0, rtol: float = 0
) -> str:
    """Describe the gradients that differ by more than `max_ulp` and `rtol`. If all gradients agree, return ''.

    If the names differ, the text describes only the names. Gradients with different dtypes or shapes always differ. A
    sparse gradient is compared in its dense form.

    left, right: The gradients to compare, by name.
    sides: Names of `left` and `right` for the text, such as ("unified_clip", "expected").
    max_ulp: The largest allowed distance of two elements, in ULP.
    rtol: The largest allowed difference of two elements, divided by the largest finite element of the gradient in
        `right`. With 0, only `max_ulp` is used.
    """
    if left.keys() != right.keys():
        return _other_names(list(map(safe, left)), list(map(safe, right)), sides)
    tensors = [(safe(name), densify(left[name]), densify(right[name])) for name in left]
    texts = [text for each in tensors if (text := _tensor(*each, sides, max_ulp, rtol))]
    more = [f"and {len(texts) - MOST_TENSORS} more gradients differ"] if len(texts) > MOST_TENSORS else []
    return "\n".join([*texts[:MOST_TENSORS], *more])


def hexadecimal(value: float) -> str:
    return re.sub(r"\.?0+p", "p", value.hex())


def _other_names(left: list[str], right: list[str], sides: Sides) -> str:
    parts = [f"{sides[0]} has {len(left)} gradient{'s' * (len(left) != 1)}, {sides[1]} has {len(right)}"]
    for here, there, side in ((left, right, sides[0]), (right, left, sides[1])):
        alone = [name for name in here if name not in set(there)]
        if alone:
            names = ", ".join(alone[:MOST_TENSORS]) + (", ..." if len(alone) > MOST_TENSORS else "")
            parts.append(f"Only {side} has: {names}")
    return ". ".join(parts)


def _tensor(name: str, a: Dense | None, b: Dense | None, sides: Sides, max_ulp: float, rtol: float) -> str:
    if form(a) != form(b):
        return f"{name}: {sides[0]} is {form(a)}, {sides[1]} is {form(b)}"
    if a is None or b is None:
        return ""
    differ, distances = differences(a, b)
    beyond = distances > max_ulp
    if rtol:
        values, right = (tensor.values().reshape(-1)[differ] for tensor in (a, b))
        largest = np.max(np.abs(b.values()), where=np.isfinite(b.values()), initial=0.0)
        with np.errstate(invalid="ignore"):
            beyond &= ~(np.abs(values - right) <= rtol * largest)
    differ, distances = differ[beyond], distances[beyond]
    if not differ.size:
        return ""
    limits = [*([f"{max_ulp:g} ulp"] if max_ulp else []), *([f"{rtol:g} of the largest element"] if rtol else [])]
    limit = f" by more than {' and '.join(limits)}" if limits else ""
    noun = "parts" if a.dtype in PARTS else "elements"
    many = f": {differ.size} of {a.array.size} {noun} differ" if a.array.size > 1 else " differs"
    lines = [f"{name}{many}{limit}"]
    greatest = int(np.argmax(distances))
    for title, index in (("first", 0), ("greatest", greatest))[: 1 + (greatest > 0)]:
        lines.append(f"  {title} at {_pair(a, b, int(differ[index]), float(distances[index]), sides)}")
    return "\n".join(lines)


def _pair(a: Dense, b: Dense, position: int, distance: float, sides: Sides) -> str:
    index = [int(each) for each in np.unravel_index(position, a.array.shape)]
    part = ("", ", the real part", ", the imaginary part")[1 + index.pop() if a.dtype in PARTS else 0]
    values = [f"{side} is {_number(tensor, position)}" for side, tensor in zip(sides, (a, b), strict=True)]
    size = f"{distance:.10g} ulp apart" if math.isfinite(distance) else "a NaN beside a number"
    return f"{index}{part}: {', '.join(values)}, {size}"


def _number(tensor: Dense, position: int) -> str:
    """Return an element as text, such as "0.1 (0x1.99999ap-4)".

    position: The index in the flattened `tensor.array`, where real and imaginary parts are separate elements.
    """
    if tensor.dtype == "int64":
        return str(tensor.array.reshape(-1)[position])
    value = float(tensor.values().reshape(-1)[position])
    if not math.isfinite(value):
        return str(value)
    kind = "float32" if tensor.dtype == "bfloat16" else PARTS.get(tensor.dtype, tensor.dtype)
    return f"{np.dtype(kind).type(value)!s} ({hexadecimal(value)})"
