"""Memory-map tensors in their files, so that a file of 10 GB takes no memory until its tensors are used."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..._kit import atomic_files
from ..types import PARTS, STORAGE, Dense, Gradient, Sparse

Raw = npt.NDArray[np.uint8]

Entry = Any
"""The position of a gradient in a file, as JSON data."""

TENSORS, INDEX, FAILED = "tensors", "index.json", "failed.json"
ALIGNMENT = 64  # in bytes

SMALL = 1 << 25
"""Smaller files are read into memory instead of mapped."""


def open_map(path: Path) -> Raw:
    """Map a file. Call this function only once for a file, because every map keeps the file open."""
    with atomic_files.reading(path) as file:
        return np.memmap(file, np.uint8, "r") if os.fstat(file.fileno()).st_size else np.zeros(0, np.uint8)


def read_or_map(path: Path) -> Raw:
    raw = open_map(path)
    return np.array(raw) if len(raw) < SMALL else raw


def dense(raw: Raw, dtype: str, shape: Sequence[int], start: int) -> Dense:
    """Return the tensor that starts at the byte `start`, as a view of `raw`."""
    whole = (*shape, 2) if dtype in PARTS else tuple(shape)
    size = math.prod(whole) * np.dtype(STORAGE[dtype]).itemsize
    array = raw[start : start + size].view(STORAGE[dtype]).reshape(whole)
    if isinstance(array, np.memmap):  # without elements, NumPy returns a plain array
        array.offset = start
    return Dense(dtype, array)


def append(file: IO[bytes], gradient: Gradient) -> Entry:
    """Write a gradient to `file`, unless the gradient is a memory map of another file. Return the gradient's place."""
    if gradient is None:
        return None
    if isinstance(gradient, Sparse):
        rows = Dense("int64", gradient.rows.astype(np.int64, copy=False))
        return {"rows": append(file, rows), "values": append(file, gradient.values), "shape": gradient.shape}
    array = gradient.array
    entry = {"dtype": gradient.dtype, "shape": gradient.shape}
    # A result that NumPy computes from a memory map is also an np.memmap, but has no file.
    if isinstance(array, np.memmap) and array.filename is not None and array.flags.c_contiguous:
        return {**entry, "file": str(array.filename), "start": array.offset}
    start = file.tell()
    size = file.write(np.ascontiguousarray(array).data)
    file.write(bytes(-size % ALIGNMENT))
    return {**entry, "start": start}


def at(raw: Raw, entry: Entry) -> Gradient:
    if entry is not None and "rows" in entry:
        return Sparse(_dense_at(raw, entry["rows"]).array, _dense_at(raw, entry["values"]), tuple(entry["shape"]))
    return None if entry is None else _dense_at(raw, entry)


def _dense_at(raw: Raw, entry: Entry) -> Dense:
    raw = _shared_map(Path(entry["file"])) if "file" in entry else raw
    return dense(raw, entry["dtype"], entry["shape"], entry["start"])


_shared_map = cache(open_map)


def write(gradients: Iterable[tuple[str, Gradient]], directory: Path) -> None:
    with (directory / TENSORS).open("wb") as file:
        index = {name: append(file, gradient) for name, gradient in gradients}
    atomic_files.write(directory / INDEX, json.dumps(index))


def load(directory: Path) -> dict[str, Gradient]:
    index: Mapping[str, Entry] = json.loads(atomic_files.read_text(directory / INDEX, None))
    raw = open_map(directory / TENSORS)
    return {name: at(raw, entry) for name, entry in index.items()}


def keep(gradients: Iterable[tuple[str, Gradient]], directory: Path) -> dict[str, Gradient]:
    """Return all gradients as memory maps. Gradients that are in memory are first written to files in `directory`."""
    kept: dict[str, Gradient] = {}

    def unmapped() -> Iterator[tuple[str, Gradient]]:
        for name, gradient in gradients:
            kept[name] = gradient if _is_mapped(gradient) else None
            if kept[name] is None:
                yield name, gradient

    write(unmapped(), directory)
    return kept | load(directory)


def _is_mapped(gradient: Gradient) -> bool:
    parts = [gradient.rows, gradient.values.array] if isinstance(gradient, Sparse) else []
    parts += [gradient.array] if isinstance(gradient, Dense) else []
    return all(not part.size or isinstance(part, np.memmap) for part in parts)
