"""The models for single elements in the report of `unified-clip parity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import computed_field

from .._kit.report_model import Real, ReportModel
from ..tensors.types import Stage

Side = Literal["ours", "native"]

SIDES: Mapping[Side, str] = {"ours": "unified_clip", "native": "framework"}

WIDTH = 13
"""The width of the first column in a text report."""


class Number(ReportModel):
    """An element of the exact result, of unified_clip's result, or of the framework's result."""

    value: Real
    ulps: Real
    """The distance from the exact number, in ULP."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hex(self) -> str:
        """The value as a hexadecimal float, in the format of Python's `float.hex`."""
        return self.value.hex()


class WorstElement(ReportModel):
    """The element with the largest distance from the exact result."""

    stage: Stage
    """The first stage of the call at which the result differs from the exact result."""

    gradient: int | None
    """The index of the gradient, from 0. For the norm, the index is null."""

    name: str
    element: list[int]
    """The index of the element in the gradient. In a complex gradient, a last index follows: 0 for the real part, and 1
    for the imaginary part."""

    dtype: str
    """Distances from the exact result are in ULP of this dtype."""

    exact: Number
    """The exact number, rounded as docs/contract.md specifies."""

    ours: Number | None
    native: Number | None
    apart: int
    """The number of elements that differ from the exact result at this stage."""

    compared: int
    """The number of elements that were compared at this stage."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def nearer(self) -> Side | None:
        """The side whose number is closer to `exact`. The value is null if both numbers are equally close, or if one
        side has no number."""
        if self.ours is None or self.native is None or self.ours.ulps == self.native.ulps:
            return None
        return "ours" if self.ours.ulps < self.native.ulps else "native"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def place(self) -> str:
        """A description of the gradient and the element, or "the norm"."""
        if self.gradient is None:
            return "the norm"
        prefix = "the coefficient of " if self.stage == "coefficient" else ""
        called = f" ({self.name})" if self.name and self.name != f"gradient {self.gradient}" else ""
        index = f", element {self.element}" if self.element else ""
        return f"{prefix}gradient {self.gradient}{called}{index}"

    def __str__(self) -> str:
        lines = [f"first differs at the {self.stage}: {self.place}; {self.apart} of {self.compared} numbers differ"]
        lines.append(f"{'exact':{WIDTH}} {self.exact.value!r:24} {self.exact.hex}  {self.dtype}")
        for name, number in zip(SIDES.values(), (self.ours, self.native), strict=True):
            if number:
                lines.append(f"{name:{WIDTH}} {number.value!r:24} {number.hex}  {number.ulps:.3g} ULP")
        return "\n".join([*lines, f"{'nearer':{WIDTH}} {SIDES[self.nearer]}"] if self.nearer else lines)
