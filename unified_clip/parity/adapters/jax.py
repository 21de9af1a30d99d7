"""The parity worker's adapter for JAX, which compares unified_clip with optax, because JAX has no clip functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.experimental import sparse

from ..._backends.jax.releases import enable_x64
from ...adaptive.rules import AGC
from ...tensors.frameworks.jax import Converter
from ..call_outcome import LEARNING_RATE
from ..suite.call_form import leaves
from . import base
from .base import Invocation, Returned

problem = ""
try:
    import optax

    if not hasattr(optax, "tree"):
        problem = f"optax {optax.__version__} is too old: the suite needs optax>=0.2.5. Install a newer optax"
except Exception as error:  # an optax for another version of JAX may raise any error
    problem = f"the suite needs optax for JAX, but optax cannot be imported: {type(error).__name__}: {error}. Install "
    problem += "optax and its dependencies"
HAS_OPTAX = not problem
if problem:
    optax = base.Unimportable(
        f"{problem}. To run without optax, pass --without jax:native. Or remove native from `modes` under "
        "[frameworks.jax] of the suite"
    )


class FrameworkAdapter(Converter, base.Adapter):
    packages = ("jax", "jaxlib", *(["optax"] if HAS_OPTAX else []))
    families = ("tensorflow",)

    def scope(self, dtypes: set[str]) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = enable_x64(bool({"float64", "complex128", "int64"} & dtypes))
        return scope

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        dense = [g.todense() if isinstance(g, sparse.BCOO) else g for g in gradients]
        # jnp.ones_like compiles for each shape
        weights = [None if g is None else jax.device_put(np.ones(g.shape, g.dtype)) for g in dense]
        if not HAS_OPTAX:
            return [g if g is None else w - LEARNING_RATE * g for w, g in zip(weights, dense, strict=True)]
        step = optax.sgd(LEARNING_RATE)
        updates, _ = step.update(dense, step.init(weights))
        return list(optax.apply_updates(weights, updates))

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        return jax.jit(function)(tensors)

    def native_norm(self, invocation: Invocation, p: float) -> Returned | None:
        invocation.native = "optax.tree.norm"
        return Returned(_norm(invocation.container, p) * 1.0)

    def native_global(self, invocation: Invocation, threshold: float, p: float, norm: float | None) -> Returned | None:
        if norm is not None:
            return None
        invocation.native = "optax.clip_by_global_norm"
        clipped = _by_global_norm(invocation.container, threshold)
        return Returned(_norm(invocation.container, p) * 1.0, list(leaves(clipped)))

    def native_units(self, invocation: Invocation, rule: AGC) -> Returned | None:
        if rule.convention != "optax" or rule.smallest_norm is not None:
            return None
        invocation.native = "optax.adaptive_grad_clip"
        half = len(invocation.gradients) // 2
        gradients, parameters = list(invocation.gradients[:half]), list(invocation.gradients[half:])
        return Returned(None, _by_unit_norm(gradients, parameters, rule.clip_factor, rule.floors[0]))

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> Returned | None:
        if low != -high:
            return None
        invocation.native = "optax.clip"
        return Returned(None, _by_value(invocation.gradients, high))


# -- optax's functions under `jax.jit`, as in a training step. `jax.jit` compiles one function for all tensors of a
# case, not one for each shape


def _clip(transformation: Any, tensors: Any) -> Any:
    return transformation.update(tensors, optax.EmptyState())[0]


_norm = jax.jit(lambda tensors, p: optax.tree.norm(tensors, ord=p), static_argnums=1)
_by_global_norm = jax.jit(lambda tensors, threshold: _clip(optax.clip_by_global_norm(threshold), tensors))
_by_unit_norm = jax.jit(
    lambda tensors, parameters, factor, eps: optax.adaptive_grad_clip(factor, eps).update(
        tensors, optax.EmptyState(), parameters
    )[0]
)
_by_value = jax.jit(lambda tensors, threshold: _clip(optax.clip(threshold), tensors))
