"""Convert toyframe tensors."""

from __future__ import annotations

from typing import Any

import toyframe

from ..types import Dense, Gradient, Sparse, densify, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        return toyframe.Tensor(to_numpy(tensor))

    def sparse(self, tensor: Sparse) -> Any:
        dense = densify(tensor)
        assert dense is not None
        return self.dense(dense)

    def read(self, tensor: Any) -> Gradient:
        return from_numpy(tensor.numpy())
