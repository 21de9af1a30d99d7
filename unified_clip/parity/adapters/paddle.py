"""Paddle for the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle

from ...tensors.frameworks.paddle import Converter
from ..outcome import LEARNING_RATE
from ..suite.call_form import leaves
from . import base
from .base import Invocation, NativeResult


class Framework(Converter, base.OnParameters):
    packages = ("paddlepaddle",)
    families = ("paddle", "torch")

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        weights = [None if g is None else _parameter(_shape(g), g.dtype, 1.0) for g in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            if weight is not None:
                weight.grad = gradient
        present = [weight for weight in weights if weight is not None]
        paddle.optimizer.SGD(LEARNING_RATE, parameters=present).step()
        return weights

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        like = [paddle.zeros([1]) if tensor is None else tensor for tensor in tensors]
        parameters = [_parameter(_shape(tensor), tensor.dtype, 0.0) for tensor in like]
        for parameter, needed in zip(parameters, need_clip, strict=True):
            parameter.need_clip = needed
        return parameters

    def transposed(self, tensor: Any) -> Any:
        order = list(reversed(range(tensor.ndim)))
        return tensor.transpose(order).contiguous().transpose(order)

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Gradients are temporaries, told apart by their addresses."""
        if a is None or b is None or a.is_selected_rows() or 0 in a.shape or b.is_selected_rows():
            return False
        return bool(a.data_ptr() == b.data_ptr())

    def has_native(self, invocation: Invocation) -> bool:
        """Not of what reads memory that was never written, and may end the process: SelectedRows, but for classes."""
        sparse = any(tensor is not None and tensor.is_selected_rows() for tensor in invocation.gradients)
        by_class = invocation.call.style == "class" and not invocation.call.by_value
        return (by_class or not sparse) and super().has_native(invocation)

    def _utils(self, name: str, invocation: Invocation, *arguments: float) -> NativeResult:
        """A function of paddle.nn.utils."""
        invocation.set_native(f"paddle.nn.utils.{name}")
        norm = getattr(paddle.nn.utils, name)(invocation.in_place_container, *arguments)
        return NativeResult(invocation.native, norm, invocation.read_gradients())

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        """In a static program that an Executor runs."""
        fed = {f"gradient {index}": tensor for index, tensor in enumerate(tensors) if tensor is not None}
        paddle.enable_static()
        try:
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                given = {name: paddle.static.data(name, tensor.shape, tensor.dtype) for name, tensor in fed.items()}
                found = function([given.get(f"gradient {index}") for index in range(len(tensors))])
            wanted = [each for each in leaves(found) if each is not None]
            feed = {name: tensor.numpy() for name, tensor in fed.items()}
            results = iter(paddle.static.Executor().run(program, feed=feed, fetch_list=wanted))
        finally:
            paddle.disable_static()
        return _like(found, results)

    def native_norm(self, invocation: Invocation, p: float) -> NativeResult | None:
        strict = bool(invocation.arguments.get("error_if_nonfinite"))
        return self._utils("clip_grad_norm_", invocation, float("inf"), float(p), strict)._replace(tensors=None)

    def native_global(self, invocation: Invocation, threshold: float, p: float) -> NativeResult | None:
        if invocation.call.family == "torch":
            return self._utils(
                "clip_grad_norm_", invocation, threshold, float(p), bool(invocation.arguments.get("error_if_nonfinite"))
            )
        return self._by_class("ClipGradByGlobalNorm", invocation, threshold)

    def native_by_norm(
        self, invocation: Invocation, threshold: float, axes: Sequence[int] | None
    ) -> NativeResult | None:
        return self._by_class("ClipGradByNorm", invocation, threshold)

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> NativeResult | None:
        if invocation.call.family == "torch":
            return self._utils("clip_grad_value_", invocation, high)
        return self._by_class("ClipGradByValue", invocation, high, low)

    def native_settings(self, invocation: Invocation, threshold: float) -> NativeResult | None:
        invocation.set_native("paddle.nn.clip.append_gradient_clip_ops")
        clipped = paddle.nn.clip.append_gradient_clip_ops(invocation.param_grads)  # set_gradient_clip only asserts here
        return NativeResult(invocation.native, None, [gradient for _, gradient in clipped])

    def _by_class(self, name: str, invocation: Invocation, *arguments: float) -> NativeResult:
        invocation.set_native(f"paddle.nn.{name}")
        clip = getattr(paddle.nn, name)(*arguments)
        return NativeResult(invocation.native, None, [gradient for _, gradient in clip(invocation.param_grads)])


def _like(found: Any, results: Iterator[Any]) -> Any:
    """The arrays that a program gave, as tensors, in lists like those of its values."""
    if isinstance(found, list):
        return [_like(each, results) for each in found]
    return None if found is None else paddle.to_tensor(next(results), place=paddle.CPUPlace())


def _parameter(shape: list[int], dtype: Any, value: float) -> Any:
    return paddle.create_parameter(shape, dtype, default_initializer=paddle.nn.initializer.Constant(value))


def _shape(tensor: Any) -> list[int]:
    if tensor.is_selected_rows():
        rows = tensor.get_selected_rows()
        return [rows.height(), *tensor.shape[1:]]
    return list(tensor.shape)
