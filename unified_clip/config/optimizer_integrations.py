"""Helpers for the integrations with optimizers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from .._core.names import as_mapping, names_in, with_parameters
from .._core.types import with_article

NO_HASH = (
    "A {name} has no hash, because it stores its last clip. To compile the clip, pass a function to jax.jit: "
    "jax.jit(lambda gradients: clip(gradients)). As the key of a dict, use clip.dumps()."
)


def without_hash(config: object) -> int:
    """A configuration must not be the key of a dict or an argument of `jax.jit`."""
    raise TypeError(NO_HASH.format(name=type(config).__name__))


def integration(module: str) -> Any:
    return importlib.import_module(f"unified_clip.integrations.{module}")


def checked_names(names: Any, is_parameter: Callable[[Any], bool], title: str) -> Any:
    names = as_mapping(names)
    parameters = with_parameters(names)
    for name, parameter in parameters.items() if isinstance(parameters, Mapping) else ():
        if not is_parameter(parameter):
            kind = f"{type(parameter).__module__}.{type(parameter).__qualname__}".removeprefix("builtins.")
            raise TypeError(
                f"{name!r} in `names` is {with_article(kind)}, not a parameter of {title}. "
                "Pass the model that the optimizer trains, or a dict of name to parameter."
            )
    return names


def with_names(make: Callable[[Any], Any], names: Any) -> Any:
    names = as_mapping(names)
    handle = make(names)
    variables = getattr(names, "trainable_variables", None)  # Keras: the names are paths
    handle._clipper.declare_names(names_in(names) if variables is None else [each.path for each in variables])
    return handle
