"""Paddle for the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from . import adapter
from .adapter import Native
from .tensors import Dense, Gradient, Sparse


class Framework(adapter.Adapter):
    packages = ("paddlepaddle",)

    def dense(self, tensor: Dense) -> Any:
        return paddle.to_tensor(np.array(tensor.array), place=paddle.CPUPlace())  # uint16 is bfloat16 to Paddle

    def sparse(self, tensor: Sparse) -> Any:
        """SelectedRows, as only the derivative of an embedding makes them."""
        weight = paddle.zeros(tensor.shape, tensor.dtype)
        weight.stop_gradient = False
        rows = paddle.nn.functional.embedding(paddle.to_tensor(np.array(tensor.rows)), weight, sparse=True)
        rows.backward(self.dense(tensor.values))
        return weight.grad

    def read(self, tensor: Any) -> Gradient:
        if tensor.is_selected_rows():
            rows = tensor.get_selected_rows()
            values = np.array(rows.get_tensor())
            shape = (rows.height(), *values.shape[1:])
            return Sparse(np.array(rows.rows(), np.int64), self._dense(values), shape)
        return self._dense(tensor.numpy())

    def _dense(self, array: Any) -> Dense:
        return Dense("bfloat16" if array.dtype == np.uint16 else array.dtype.name, np.array(array))

    def container(self, tensors: Sequence[Any]) -> list[Any]:
        parameters = list(self.parameters(tensors))
        for parameter, tensor in zip(parameters, tensors, strict=True):
            parameter.grad = tensor
        return parameters

    def contents(self, container: list[Any]) -> Sequence[Any]:
        return [parameter.grad for parameter in container]

    def parameters(self, tensors: Sequence[Any]) -> Sequence[Any]:
        like = [paddle.zeros([1]) if tensor is None else tensor for tensor in tensors]
        parameters = [paddle.zeros(_shape(tensor), tensor.dtype) for tensor in like]
        for parameter in parameters:
            parameter.stop_gradient = False
        return parameters

    def _utils(self, name: str, tensors: Sequence[Any], *arguments: float) -> Native:
        """A function of paddle.nn.utils."""
        _refuse_sparse(tensors)
        parameters = self.container(tensors)
        norm = getattr(paddle.nn.utils, name)(parameters, *arguments)
        return Native(f"paddle.nn.utils.{name}", norm, self.contents(parameters))

    def native_norm(self, tensors: Sequence[Any], p: float) -> Native | None:
        return self._utils("clip_grad_norm_", tensors, float("inf"), float(p))._replace(tensors=None)

    def native_global(self, tensors: Sequence[Any], limit: float, p: float, *, in_place: bool) -> Native | None:
        if in_place:
            return self._utils("clip_grad_norm_", tensors, limit, float(p))
        if p != 2:
            return None
        return self._by_class("paddle.nn.ClipGradByGlobalNorm", paddle.nn.ClipGradByGlobalNorm(limit), tensors)

    def native_by_norm(self, tensors: Sequence[Any], limit: float, axes: Sequence[int] | None) -> Native | None:
        if axes is not None:
            return None
        return self._by_class("paddle.nn.ClipGradByNorm", paddle.nn.ClipGradByNorm(limit), tensors)

    def native_by_value(self, tensors: Sequence[Any], low: float, high: float, *, in_place: bool) -> Native | None:
        if in_place:
            return self._utils("clip_grad_value_", tensors, high)
        _refuse_sparse(tensors)
        return self._by_class("paddle.nn.ClipGradByValue", paddle.nn.ClipGradByValue(high, low), tensors)

    def _by_class(self, name: str, clip: Any, tensors: Sequence[Any]) -> Native:
        pairs = list(zip(self.parameters(tensors), tensors, strict=True))
        return Native(name, None, [gradient for _, gradient in clip(pairs)])


def _refuse_sparse(tensors: Sequence[Any]) -> None:
    if any(tensor is not None and tensor.is_selected_rows() for tensor in tensors):
        raise NotImplementedError("not called: it reads memory that was never written, and may abort the process")


def _shape(tensor: Any) -> list[int]:
    if tensor.is_selected_rows():
        rows = tensor.get_selected_rows()
        return [rows.height(), *tensor.shape[1:]]
    return list(tensor.shape)
