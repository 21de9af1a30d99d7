"""The parity adapter of the toy framework, which has no sparse tensors and no clip functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import toyframe

from ...tensors.frameworks.toy import Converter
from ..call_outcome import LEARNING_RATE
from . import base


class FrameworkAdapter(Converter, base.Adapter):
    writes = True

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [None if g is None else _stepped(g.numpy()) for g in gradients]

    def transposed(self, tensor: Any) -> Any:
        return toyframe.Tensor(np.array(tensor.numpy(), order="F"))

    def expanded(self, tensor: Any) -> Any:
        array = tensor.numpy()
        return toyframe.Tensor(np.broadcast_to(np.ravel(array)[:1].reshape((1,) * array.ndim), array.shape))

    def overlapping(self, tensors: list[Any]) -> list[Any]:
        base = np.concatenate([tensor.numpy() for tensor in tensors])
        return [toyframe.Tensor(base[i : i + tensor.numpy().size]) for i, tensor in enumerate(tensors)]

    def shares_memory(self, a: Any, b: Any) -> bool:
        return a is not None and b is not None and bool(np.shares_memory(a.numpy(), b.numpy()))


def _stepped(gradient: np.ndarray) -> toyframe.Tensor:
    return toyframe.Tensor(np.ones_like(gradient) - gradient.dtype.type(LEARNING_RATE) * gradient)
