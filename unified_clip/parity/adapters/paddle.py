from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle
from paddle.base.framework import EagerParamBase

from ...tensors.frameworks.paddle import Converter
from ..call_outcome import LEARNING_RATE
from ..suite.call_form import leaves
from . import base
from .base import Invocation, Returned


class FrameworkAdapter(Converter, base.OnParameters):
    packages = ("paddlepaddle",)
    families = ("paddle", "torch")
    utils = paddle.nn.utils

    def step(self, parameters: list[Any]) -> None:
        paddle.optimizer.SGD(LEARNING_RATE, parameters=parameters).step()

    def parameter(self, like: Any, value: float) -> Any:
        if like is None:
            return self.parameter(paddle.zeros([1]), value)
        shape = [like.get_selected_rows().height(), *like.shape[1:]] if like.is_selected_rows() else list(like.shape)
        if 0 in shape:  # Paddle 2 has no such parameters
            return EagerParamBase.from_tensor(paddle.zeros(shape, like.dtype))
        initializer = paddle.nn.initializer.Constant(value)
        return paddle.create_parameter(shape, like.dtype, default_initializer=initializer)

    def read_in_place(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Paddle 2 reads a gradient without elements as None."""
        return [each.detach() if each.grad is None and 0 in each.shape else each.grad for each in arguments]

    def transposed(self, tensor: Any) -> Any:
        order = list(reversed(range(tensor.ndim)))
        return tensor.transpose(order).contiguous().transpose(order)

    def shares_memory(self, a: Any, b: Any) -> bool:
        """`is` would not work, because `.grad` returns a new object at each access."""
        if a is None or b is None or a.is_selected_rows() or 0 in a.shape or b.is_selected_rows():
            return False
        return bool(a.data_ptr() == b.data_ptr())

    def has_native(self, invocation: Invocation) -> bool:
        """For sparse gradients, Paddle has only the classes that clip by norm."""
        sparse = any(tensor is not None and tensor.is_selected_rows() for tensor in invocation.gradients)
        by_class = invocation.call.style == "class" and not invocation.call.by_value
        return (by_class or not sparse) and super().has_native(invocation)

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        fed = {f"gradient {index}": tensor for index, tensor in enumerate(tensors) if tensor is not None}
        paddle.enable_static()
        try:
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                symbols = {name: paddle.static.data(name, tensor.shape, tensor.dtype) for name, tensor in fed.items()}
                returned = function([symbols.get(f"gradient {index}") for index in range(len(tensors))])
            fetched = [each for each in leaves(returned) if each is not None]
            feed = {name: tensor.numpy() for name, tensor in fed.items()}
            results = iter(paddle.static.Executor().run(program, feed=feed, fetch_list=fetched))
        finally:
            paddle.disable_static()
        return _like(returned, results)

    def native_norm(self, invocation: Invocation, p: float) -> Returned | None:
        infinite = float("inf")
        result = self.call_utils("clip_grad_norm_", invocation, infinite, float(p), invocation.is_strict)
        return result._replace(tensors=None)

    def native_global(self, invocation: Invocation, threshold: float, p: float, norm: float | None) -> Returned | None:
        if invocation.call.family != "torch":
            return self._by_class("ClipGradByGlobalNorm", invocation, threshold)
        if norm is not None:
            return None
        return self.call_utils("clip_grad_norm_", invocation, threshold, float(p), invocation.is_strict)

    def native_by_norm(self, invocation: Invocation, threshold: float, axes: Sequence[int] | None) -> Returned | None:
        return self._by_class("ClipGradByNorm", invocation, threshold)

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> Returned | None:
        if invocation.call.family == "torch":
            return self.call_utils("clip_grad_value_", invocation, high)
        return self._by_class("ClipGradByValue", invocation, high, low)

    def native_settings(self, invocation: Invocation, threshold: float) -> Returned | None:
        invocation.native = "paddle.nn.clip.append_gradient_clip_ops"
        clipped = paddle.nn.clip.append_gradient_clip_ops(invocation.param_grads)  # set_gradient_clip only asserts here
        return Returned(None, [gradient for _, gradient in clipped])

    def _by_class(self, name: str, invocation: Invocation, *arguments: float) -> Returned:
        invocation.native = f"paddle.nn.{name}"
        clip = getattr(paddle.nn, name)(*arguments)
        return Returned(None, [gradient for _, gradient in clip(invocation.param_grads)])


def _like(template: Any, results: Iterator[Any]) -> Any:
    if isinstance(template, list):
        return [_like(each, results) for each in template]
    return None if template is None else paddle.to_tensor(next(results), place=paddle.CPUPlace())
