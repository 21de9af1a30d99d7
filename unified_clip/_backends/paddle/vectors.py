"""Float64 vectors, which store the state of adaptive thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
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

    # Paddle 3.2 warns about its own sort, min and split.
    def sort(self, vector: Scalar) -> Scalar:
        return paddle.gather(vector, paddle.argsort(vector))

    def least(self, numbers: Scalar) -> Scalar:
        return numbers.amin()

    def total(self, vector: Scalar) -> Scalar:
        return vector.sum()

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        return paddle.concat([scalar.reshape([-1]) for scalar in scalars])

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Any]) -> list[Scalar]:
        ends = accumulate(length or 1 for length in lengths)
        parts = [(packed[end - (length or 1) : end], length) for end, length in zip(ends, lengths, strict=True)]
        return [part if length else part.reshape([]) for part, length in parts]
