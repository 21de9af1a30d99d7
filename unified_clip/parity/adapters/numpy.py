"""The parity worker's adapter for NumPy, which has no sparse tensors and no clip functions of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...tensors.frameworks.numpy import Converter
from ..call_outcome import LEARNING_RATE
from . import base


class FrameworkAdapter(Converter, base.Adapter):
    packages = ("numpy",)
    writes = True

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [None if g is None else np.ones_like(g) - g.dtype.type(LEARNING_RATE) * g for g in gradients]

    def transposed(self, tensor: Any) -> Any:
        return np.array(tensor, order="F")

    def expanded(self, tensor: Any) -> Any:
        return np.broadcast_to(np.ravel(tensor)[:1].reshape((1,) * tensor.ndim), tensor.shape)

    def overlapping(self, tensors: list[Any]) -> list[Any]:
        base = np.concatenate(tensors)
        return [base[index : index + tensor.size] for index, tensor in enumerate(tensors)]

    def shares_memory(self, a: Any, b: Any) -> bool:
        return a is not None and b is not None and bool(np.shares_memory(a, b))
