"""Tensors that stay in their files, by memory map: a file of 10 GB takes no memory until its tensors are used.

What cannot be mapped where it lies is written, tensor by tensor, into a directory of scratch space, and mapped there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..types import PARTS, STORAGE, Dense, Gradient, Sparse

Raw = npt.NDArray[np.uint8]
"""A file's bytes."""

TENSORS, INDEX, FAILED = "tensors", "index.json", "failed.json"
"""The files in a directory of scratch space: tensors, one after the other; where each begins; why there are none."""

ALIGNMENT = 64
"""Bytes. As many come before the first tensor, so that the file is never empty."""


def open_map(path: Path) -> Raw:
    """Map a whole file once, since each map keeps a file descriptor open."""
    return np.memmap(path, np.uint8, "r")


def dense(raw: Raw, dtype: str, shape: Sequence[int], start: int) -> Dense:
    """Return the tensor that begins at a byte of a mapped file. The array has the place as `filename` and `offset`."""
    whole = (*shape, 2) if dtype in PARTS else tuple(shape)
    size = math.prod(whole) * np.dtype(STORAGE[dtype]).itemsize
    array = raw[start : start + size].view(STORAGE[dtype]).reshape(whole)
    if isinstance(array, np.memmap):  # NumPy gives a plain array where there are no elements
        array.offset = start
    return Dense(dtype, array)


def place_of(tensor: Dense) -> dict[str, Any] | None:
    """Return the place of a tensor, for another process to map it with `at`; None if it is in no file."""
    array = tensor.array
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
        return None  # what NumPy computes from a map is of its type too, without a file
    return {"file": str(array.filename), "dtype": tensor.dtype, "shape": tensor.shape, "start": array.offset}


def at(file: str, **place: Any) -> Dense:
    """Return the tensor at a place that `place_of` returned."""
    return dense(_shared_map(Path(file)), **place)


_shared_map = cache(open_map)


def keep(found: Iterable[tuple[str, Gradient]], directory: Path) -> dict[str, Gradient]:
    """Return gradients by name, all of them mapped. Write those that are in memory into the directory first."""
    kept: dict[str, Gradient] = {}

    def unmapped() -> Iterator[tuple[str, Gradient]]:
        for name, gradient in found:
            kept[name] = gradient if _is_mapped(gradient) else None
            if kept[name] is None:
                yield name, gradient

    write(unmapped(), directory)
    return kept | load(directory)


def _is_mapped(gradient: Gradient) -> bool:
    parts = [gradient.rows, gradient.values.array] if isinstance(gradient, Sparse) else []
    parts += [gradient.array] if isinstance(gradient, Dense) else []
    return all(not part.size or isinstance(part, np.memmap) for part in parts)


def write(gradients: Iterable[tuple[str, Gradient]], directory: Path) -> None:
    """Write gradients into a directory as they come, so that one at a time is in memory; the index last."""
    index: dict[str, Any] = {}
    with (directory / TENSORS).open("wb") as file:
        file.write(bytes(ALIGNMENT))
        for name, gradient in gradients:
            if isinstance(gradient, Sparse):
                rows = Dense("int64", gradient.rows.astype(np.int64))
                parts = {"rows": _write(file, rows), "values": _write(file, gradient.values)}
                index[name] = {**parts, "shape": gradient.shape}
            elif gradient is not None:
                index[name] = _write(file, gradient)
    (directory / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _write(file: IO[bytes], tensor: Dense) -> dict[str, Any]:
    start = file.tell()
    size = file.write(np.ascontiguousarray(tensor.array).data)
    file.write(bytes(-size % ALIGNMENT))
    return {"dtype": tensor.dtype, "shape": tensor.shape, "start": start}


def load(directory: Path) -> dict[str, Gradient]:
    """Map the gradients that were written into a directory."""
    index: Mapping[str, Any] = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    raw = open_map(directory / TENSORS)
    gradients: dict[str, Gradient] = {}
    for name, entry in index.items():
        if "rows" in entry:
            rows, values = dense(raw, **entry["rows"]), dense(raw, **entry["values"])
            gradients[name] = Sparse(rows.array, values, tuple(entry["shape"]))
        else:
            gradients[name] = dense(raw, **entry)
    return gradients
