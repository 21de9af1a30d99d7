"""Scalars: float64 values on the host, on a device, or in a compiled graph, and the functions of them."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from .exact import nearest
from .types import Scalar


class Scalars(Protocol):
    """The functions of scalars. Their operators are `+`, `-`, `*`, `/`, `<`, `<=`, `>` and `>=`."""

    def asarray(self, value: Any) -> Scalar:
        """Return a number or a one-element tensor as a scalar."""

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        """Return `yes` where a comparison holds, else `no`."""

    def cos(self, scalar: Scalar) -> Scalar: ...

    def to_float32(self, scalar: Scalar) -> Scalar:
        """Round to float32."""


class HostScalars:
    """Numbers of Python, and NumPy's arrays of them."""

    def asarray(self, value: Any) -> Scalar:
        return float(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes if condition else no

    def cos(self, scalar: Scalar) -> Scalar:
        return math.cos(scalar)

    def to_float32(self, scalar: Scalar) -> Scalar:
        return nearest(scalar, "float32")


HOST = HostScalars()
