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
    """Return (backend of the first tensor, argument). The argument has copies of the iterators that this call reads.

    If there are NumPy arrays and tensors of a framework, return the backend of the framework.
    """
    if isinstance(argument, Iterator):
        argument = _Peeked(argument)
    name = _framework(argument)
    if name == "numpy":
        argument = _peeked(argument)
        name = _framework(argument)
    return _backend(name), argument


class _Peeked(Iterator[Any]):
    """An iterator that keeps its items, so that they can be read twice."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.items = list(source)
        self._rest = iter(self.items)

    def __next__(self) -> Any:
        return next(self._rest)


def _framework(container: Any) -> str:
    return next((name for name in _adapters_in(container) if name != "numpy"), "numpy")


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
    """Return the backend of a tensor. `torch.compile` can trace this call only after an eager call with a tensor
    of the same type."""
    return _backend(adapter_of(type(tensor)) or "numpy")


containers.framework_of = adapter_of


def _peeked(value: Any) -> Any:
    if adapter_of(type(value)) is not None or isinstance(value, str | bytes):
        return value
    if isinstance(value, Iterator):
        return _Peeked(map(_peeked, value))
    if isinstance(value, Mapping):
        entries = {key: _peeked(item) for key, item in value.items()}
        same = all(entries[key] is value[key] for key in entries)
        return value if same else containers.like_mapping(value, entries, value.values())
    if isinstance(value, Iterable):
        items = list(map(_peeked, value))
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else containers.sequence(value, items)
    return value


def _adapters_in(value: Any) -> Iterator[str]:
    adapter = adapter_of(type(value))
    if adapter is not None:
        yield adapter
    elif isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(map(_adapters_in, value.values()))
    elif isinstance(value, _Peeked):
        yield from itertools.chain.from_iterable(map(_adapters_in, value.items))
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes | Iterator):
        yield from itertools.chain.from_iterable(map(_adapters_in, value))
    elif value is not None and "jax" in sys.modules and not sys.modules["jax"].tree_util.all_leaves([value]):
        yield "jax"  # only JAX can flatten this type of pytree
