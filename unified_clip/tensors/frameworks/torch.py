from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..types import Dense, Gradient, Sparse, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        if tensor.dtype == "bfloat16":
            return torch.from_numpy(np.array(tensor.array)).view(torch.bfloat16)
        return torch.from_numpy(to_numpy(tensor))

    def sparse(self, tensor: Sparse) -> Any:
        rows = torch.from_numpy(tensor.rows.reshape(1, -1).copy())
        return torch.sparse_coo_tensor(rows, self.dense(tensor.values), tensor.shape, check_invariants=True)

    def read(self, tensor: Any) -> Gradient:
        tensor = tensor.detach()
        if tensor.is_sparse and tensor.sparse_dim() == 1:
            rows = tensor._indices()[0].numpy(force=True)
            return Sparse(rows, self._read_dense(tensor._values()), tuple(tensor.shape))
        return self._read_dense(tensor if tensor.layout == torch.strided else tensor.to_dense())

    def _read_dense(self, tensor: Any) -> Dense:
        if tensor.dtype == torch.bfloat16:
            return Dense("bfloat16", tensor.view(torch.uint16).numpy(force=True).copy())
        return from_numpy(tensor.numpy(force=True))
