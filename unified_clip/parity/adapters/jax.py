"""JAX for the worker. Its own functions are optax's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import sparse

from ...tensors.frameworks.jax import Converter
from ..outcome import LEARNING_RATE
from ..suite.call_form import leaves
from . import base
from .base import Invocation, NativeResult

try:
    import optax
except ModuleNotFoundError:
    optax = None  # then there is nothing to compare ours with


class Framework(Converter, base.Adapter):
    packages = ("jax", "jaxlib", "optax")
    families = ("tensorflow",)

    def scope(self, dtypes: set[str]) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = jax.enable_x64(bool({"float64", "complex128", "int64"} & dtypes))
        return scope

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        dense = [g.todense() if isinstance(g, sparse.BCOO) else g for g in gradients]
        weights = [None if g is None else jnp.ones_like(g) for g in dense]
        if optax is None:
            return [g if g is None else w - LEARNING_RATE * g for w, g in zip(weights, dense, strict=True)]
        step = optax.sgd(LEARNING_RATE)
        updates, _ = step.update(dense, step.init(weights))
        return list(optax.apply_updates(weights, updates))

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        return jax.jit(function)(tensors)

    def has_native(self, invocation: Invocation) -> bool:
        return optax is not None and super().has_native(invocation)

    def native_norm(self, invocation: Invocation, p: float) -> NativeResult | None:
        invocation.set_native("optax.tree.norm")
        return NativeResult(invocation.native, NATIVES.norm(invocation.container, p) * 1.0)

    def native_global(self, invocation: Invocation, threshold: float, p: float) -> NativeResult | None:
        invocation.set_native("optax.clip_by_global_norm")
        clipped = NATIVES.by_global_norm(invocation.container, threshold)
        return NativeResult(invocation.native, NATIVES.norm(invocation.container, p) * 1.0, list(leaves(clipped)))

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> NativeResult | None:
        if low != -high:
            return None
        invocation.set_native("optax.clip")
        return NativeResult(invocation.native, None, NATIVES.by_value(invocation.gradients, high))


class Optax:
    """optax's functions under `jax.jit`, as in a training step: a list of shapes is compiled once, not each shape."""

    def __init__(self) -> None:
        self.norm = jax.jit(self._norm, static_argnums=1)
        self.by_global_norm = jax.jit(self._by_global_norm)
        self.by_value = jax.jit(self._by_value)

    @staticmethod
    def _norm(tensors: Any, p: float) -> Any:
        return optax.tree.norm(tensors, ord=p)

    @staticmethod
    def _by_global_norm(tensors: Any, threshold: Any) -> Any:
        return optax.clip_by_global_norm(threshold).update(tensors, optax.EmptyState())[0]

    @staticmethod
    def _by_value(tensors: Any, threshold: Any) -> Any:
        return optax.clip(threshold).update(tensors, optax.EmptyState())[0]


NATIVES = Optax()
