"""Convert between a framework's tensors and plain bytes. One module per framework, with a class `Converter`."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from ..types import Dense, Gradient, Sparse


class TensorConverter(Protocol):
    """Conversion of one framework's tensors. The subclass of each framework is called `Converter`."""

    def dense(self, tensor: Dense) -> Any:
        """Return a tensor of the framework with these bytes, in CPU memory."""

    def sparse(self, tensor: Sparse) -> Any:
        """Return the framework's own sparse tensor with these rows, repeated rows included."""

    def read(self, tensor: Any) -> Gradient:
        """Return the bytes of a tensor."""

    def make(self, gradient: Gradient) -> Any:
        """Return a gradient as a tensor of the framework."""
        if gradient is None:
            return None
        return self.sparse(gradient) if isinstance(gradient, Sparse) else self.dense(gradient)


def converter(framework: str) -> TensorConverter:
    """Import the converter of a framework, and with it the framework."""
    instance: TensorConverter = importlib.import_module(f"{__name__}.{framework}").Converter()
    return instance
