"""Record optax's own clipping transformations, compiled by JAX or not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from .base import NativeCall, Observer, wrap
from .jax import report_call


def install(observer: Observer) -> None:
    for name in ("clip_by_global_norm", "clip"):
        wrap([(optax, name), (optax.transforms, name)], lambda make: _watched(observer, make))


def _watched(observer: Observer, make: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        init, update = make(*args, **kwargs)
        (threshold,) = inspect.signature(make).bind(*args, **kwargs).arguments.values()
        describe = partial(_describe_call, make.__name__)

        def report(_: Observer, function: Callable[..., Any], updates: Any, state: Any, params: Any = None) -> Any:
            clipped, state = function(updates, state, params)
            leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
            weights = weights if len(weights) == len(leaves) else []
            names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
            report_call(observer, describe, threshold, leaves, jax.tree.leaves(clipped), weights, names)
            return clipped, state

        return optax.GradientTransformation(init, observer.around(report)(update))

    return watched


def _describe_call(name: str, value: Any) -> NativeCall:
    threshold = float(value) if np.ndim(value) == 0 else None
    if name == "clip":
        bounds = None if threshold is None else (-threshold, threshold)
        return NativeCall("optax.clip", "jax", "value", bounds, None, None)
    return NativeCall(f"optax.{name}", "jax", "global", threshold)
