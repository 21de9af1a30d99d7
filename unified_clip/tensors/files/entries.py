"""List the tensors in a file, and select the gradients among them."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from ..._kit.display import describe_exception
from ..types import PARTS, STORAGE, Gradient, Sparse, UnreadableError
from .limits import check_expanded

NO_GRADIENTS = ("bool", "int", "uint", "str", "bytes")
"""The dtypes of counters, masks and text begin with these prefixes."""


OUT_OF_SPACE = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)


class Item(NamedTuple):
    name: str
    dtype: str
    get: Callable[[], Gradient]

    shape: Sequence[int] = ()

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(STORAGE[self.dtype]).itemsize * (2 if self.dtype in PARTS else 1)


def describe_failure(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "no permission to read the file. Change the permissions, for example with chmod u+r FILE"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in OUT_OF_SPACE):
        remedy = "Free up memory and disk space, and run the command again"
        return f"the file cannot be read: {str(error) or type(error).__name__}. {remedy}"
    return f"the file cannot be read: {describe_exception(error)}. Save the file again"


def select(items: Iterable[Item], only: Sequence[str], file_size: int | None = None) -> Iterator[tuple[str, Gradient]]:
    """Yield the name and the gradient for each tensor that matches a pattern. Without patterns, yield all gradients."""
    chosen = _chosen(items, only)
    if file_size is not None:
        chosen = iter(checked := list(chosen))
        check_expanded(sum(item.size for item in checked), file_size)
    for name, _, get, _ in chosen:
        gradient = get()
        if isinstance(gradient, Sparse):
            _check_rows(name, gradient)
        yield name, gradient


def _chosen(items: Iterable[Item], only: Sequence[str]) -> Iterator[Item]:
    names: set[str] = set()
    unmatched = set(only)
    for item in items:
        name, dtype = item.name, item.dtype
        if name in names:
            raise UnreadableError(f"two tensors have the name {name!r}. Rename one of them")
        names.add(name)
        matching = {pattern for pattern in only if name == pattern or fnmatchcase(name, pattern)}
        unmatched -= matching
        if (only and not matching) or (dtype.startswith(NO_GRADIENTS) and name not in only):
            continue
        if dtype not in STORAGE:
            known = ", ".join(STORAGE)
            raise UnreadableError(
                f"{name!r} has dtype {dtype}. Convert this tensor to one of {known}, or save the file without this "
                "tensor. In a suite, you can also choose other tensors with `only`"
            )
        yield item
    if unmatched and not names:
        raise UnreadableError("the file has no tensor. Save the gradients again")
    if unmatched:
        some = ", ".join(map(repr, sorted(names)[:5]))
        raise UnreadableError(
            f"only = {min(unmatched)!r} matches no tensor. The file has {len(names)} tensor{'s' * (len(names) > 1)}, "
            f"such as {some}. Write the name of one of these tensors"
        )


def _check_rows(name: str, gradient: Sparse) -> None:
    rows, values, shape = gradient.rows, gradient.values, gradient.shape
    if rows.ndim != 1 or not shape or values.shape != (len(rows), *shape[1:]):
        raise UnreadableError(
            f"{name!r} is a sparse tensor with the shape {list(shape)}. Its indices have the shape {list(rows.shape)}, "
            f"and its values have the shape {list(values.shape)}. This is not supported. Save a dense tensor"
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < shape[0]:
        row = rows.min() if rows.min() < 0 else rows.max()
        raise UnreadableError(
            f"{name!r} has values for row {row}, but its shape {list(shape)} has only {shape[0]} rows, counted from 0. "
            "Correct the row indices of this tensor"
        )


def flatten(value: Any, is_tensor: Callable[[Any], bool], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the tensor for each tensor in nested dicts and lists."""
    if is_tensor(value):
        yield name or "gradient 0", value
    elif isinstance(value, Mapping | list | tuple):
        first = "" if isinstance(value, Mapping) else "gradient "
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flatten(each, is_tensor, f"{name}.{key}" if name else f"{first}{key}")
