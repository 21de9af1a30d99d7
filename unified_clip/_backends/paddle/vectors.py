"""Float64 vectors, which store the state of adaptive thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from ..._core.path import DevicePrimitives
from ..._core.types import Scalar, Tensor


class VectorPrimitives(DevicePrimitives):
    def floor(self, scalar: Scalar) -> Scalar:
        return paddle.floor(scalar)

    def vector(self, values: Sequence[float], like: Sequence[Any]) -> Scalar:
        return paddle.to_tensor(np.array(values, np.float64))

    def indices(self, length: int, like: Sequence[Any]) -> Scalar:
        return paddle.arange(length, dtype="float64")

    def sort(self, vector: Scalar) -> Scalar:
        return paddle.sort(vector)

    def total(self, vector: Scalar) -> Scalar:
        return vector.sum()

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        return paddle.concat([scalar.reshape([-1]) for scalar in scalars])

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Any]) -> list[Scalar]:
        parts = paddle.split(packed, [length or 1 for length in lengths]) if len(lengths) > 1 else [packed]
        return [part if length else part.reshape([]) for part, length in zip(parts, lengths, strict=True)]
