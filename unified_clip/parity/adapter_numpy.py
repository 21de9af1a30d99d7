"""NumPy for the worker: no sparse tensors, no functions of its own to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import adapter
from .tensors import Dense, Gradient, Sparse, densify


class Framework(adapter.Adapter):
    packages = ("numpy",)

    def dense(self, tensor: Dense) -> Any:
        return adapter.to_numpy(tensor)

    def sparse(self, tensor: Sparse) -> Any:
        dense = densify(tensor)
        assert dense is not None
        return adapter.to_numpy(dense)

    def read(self, tensor: Any) -> Gradient:
        return adapter.from_numpy(np.asarray(tensor))
