"""The functions for scalars of the host path. `config` needs them without the kernels, which are not imported here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._core.exact import nearest
from .._core.types import Scalar


class HostScalars:
    """The functions for scalars that are Python's numbers or NumPy's arrays."""

    def asarray(self, value: Any) -> Scalar:
        return float(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes if condition else no

    def cos(self, scalar: Scalar) -> Scalar:
        return math.cos(scalar)

    def to_float32(self, scalar: Scalar) -> Scalar:
        return nearest(scalar, "float32")


HOST = HostScalars()
