"""What a file of gradients holds, tensor by tensor, and which of it are gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import adapter
from .tensors import STORAGE, Dense, Gradient, Sparse, UnreadableError

NO_GRADIENTS = ("bool", "int", "uint", "str", "bytes")
"""How the names of dtypes begin that are left out: counters, masks, text."""


class Item(NamedTuple):
    """A tensor in a file, before it is read."""

    name: str
    dtype: str
    """NumPy's name for it, or that of ml_dtypes."""

    get: Callable[[], Gradient]


def select(items: Iterable[Item], only: Sequence[str]) -> Iterator[tuple[str, Gradient]]:
    """The gradients among the tensors whose names match one of the patterns `only`, or all where there are none.

    Integers and text are left out, but for what `only` names in full.
    """
    names: set[str] = set()
    unmatched = set(only)
    for name, dtype, get in items:
        if name in names:
            raise twice(name)
        names.add(name)
        matching = {pattern for pattern in only if name == pattern or fnmatchcase(name, pattern)}
        unmatched -= matching
        if (only and not matching) or (dtype.startswith(NO_GRADIENTS) and name not in only):
            continue
        if dtype not in STORAGE:
            known = ", ".join(STORAGE)
            raise UnreadableError(f"{name!r} has the dtype {dtype}, and not {known}; choose other tensors with only =")
        gradient = get()
        if isinstance(gradient, Sparse):
            _check_rows(name, gradient)
        yield name, gradient
    if unmatched:
        some = ", ".join(map(repr, sorted(names)[:5])) or "none"
        raise UnreadableError(f"only = {min(unmatched)!r} matches no tensor; there are {len(names)}, such as {some}")


def twice(name: str) -> UnreadableError:
    return UnreadableError(f"{name!r} is there twice; give each gradient a name of its own")


def _check_rows(name: str, gradient: Sparse) -> None:
    """Refuse what is not one row of values for each row that is named."""
    rows, values, shape = gradient.rows, gradient.values, gradient.shape
    if rows.ndim != 1 or not shape or values.shape != (len(rows), *shape[1:]):
        raise UnreadableError(
            f"{name!r} is sparse in another way than by rows: its shape is {list(shape)}, that of its indices"
            f" {list(rows.shape)}, that of its values {list(values.shape)}; save it as a dense tensor"
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < shape[0]:
        raise UnreadableError(f"{name!r} has a row that its shape {list(shape)} lacks")


def flatten(value: Any, is_tensor: Callable[[Any], bool], name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in nested dicts and lists: `a.b` for `{"a": {"b": ...}}`, `gradient 0` for the first of a list.

    Whatever else is there, None too, is left out.
    """
    if is_tensor(value):
        yield name or "gradient 0", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, is_tensor, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flatten(item, is_tensor, f"{name}.{index}" if name else f"gradient {index}")


def name_of(dtype: np.dtype[Any]) -> str:
    """Two bytes that NumPy knows nothing about are what np.savez and HDF5 make of the bfloat16 of ml_dtypes."""
    return "bfloat16" if dtype.name == "void16" and dtype.names is None else dtype.name


def from_array(array: npt.NDArray[Any]) -> Dense:
    """An array, of any byte order, as a tensor in new memory."""
    if name_of(array.dtype) == "bfloat16":
        return Dense("bfloat16", np.array(array.view(np.uint16)))
    return adapter.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
