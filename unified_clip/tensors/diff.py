"""Describe the differences between two sets of gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._kit.display import counted, safe
from .arithmetic import FORMATS, Float64s
from .types import PARTS, Dense, Gradient, densify, form
from .ulp import differences

Sides = tuple[str, str]

MOST_TENSORS = 5


def describe(
    left: Mapping[str, Gradient], right: Mapping[str, Gradient], sides: Sides, max_ulp: float = 0, rtol: float = 0
) -> str:
    """Describe the gradients that differ by more than both `max_ulp` and `rtol`. Return '' if all agree.

    `rtol` is relative to the largest finite element of the gradient in `right`.
    """
    if left.keys() != right.keys():
        return _other_names(list(map(safe, left)), list(map(safe, right)), sides)
    tensors = [(safe(name), densify(left[name]), densify(right[name])) for name in left]
    differing = [difference for each in tensors if (difference := _tensor(*each, sides, max_ulp, rtol))]
    common = _common_factor(differing)
    scaled = [each for each in differing if each.has_factor(common)]
    others = [each for each in differing if not each.has_factor(common)]
    others.sort(key=lambda each: each.relative, reverse=True)
    shown = [*others, *scaled[:1]][:MOST_TENSORS]
    lines = [each.text for each in shown]
    if scaled:
        count = f"{len(scaled)} of {len(differing)}" if others else f"all {len(scaled)}"
        factor = f"{sides[0]} is {common:.6g} times {sides[1]}"
        lines.insert(0, factor if len(differing) == 1 else f"{factor} in {count} gradients that differ")
    if more := len(differing) - len(shown):
        lines.append(f"and {counted(more, 'more gradient')} {'differs' if more == 1 else 'differ'}")
    return "\n".join(lines)


class _Difference(NamedTuple):
    text: str
    relative: float = math.inf
    """The largest difference between elements with the same index, divided by the largest element of `right`."""

    factor: float = math.nan
    """The factor between the two gradients, or NaN if elements have different factors."""

    slack: float = 0.0
    elements: int = 0

    def has_factor(self, factor: float) -> bool:
        return abs(self.factor - factor) <= self.slack * abs(factor)


def _common_factor(differing: Sequence[_Difference]) -> float:
    factors = np.sort([each.factor for each in differing if not math.isnan(each.factor)])
    if not factors.size:
        return math.nan
    slack = max(each.slack for each in differing)
    counts = np.searchsorted(factors, factors + slack * np.abs(factors), "right") - np.arange(factors.size)
    first = int(counts.argmax())
    is_common = counts[first] > 1 or (len(differing) == 1 and differing[0].elements > 1)
    return float(factors[first + counts[first] // 2]) if is_common else math.nan


def _factor(left: Float64s, right: Float64s, slack: float) -> float:
    largest = float(np.abs(right).max())
    if not (0 < largest < math.inf and np.isfinite(left).all()):
        return math.nan
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = right / largest
        factor = float(np.dot(left / largest, scaled) / np.dot(scaled, scaled))
        is_near = np.abs(left - factor * right) <= slack * np.abs(left)
    return factor if is_near.all() and abs(factor - 1) > slack else math.nan


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


def _tensor(
    name: str, a: Dense | None, b: Dense | None, sides: Sides, max_ulp: float, rtol: float
) -> _Difference | None:
    if form(a) != form(b):
        return _Difference(f"{name}: {sides[0]} is {form(a)}, {sides[1]} is {form(b)}")
    if a is None or b is None:
        return None
    differ, distances = differences(a, b)
    if not differ.size:
        return None
    left, right = a.values().reshape(-1), b.values().reshape(-1)
    largest = float(np.max(np.abs(right), where=np.isfinite(right), initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(left[differ] - right[differ])
        beyond = distances > max_ulp
        if rtol:
            beyond &= ~(errors <= rtol * largest)
    differ, distances, errors = differ[beyond], distances[beyond], errors[beyond]
    if not differ.size:
        return None
    limits = [*([f"{max_ulp:g} ulp"] if max_ulp else []), *([f"{rtol:g} of the largest element"] if rtol else [])]
    noun = "parts" if a.dtype in PARTS else "elements"
    problem = f"{name}: {differ.size} of {a.array.size} {noun} differ" if a.array.size > 1 else f"{name} differs"
    lines = [f"{problem} by more than {' and '.join(limits)}" if limits else problem]
    greatest = int(np.argmax(distances))
    for title, index in (("first", 0), ("greatest", greatest))[: 1 + (greatest > 0)]:
        lines.append(f"  {title} at {_pair(a, b, int(differ[index]), float(distances[index]), sides)}")
    error = float(errors.max())
    relative = error / largest if largest and math.isfinite(error) else math.inf
    slack = 2.0 ** (3 - FORMATS.get(a.dtype, FORMATS["float64"]).precision)
    return _Difference("\n".join(lines), relative, _factor(left, right, slack), slack, differ.size)


def _pair(a: Dense, b: Dense, position: int, distance: float, sides: Sides) -> str:
    index = [int(each) for each in np.unravel_index(position, a.array.shape)]
    part = ("", ", the real part", ", the imaginary part")[1 + index.pop() if a.dtype in PARTS else 0]
    values = [f"{side} is {_number(tensor, position)}" for side, tensor in zip(sides, (a, b), strict=True)]
    size = f"{distance:.10g} ulp apart" if math.isfinite(distance) else "only one is NaN"
    return f"{index}{part}: {', '.join(values)}, {size}"


def _number(tensor: Dense, position: int) -> str:
    """Return an element as text, such as "0.1 (0x1.99999ap-4)"."""
    if tensor.dtype == "int64":
        return str(tensor.array.reshape(-1)[position])
    value = float(tensor.values().reshape(-1)[position])
    if not math.isfinite(value):
        return str(value)
    kind = "float32" if tensor.dtype == "bfloat16" else PARTS.get(tensor.dtype, tensor.dtype)
    return f"{np.dtype(kind).type(value)!s} ({hexadecimal(value)})"
