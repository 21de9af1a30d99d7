"""View raw memory as arrays, and find aliases among tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .kernels import Array


def view_at(address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Array:
    """`strides` counts elements. The caller must keep the memory alive."""
    numpy_dtype = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    if math.prod(shape) == 0:
        return np.empty(shape, numpy_dtype)
    return np.asarray(_Memory(address, tuple(shape), tuple(s * numpy_dtype.itemsize for s in strides), numpy_dtype.str))


class _Memory:
    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], typestr: str) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": typestr
        }  # fmt: skip


def alias_owners(tensors: Sequence[Any], views: Sequence[Array | None], describe: Callable[[int], str]) -> list[int]:
    """For each tensor, return the index of the first tensor in the same memory.

    Raise ValueError if two tensors share only a part of their memory, or if a tensor is read-only.
    """
    seen = {id(tensor): index for index, tensor in reversed(list(enumerate(tensors)))}
    owners = [seen[id(tensor)] for tensor in tensors]
    known = {
        index: view for index, view in enumerate(views) if view is not None and view.size and owners[index] == index
    }
    for index, view in known.items():
        _check_writable(view, describe(index))
    for indices in _near_each_other(known):
        different: list[int] = []
        for index in indices:
            same = next((earlier for earlier in different if _same_memory(known[index], known[earlier])), None)
            if same is not None:
                first, second = sorted((same, index))
                owners = [first if owner == second else owner for owner in owners]
                different = [first if earlier == same else earlier for earlier in different]
                continue
            for earlier in different:
                if _shares_memory(known[index], known[earlier]):
                    first, second = sorted((index, earlier))
                    raise ValueError(
                        f"{describe(first)} and {describe(second)} overlap in memory, so clipping both in place would "
                        "scale some elements twice. Replace one of these two tensors by a copy"
                    )
            different.append(index)
    return owners


def _near_each_other(views: Mapping[int, Array]) -> Iterator[list[int]]:
    """Yield groups of arrays that might overlap. Arrays in different groups never overlap."""
    ranges = {index: byte_bounds(view) for index, view in views.items()}
    group: list[int] = []
    end = 0
    for index in sorted(ranges, key=ranges.__getitem__):
        begin, stop = ranges[index]
        if group and begin >= end:
            if len(group) > 1:
                yield group
            group = []
        end = max(end, stop) if group else stop
        group.append(index)
    if len(group) > 1:
        yield group


def _check_writable(view: Array, subject: str) -> None:
    if not view.flags.writeable:
        raise ValueError(f"{subject} is read-only, so it cannot be clipped in place. Replace it by a writable copy")
    if _overlaps_itself(view):
        raise expanded(subject)


def expanded(subject: str) -> ValueError:
    return ValueError(
        f"{subject} has elements that overlap in memory (an expanded view), so it cannot be clipped in place. Replace "
        "it by a contiguous copy"
    )


def _same_memory(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or byte_bounds(a) != byte_bounds(b):
        return False
    dense = [view.nbytes == np.subtract(*byte_bounds(view)[::-1]) for view in (a, b)]
    return all(dense) or _steps(a) == _steps(b)


def _steps(view: Array) -> list[tuple[int, int]]:
    return sorted((abs(stride), length) for stride, length in zip(view.strides, view.shape, strict=True) if length > 1)


def _shares_memory(a: Array, b: Array) -> bool:
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]  # NumPy's stubs allow only 0 and -1
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(view: Array) -> bool:
    if view.flags.c_contiguous or view.flags.f_contiguous or view.size == 0:
        return False
    steps = _steps(view)
    low, high = byte_bounds(view)
    places = 1 + (high - low - view.itemsize) // (math.gcd(*(stride for stride, _ in steps)) or 1)
    if places < view.size:  # an expanded view, or sliding windows
        return True
    extent = view.itemsize
    for stride, length in steps:
        if stride < extent:
            offsets = sum(
                np.ix_(*(np.arange(n) * s for n, s in zip(view.shape, view.strides, strict=True))), np.int64(0)
            )
            return np.unique(np.asarray(offsets)).size != view.size
        extent += stride * (length - 1)
    return False


def byte_bounds(view: Array) -> tuple[int, int]:
    """Return the address of the first byte of an array, and the address after its last byte."""
    address = view.__array_interface__["data"][0]
    ends = [stride * (length - 1) for stride, length in zip(view.strides, view.shape, strict=True)]
    return address + sum(min(end, 0) for end in ends), address + sum(max(end, 0) for end in ends) + view.itemsize
