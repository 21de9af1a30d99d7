"""Compare the catalog of `port` with the signatures of the functions in a framework's installed release."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from unified_clip.port import catalog
from unified_clip.port.catalog import ClipFunction

MODULES = {
    "torch": {"torch": "torch"},
    "tensorflow": {"tf": "tensorflow", "keras": "keras"},
    "paddle": {"paddle": "paddle"},
    "jax": {"jax": "jax", "optax": "optax"},
}
"""By framework and the first part of a full name, the module."""

LEAST = {"torch": 5, "tensorflow": 5, "paddle": 10, "jax": 5}
"""The catalog has at least so many functions of each framework that its installed release has."""


def installed(framework: str) -> Iterator[tuple[str, ClipFunction, list[str]]]:
    """Yield (full name, function, parameters) of each function that the installed release has with a signature."""
    modules = {first: importlib.import_module(module) for first, module in MODULES[framework].items()}
    for name, function in catalog.clip_functions().items():
        first, *rest = name.split(".")
        value: Any = modules.get(first)
        for part in rest:
            value = getattr(value, part, None)
        if callable(value):
            try:
                parameters = inspect.signature(value).parameters.values()
            except ValueError:  # a built-in function without a signature
                continue
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
            yield name, function, [parameter.name for parameter in parameters if parameter.kind in kinds]


def compare(framework: str) -> None:
    """Check that the catalog has the parameters of each function, in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names
        functions = list(installed(framework))
    assert len(functions) >= LEAST[framework]
    for name, function, parameters in functions:
        shared = min(len(parameters), len(function.parameters))
        assert parameters[:shared] == list(function.parameters[:shared]), (
            f"port/catalog.toml, {name}: `parameters` are {list(function.parameters)}, and {name} has {parameters}."
        )
