"""optax's own clipping transformations, watched, also inside what JAX compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from ..parity.items import from_array
from .observe import Native, Observer, Seen, wrap

WATCHED = {"clip_by_global_norm": "global", "clip": "value"}
"""From a transformation's name to its rule."""


def install(observer: Observer) -> None:
    observer.wait_with(jax.effects_barrier)
    for name in WATCHED:
        homes = [(home, name) for home in (optax, optax.transforms, getattr(optax, "_src", None)) if home is not None]
        wrap(homes, lambda make: _watched(observer, make))


def _watched(observer: Observer, make: Callable[..., Any]) -> Callable[..., Any]:
    def watched(limit: Any, *args: Any, **kwargs: Any) -> Any:
        transformation = make(limit, *args, **kwargs)

        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            clipped, state = transformation.update(updates, state, params, **extra)
            tell(observer, make.__name__, limit, updates, clipped, params)
            return clipped, state

        return optax.GradientTransformation(transformation.init, update)

    return watched


def tell(observer: Observer, name: str, limit: Any, before: Any, after: Any, params: Any) -> None:
    """Now, or whenever what is being traced is run."""
    names = [jax.tree_util.keystr(path).strip("[]'.") for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    parts = [jax.tree_util.tree_leaves(each) for each in (before, after, params)]
    count = len(names)

    def receive(given: Any, *values: Any) -> None:
        found = [from_array(np.asarray(each)) for each in values]
        weights = found[2 * count :] if len(found) == 3 * count else []
        observer.see(_native(name, given), Seen(found[:count], found[count : 2 * count], weights, names))

    arrays = [each for part in parts for each in part]
    if isinstance(limit, int | float):  # as it was given, and not as float32
        jax.debug.callback(lambda *values: receive(limit, *values), *arrays, ordered=True)
    else:
        jax.debug.callback(receive, limit, *arrays, ordered=True)


def _native(name: str, given: Any) -> Native:
    limit = float(given) if np.ndim(given) == 0 else None
    full = f"optax.{name}"
    if WATCHED[name] == "value":
        return Native(full, "jax", "value", None if limit is None else (-limit, limit), None, None)
    return Native(full, "jax", "global", limit)
