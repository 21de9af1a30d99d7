from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core.exact import nearest
from .._core.types import Scalar, Tensor


class HostScalars:
    cos = staticmethod(math.cos)
    sqrt = staticmethod(math.sqrt)
    sort = staticmethod(np.sort)

    def asarray(self, value: Any) -> Scalar:
        return float(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes if condition else no

    def is_true(self, condition: Any) -> bool:
        if isinstance(condition, np.ndarray):
            return b"\0" not in condition.tobytes()  # of bools; NumPy's functions are slower for few of them
        return bool(condition)

    def to_float32(self, scalar: Scalar) -> Scalar:
        return nearest(scalar, "float32")

    def floor(self, scalar: Scalar) -> Scalar:
        return float(math.floor(scalar))

    def vector(self, values: Sequence[float]) -> Scalar:
        return np.array(values, np.float64)

    def indices(self, length: int) -> Scalar:
        return np.arange(length, dtype=np.float64)

    def total(self, vector: Scalar) -> Scalar:
        return float(vector.sum())

    def least(self, numbers: Scalar) -> Scalar:
        return float(numbers.min())

    def pinned(self, scalar: Scalar) -> Scalar:
        return scalar

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return scalar

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        raise NotImplementedError("bug in unified_clip: HostScalars has no pack")

    def unpack(self, packed: Tensor, lengths: Sequence[int | None]) -> list[Scalar]:
        raise NotImplementedError("bug in unified_clip: HostScalars has no unpack")


HOST = HostScalars()
