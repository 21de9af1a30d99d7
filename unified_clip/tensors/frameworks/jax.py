from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import sparse

from ..types import Dense, Gradient, Sparse, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        # jnp.array compiles for each shape. `device_put` may share the memory of its argument, here a copy.
        return jax.device_put(np.array(to_numpy(tensor)))

    def sparse(self, tensor: Sparse) -> Any:
        rows = jax.device_put(tensor.rows.astype(np.int32).reshape(-1, 1))
        return sparse.BCOO((self.dense(tensor.values), rows), shape=tensor.shape)

    def read(self, tensor: Any) -> Gradient:
        if isinstance(tensor, sparse.BCOO) and (tensor.n_batch, tensor.n_sparse) != (0, 1):
            tensor = tensor.todense()
        if isinstance(tensor, sparse.BCOO):
            rows = np.asarray(tensor.indices)[:, 0].astype(np.int64)
            return Sparse(rows, from_numpy(np.asarray(tensor.data)), tuple(tensor.shape))
        return from_numpy(np.asarray(tensor))
