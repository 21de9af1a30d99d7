"""Convert between a framework's tensors and `Dense` or `Sparse` tensors. Each module has a class `Converter`."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from ..types import Dense, Gradient, Sparse, densify


class TensorConverter(Protocol):
    """The conversion of a framework's tensors from and to `Dense` or `Sparse`. Each framework has a subclass
    `Converter`.
    """

    def dense(self, tensor: Dense) -> Any:
        """Return a tensor of the framework in CPU memory. TypeError: the framework lacks the dtype."""

    def sparse(self, tensor: Sparse) -> Any:
        """Return a sparse tensor of the framework with the rows of `tensor`. Rows with the same index stay separate.

        By default, return the equal dense tensor, because NumPy and MLX have no sparse tensors.
        """
        return self.make(densify(tensor))

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
