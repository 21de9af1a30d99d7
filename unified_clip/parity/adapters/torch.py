"""PyTorch for the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...tensors.frameworks.torch import Converter
from ..modes import COMPILED
from ..outcome import LEARNING_RATE
from ..suite.call_form import leaves
from . import base
from .base import Invocation, NativeResult


class Framework(Converter, base.OnParameters):
    packages = ("torch",)
    families = ("torch",)

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        weights = [None if g is None else torch.nn.Parameter(self._filled(g, 1.0)) for g in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            if weight is not None:
                weight.grad = gradient
        torch.optim.SGD([weight for weight in weights if weight is not None], lr=LEARNING_RATE).step()
        return weights

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        like = [torch.zeros(1) if tensor is None else tensor for tensor in tensors]
        zeros = [self._filled(tensor, 0.0) for tensor in like]
        wants = [zero.is_floating_point() or zero.is_complex() for zero in zeros]
        made = [torch.nn.Parameter(zero, requires_grad=want) for zero, want in zip(zeros, wants, strict=True)]
        for parameter, needed in zip(made, need_clip, strict=True):
            parameter.need_clip = needed
        return made

    def _filled(self, like: Any, value: float) -> Any:
        return torch.full(like.shape, value, dtype=like.dtype)

    def transposed(self, tensor: Any) -> Any:
        order = tuple(reversed(range(tensor.ndim)))
        return tensor.permute(order).contiguous().permute(order)

    def expanded(self, tensor: Any) -> Any:
        return tensor.reshape(-1)[:1].reshape((1,) * tensor.ndim).expand(tensor.shape)

    def overlapping(self, tensors: list[Any]) -> list[Any]:
        base = torch.cat(tensors)
        return [base[index : index + tensor.numel()] for index, tensor in enumerate(tensors)]

    def shares_memory(self, a: Any, b: Any) -> bool:
        if a is None or b is None:
            return False
        first, second = (t._values() if t.is_sparse else t for t in (a, b))
        same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        return bool(first.numel() and same)

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        """By `torch.compile`: run operation by operation or, in the mode `compiled`, by its default backend."""
        torch._dynamo.reset()  # it compiles the same lines a few times only
        backend = "inductor" if mode == COMPILED else "aot_eager"
        return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)(tensors)

    def native_norm(self, invocation: Invocation, p: float) -> NativeResult | None:
        strict = bool(invocation.arguments.get("error_if_nonfinite"))
        present = [tensor for tensor in leaves(invocation.container) if tensor is not None]
        name = invocation.set_native("torch.nn.utils.get_total_norm")
        return NativeResult(name, torch.nn.utils.get_total_norm(present, p, strict))

    def native_global(self, invocation: Invocation, threshold: float, p: float) -> NativeResult | None:
        strict = bool(invocation.arguments.get("error_if_nonfinite"))
        name = invocation.set_native("torch.nn.utils.clip_grad_norm_")
        norm = torch.nn.utils.clip_grad_norm_(invocation.in_place_container, threshold, p, strict)
        return NativeResult(name, norm, invocation.read_gradients())

    def native_given_norm(self, invocation: Invocation, threshold: float, norm: float) -> NativeResult | None:
        name = invocation.set_native("torch.nn.utils.clip_grads_with_norm_")
        torch.nn.utils.clip_grads_with_norm_(invocation.in_place_container, threshold, torch.tensor(norm))
        return NativeResult(name, None, invocation.read_gradients())

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> NativeResult | None:
        name = invocation.set_native("torch.nn.utils.clip_grad_value_")
        torch.nn.utils.clip_grad_value_(invocation.in_place_container, high)
        return NativeResult(name, None, invocation.read_gradients())
