"""JAX for the worker. Its own functions are optax's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from . import adapter
from .adapter import Native
from .calls import Arguments, Call
from .tensors import Dense, Gradient, Sparse

try:
    import optax
except ModuleNotFoundError:
    optax = None  # then there is nothing to compare ours with


class Framework(adapter.Adapter):
    packages = ("jax", "jaxlib", "optax")

    def dense(self, tensor: Dense) -> Any:
        return jnp.asarray(adapter.to_numpy(tensor))

    def sparse(self, tensor: Sparse) -> Any:
        rows = jnp.asarray(tensor.rows.astype(np.int32)).reshape(-1, 1)
        return sparse.BCOO((self.dense(tensor.values), rows), shape=tensor.shape)

    def read(self, tensor: Any) -> Gradient:
        if isinstance(tensor, sparse.BCOO):
            rows = np.asarray(tensor.indices)[:, 0].astype(np.int64)
            return Sparse(rows, self.read_dense(tensor.data), tuple(tensor.shape))
        return self.read_dense(tensor)

    def read_dense(self, tensor: Any) -> Dense:
        return adapter.from_numpy(np.asarray(tensor))

    def scope(self, dtypes: set[str]) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = jax.enable_x64("float64" in dtypes)
        return scope

    def native(self, call: Call, arguments: Arguments, tensors: Sequence[Any]) -> Native | None:
        if optax is None:
            return None
        if any(isinstance(tensor, sparse.BCOO) for tensor in tensors):
            raise NotImplementedError("not called: optax takes the row numbers of a BCOO array for gradients")
        return super().native(call, arguments, tensors)

    def native_norm(self, tensors: Sequence[Any], p: float) -> Native | None:
        return Native("optax.tree.norm", NATIVES.norm(tensors, p))

    def native_global(self, tensors: Sequence[Any], limit: float, p: float, *, in_place: bool) -> Native | None:
        if p != 2:
            return None
        clipped = NATIVES.by_global_norm(tensors, limit)
        return Native("optax.clip_by_global_norm", NATIVES.norm(tensors, p), clipped)

    def native_by_norm(self, tensors: Sequence[Any], limit: float, axes: Sequence[int] | None) -> Native | None:
        if axes is not None:
            return None
        return Native("optax.clip_by_global_norm, for each", None, NATIVES.by_norm(tensors, limit))

    def native_by_value(self, tensors: Sequence[Any], low: float, high: float, *, in_place: bool) -> Native | None:
        return Native("optax.clip", None, NATIVES.by_value(tensors, high)) if low == -high else None


class Optax:
    """optax's functions under `jax.jit`, as in a training step: a list of shapes is compiled once, not each shape."""

    def __init__(self) -> None:
        self.norm = jax.jit(self._norm, static_argnums=1)
        self.by_global_norm = jax.jit(self._by_global_norm)
        self.by_norm = jax.jit(self._by_norm)
        self.by_value = jax.jit(self._by_value)

    @staticmethod
    def _norm(tensors: Any, p: float) -> Any:
        return optax.tree.norm(tensors, ord=p)

    @staticmethod
    def _by_global_norm(tensors: Any, limit: Any) -> Any:
        return optax.clip_by_global_norm(limit).update(tensors, optax.EmptyState())[0]

    @staticmethod
    def _by_norm(tensors: Any, limit: Any) -> Any:
        clip = optax.clip_by_global_norm(limit)
        return [tensor if tensor is None else clip.update(tensor, optax.EmptyState())[0] for tensor in tensors]

    @staticmethod
    def _by_value(tensors: Any, limit: Any) -> Any:
        return optax.clip(limit).update(tensors, optax.EmptyState())[0]


NATIVES = Optax()
