"""The toy framework for the worker: no sparse tensors, no functions of its own to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import toyframe

from . import adapter
from .adapter import LEARNING_RATE
from .tensors import Dense, Gradient, Sparse, densify


class Framework(adapter.Adapter):
    writes = True

    def dense(self, tensor: Dense) -> Any:
        return toyframe.Tensor(adapter.to_numpy(tensor))

    def sparse(self, tensor: Sparse) -> Any:
        dense = densify(tensor)
        assert dense is not None
        return self.dense(dense)

    def read(self, tensor: Any) -> Gradient:
        return adapter.from_numpy(tensor.numpy())

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [None if g is None else _stepped(g.numpy()) for g in gradients]

    def transposed(self, tensor: Any) -> Any:
        return toyframe.Tensor(np.array(tensor.numpy(), order="F"))


def _stepped(gradient: np.ndarray) -> toyframe.Tensor:
    return toyframe.Tensor(np.ones_like(gradient) - gradient.dtype.type(LEARNING_RATE) * gradient)
