"""Record optax's own clipping transformations, compiled by JAX or not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from .base import OBSERVER, Observer
from .evidence import NativeCall
from .hooks import HOOKS
from .jax import report_call


def install() -> None:
    for name in ("clip_by_global_norm", "clip"):
        HOOKS.wrap([(optax, name), (optax.transforms, name)], _watched)


def _watched(make: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        init, update = make(*args, **kwargs)
        (threshold,) = inspect.signature(make).bind(*args, **kwargs).arguments.values()
        describe = partial(_describe_call, make.__name__)

        def report(
            observer: Observer, function: Callable[..., Any], updates: Any, state: Any, params: Any = None
        ) -> Any:
            clipped, state = function(updates, state, params)
            leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
            weights = weights if len(weights) == len(leaves) else []
            names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
            report_call(observer, describe, threshold, leaves, jax.tree.leaves(clipped), weights, names)
            return clipped, state

        return optax.GradientTransformation(init, OBSERVER.around(report)(update))

    return watched


def _describe_call(name: str, value: Any) -> NativeCall:
    threshold = float(value) if np.ndim(value) == 0 else None
    if name == "clip":
        bounds = None if threshold is None else (-threshold, threshold)
        return NativeCall("optax.clip", "jax", "value", bounds, None, None)
    return NativeCall(f"optax.{name}", "jax", "global", threshold)
