"""optax's own clipping transformations, watched, also inside what JAX compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from .base import Native, Observer, wrap
from .jax import tell

WATCHED = ("clip_by_global_norm", "clip")


def install(observer: Observer) -> None:
    for name in WATCHED:
        wrap([(optax, name), (optax.transforms, name)], lambda make: _watched(observer, make))


def _watched(observer: Observer, make: Callable[..., Any]) -> Callable[..., Any]:
    def watched(limit: Any) -> Any:
        transformation = make(limit)

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            with observer.outermost() as counts:
                clipped, state = transformation.update(updates, state, params)
                if counts:
                    leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
                    held = weights if len(weights) == len(leaves) else []
                    tell(
                        observer, _native(make.__name__), limit, leaves, jax.tree.leaves(clipped), held, _names(updates)
                    )
                return clipped, state

        return optax.GradientTransformation(transformation.init, update)

    return watched


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _native(name: str) -> Callable[[Any], Native]:
    def native(given: Any) -> Native:
        limit = float(given) if np.ndim(given) == 0 else None
        if name == "clip":
            return Native("optax.clip", "jax", "value", None if limit is None else (-limit, limit), None, None)
        return Native(f"optax.{name}", "jax", "global", limit)

    return native
