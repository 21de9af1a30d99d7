"""The parity worker's adapter for MLX. MLX has no sparse tensors, and its functions return new arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import optimizers

from ...tensors.frameworks.mlx import Converter
from ..call_outcome import LEARNING_RATE
from . import base
from .base import Invocation, Returned


class FrameworkAdapter(Converter, base.Adapter):
    packages = ("mlx",)
    families = ("torch",)
    writes = True
    writes_from_graphs = False

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        dense = {str(index): gradient for index, gradient in enumerate(gradients) if gradient is not None}
        weights = {name: mx.ones_like(gradient) for name, gradient in dense.items()}
        stepped = optimizers.SGD(LEARNING_RATE).apply_gradients(dense, weights)
        return [stepped.get(str(index)) for index in range(len(gradients))]

    def transposed(self, tensor: Any) -> Any:
        return mx.contiguous(tensor.T).T

    def expanded(self, tensor: Any) -> Any:
        return mx.broadcast_to(tensor.reshape(-1)[:1].reshape((1,) * tensor.ndim), tensor.shape)

    def shares_memory(self, a: Any, b: Any) -> bool:
        return a is not None and a is b

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        return mx.compile(function)(tensors)

    def native_norm(self, invocation: Invocation, p: float) -> Returned | None:
        clipped = self.native_global(invocation, float("inf"), p, None)
        return clipped and Returned(clipped.norm)

    def native_global(self, invocation: Invocation, threshold: float, p: float, norm: float | None) -> Returned | None:
        if p != 2 or norm is not None or invocation.is_strict:
            return None
        invocation.native = "mlx.optimizers.clip_grad_norm"
        present = [gradient for gradient in invocation.gradients if gradient is not None]
        clipped, total_norm = optimizers.clip_grad_norm(present, threshold)
        return Returned(mx.array(total_norm), _with_none(invocation, clipped))

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> Returned | None:
        invocation.native = "mlx.core.clip"
        clipped = [mx.clip(gradient, low, high) for gradient in invocation.gradients if gradient is not None]
        return Returned(None, _with_none(invocation, clipped))


def _with_none(invocation: Invocation, results: Sequence[Any]) -> list[Any]:
    rest = iter(results)
    return [None if gradient is None else next(rest) for gradient in invocation.gradients]
