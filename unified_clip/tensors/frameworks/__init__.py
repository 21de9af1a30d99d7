"""Convert between a framework's tensors and `Dense` or `Sparse` tensors."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from ..types import Dense, Gradient, Sparse, densify


class TensorConverter(Protocol):
    """Each module of this package has a subclass named `Converter`."""

    def dense(self, tensor: Dense) -> Any:
        """Return a tensor in CPU memory."""

    def sparse(self, tensor: Sparse) -> Any:
        """Return a dense tensor, since NumPy and MLX have no sparse tensors. Other frameworks override this method."""
        return self.make(densify(tensor))

    def read(self, tensor: Any) -> Gradient:
        """A tensor that stores only some rows becomes `Sparse`."""

    def make(self, gradient: Gradient) -> Any:
        if gradient is None:
            return None
        return self.sparse(gradient) if isinstance(gradient, Sparse) else self.dense(gradient)


def converter(framework: str) -> TensorConverter:
    instance: TensorConverter = importlib.import_module(f"{__name__}.{framework}").Converter()
    return instance
