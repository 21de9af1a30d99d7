"""Watch optax's own clipping transformations, compiled by JAX or not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from .base import NativeCall, Observer, wrap
from .jax import report_call

WATCHED = ("clip_by_global_norm", "clip")


def install(observer: Observer) -> None:
    for name in WATCHED:
        wrap([(optax, name), (optax.transforms, name)], lambda make: _watched(observer, make))


def _watched(observer: Observer, make: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(make)

    def watched(*args: Any, **kwargs: Any) -> Any:
        transformation = make(*args, **kwargs)
        (threshold,) = signature.bind(*args, **kwargs).arguments.values()

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            with observer.outermost() as is_outermost:
                clipped, state = transformation.update(updates, state, params)
                if is_outermost:
                    leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
                    held = weights if len(weights) == len(leaves) else []
                    report_call(
                        observer,
                        _describe_call(make.__name__),
                        threshold,
                        leaves,
                        jax.tree.leaves(clipped),
                        held,
                        _names(updates),
                    )
                return clipped, state

        return optax.GradientTransformation(transformation.init, update)

    return watched


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _describe_call(name: str) -> Callable[[Any], NativeCall]:
    def call(given: Any) -> NativeCall:
        threshold = float(given) if np.ndim(given) == 0 else None
        if name == "clip":
            return NativeCall(
                "optax.clip", "jax", "value", None if threshold is None else (-threshold, threshold), None, None
            )
        return NativeCall(f"optax.{name}", "jax", "global", threshold)

    return call
