"""Helpers for the integrations with optimizers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .._core.names import as_mapping, names_in

NO_HASH = (
    "A {name} has no hash, because it stores its last clip. To compile the clip, pass a function to jax.jit: "
    "jax.jit(lambda gradients: clip(gradients)). As the key of a dict, use clip.dumps()."
)


def without_hash(config: object) -> int:
    """A configuration must not be the key of a dict or an argument of `jax.jit`."""
    raise TypeError(NO_HASH.format(name=type(config).__name__))


def integration(module: str) -> Any:
    return importlib.import_module(f"unified_clip.integrations.{module}")


def with_names(make: Callable[[Any], Any], names: Any) -> Any:
    names = as_mapping(names)
    handle = make(names)
    variables = getattr(names, "trainable_variables", None)  # Keras: the names are paths
    handle._clipper.declare_names(names_in(names) if variables is None else [each.path for each in variables])
    return handle
