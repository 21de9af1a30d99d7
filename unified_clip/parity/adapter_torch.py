"""PyTorch for the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from . import adapter
from .tensors import Dense, Gradient, Sparse


class Framework(adapter.Adapter):
    packages = ("torch",)

    def dense(self, tensor: Dense) -> Any:
        made = torch.from_numpy(np.array(tensor.array))
        return made.view(torch.bfloat16) if tensor.dtype == "bfloat16" else made

    def sparse(self, tensor: Sparse) -> Any:
        rows = torch.from_numpy(tensor.rows.reshape(1, -1).copy())
        return torch.sparse_coo_tensor(rows, self.dense(tensor.values), tensor.shape, check_invariants=True)

    def read(self, tensor: Any) -> Gradient:
        tensor = tensor.detach()
        if tensor.is_sparse:
            return Sparse(tensor._indices()[0].numpy(), self._read_dense(tensor._values()), tuple(tensor.shape))
        return self._read_dense(tensor)

    def _read_dense(self, tensor: Any) -> Dense:
        bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        return Dense(str(tensor.dtype).removeprefix("torch."), bits.numpy().copy())

    def container(self, tensors: Sequence[Any]) -> list[Any]:
        parameters = list(self.parameters(tensors))
        for parameter, tensor in zip(parameters, tensors, strict=True):
            parameter.grad = tensor
        return parameters

    def contents(self, container: list[Any]) -> Sequence[Any]:
        return [parameter.grad for parameter in container]

    def parameters(self, tensors: Sequence[Any]) -> Sequence[Any]:
        like = [torch.zeros(1) if tensor is None else tensor for tensor in tensors]
        return [torch.nn.Parameter(torch.zeros(tensor.shape, dtype=tensor.dtype)) for tensor in like]

    def native_norm(self, tensors: Sequence[Any], p: float) -> adapter.Native | None:
        present = [tensor for tensor in tensors if tensor is not None]
        return adapter.Native("torch.nn.utils.get_total_norm", torch.nn.utils.get_total_norm(present, p))

    def native_global(self, tensors: Sequence[Any], limit: float, p: float, *, in_place: bool) -> adapter.Native | None:
        parameters = self.container(tensors)
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit, p)
        return adapter.Native("torch.nn.utils.clip_grad_norm_", norm, self.contents(parameters))

    def native_by_norm(self, tensors: Sequence[Any], limit: float, axes: Sequence[int] | None) -> adapter.Native | None:
        if axes is not None:
            return None
        parameters = self.container(tensors)
        for parameter in parameters:
            torch.nn.utils.clip_grad_norm_(parameter, limit)
        return adapter.Native("torch.nn.utils.clip_grad_norm_, for each", None, self.contents(parameters))

    def native_by_value(
        self, tensors: Sequence[Any], low: float, high: float, *, in_place: bool
    ) -> adapter.Native | None:
        if low != -high:
            return None
        parameters = self.container(tensors)
        torch.nn.utils.clip_grad_value_(parameters, high)
        return adapter.Native("torch.nn.utils.clip_grad_value_", None, self.contents(parameters))
