"""Find the framework of an argument by the types of its tensors, and import only this framework."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ._core import containers
from ._core.backend import Backend

ADAPTERS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "paddle": "paddle",
    "jax": "jax",
    "jaxlib": "jax",
    "mlx": "mlx",
    "numpy": "numpy",
}
"""Maps each package that defines tensor types to the name of its backend."""


def resolve(argument: Any) -> tuple[Backend, Any]:
    """Return (backend of the first tensor, argument). For an iterator, return a new iterator over the same items.

    If there are NumPy arrays and tensors of a framework, return the backend of the framework.
    """
    items = list(argument) if isinstance(argument, Iterator) else argument
    name = next((name for name in _adapters_in(items) if name != "numpy"), "numpy")
    return _backend(name), argument if items is argument else iter(items)


_loaded: dict[str, Backend] = {}
_known: dict[type, str | None] = {}  # `torch.compile` warns of functools.cache


def _backend(name: str) -> Backend:
    if name not in _loaded:
        _loaded[name] = importlib.import_module(f"unified_clip._backends.{name}").BACKEND
    return _loaded[name]


def backend_named(name: str) -> Backend:
    names = sorted(set(ADAPTERS.values()))
    if name not in names:
        raise ValueError(f"there is no framework {name!r}. Use one of {', '.join(names)}")
    return _backend(name)


def adapter_of(kind: type) -> str | None:
    if kind not in _known:
        packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
        _known[kind] = next((ADAPTERS[package] for package in packages if package in ADAPTERS), None)
    return _known[kind]


def backend_of(tensor: Any) -> Backend:
    return _backend(adapter_of(type(tensor)) or "numpy")


containers.framework_of = adapter_of


def _adapters_in(value: Any) -> Iterator[str]:
    adapter = adapter_of(type(value))
    if adapter is not None:
        yield adapter
    elif isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(map(_adapters_in, value.values()))
    elif isinstance(value, Iterator):
        raise TypeError("an iterator is inside another container. Pass a list in its place")
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        yield from itertools.chain.from_iterable(map(_adapters_in, value))
    elif value is not None and "jax" in sys.modules and not sys.modules["jax"].tree_util.all_leaves([value]):
        yield "jax"  # only JAX can flatten this type of pytree
