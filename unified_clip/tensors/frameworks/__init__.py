"""Convert between a framework's tensors and `Dense` or `Sparse` tensors. Each module has a class `Converter`."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from ..types import Dense, Gradient, Sparse


class TensorConverter(Protocol):
    """The conversion between one framework's tensors and `Dense` or `Sparse` tensors.

    Each framework's module has a subclass `Converter`.
    """

    def dense(self, tensor: Dense) -> Any:
        """Return a tensor of the framework with the elements of `tensor`, in CPU memory.

        TypeError: the framework does not have the dtype, such as MLX for complex128.
        """

    def sparse(self, tensor: Sparse) -> Any:
        """Return a sparse tensor of the framework with the rows of `tensor`. Rows with the same index stay separate.

        For NumPy and MLX, which have no sparse tensors, return the equal dense tensor.
        """

    def read(self, tensor: Any) -> Gradient:
        """Return a tensor of the framework as a `Dense` tensor. If it is sparse by rows, return it as `Sparse`."""

    def make(self, gradient: Gradient) -> Any:
        """Return a dense or sparse gradient as a tensor of the framework. Return None for None."""
        if gradient is None:
            return None
        return self.sparse(gradient) if isinstance(gradient, Sparse) else self.dense(gradient)


def converter(framework: str) -> TensorConverter:
    """Import a framework, such as "torch", and return a new object that converts its tensors."""
    instance: TensorConverter = importlib.import_module(f"{__name__}.{framework}").Converter()
    return instance
