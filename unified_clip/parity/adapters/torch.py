from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.sgd import sgd

from ..._backends.torch import releases
from ...tensors.frameworks.torch import Converter
from ..call_outcome import LEARNING_RATE
from ..modes import COMPILED
from . import base
from .base import Invocation, Returned


class FrameworkAdapter(Converter, base.OnParameters):
    packages = ("torch",)
    families = ("torch",)
    utils = torch.nn.utils

    def step(self, parameters: list[Any]) -> None:
        gradients = [parameter.grad for parameter in parameters]
        with torch.no_grad():
            sgd(  # torch.optim.SGD is this function, but imports the compiler, which takes as long as importing torch
                parameters,
                gradients,
                [None] * len(parameters),
                has_sparse_grad=any(gradient.is_sparse for gradient in gradients),
                foreach=False,
                lr=LEARNING_RATE,
                weight_decay=0.0,
                momentum=0.0,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def parameter(self, like: Any, value: float) -> Any:
        filled = torch.zeros(1) if like is None else self._filled(like, value)
        return torch.nn.Parameter(filled, requires_grad=filled.is_floating_point() or filled.is_complex())

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
        torch._dynamo.reset()  # or torch.compile stops compiling the same lines after a few times
        backend = "inductor" if mode == COMPILED else "aot_eager"
        return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)(tensors)

    def native_norm(self, invocation: Invocation, p: float) -> Returned | None:
        if not releases.HAS_TOTAL_NORM:
            return None
        invocation.native = "torch.nn.utils.get_total_norm"
        tensors = invocation.container
        if isinstance(tensors, list | tuple):
            tensors = [tensor for tensor in tensors if tensor is not None]
        return Returned(torch.nn.utils.get_total_norm(tensors, p, invocation.is_strict))

    def native_global(self, invocation: Invocation, threshold: float, p: float, norm: float | None) -> Returned | None:
        if norm is not None and not releases.HAS_TOTAL_NORM:
            return None
        if norm is not None:
            return self.call_utils("clip_grads_with_norm_", invocation, threshold, torch.tensor(norm))
        return self.call_utils("clip_grad_norm_", invocation, threshold, p, invocation.is_strict)

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> Returned | None:
        return self.call_utils("clip_grad_value_", invocation, high)
