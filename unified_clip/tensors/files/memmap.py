"""Memory-map tensors in their files: a file of 10 GB takes no memory until its tensors are used.

A tensor that cannot be mapped in its own file is written to a file in a scratch directory, which is mapped instead.
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
"""The bytes of a file."""

Entry = Any
"""Where a gradient is in a file, as JSON data. None for a gradient that is None."""

TENSORS, INDEX, FAILED = "tensors", "index.json", "failed.json"
"""The names of three files in a scratch directory. TENSORS has all tensors, one after another. INDEX has the `Entry` of
each tensor by name. FAILED has the error if there are no tensors.
"""

ALIGNMENT = 64
"""Each tensor in the file `TENSORS` begins at a multiple of this many bytes."""

SMALL = 1 << 25
"""A file with fewer bytes than this is read at once instead of mapped."""


def open_map(path: Path) -> Raw:
    """Return a file as an array of bytes, mapped if it is not empty. Map it only once: each map keeps it open."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def read_or_map(path: Path) -> Raw:
    """Return a file as an array of bytes. Read a file of less than `SMALL` bytes at once, and map a larger one."""
    return np.fromfile(path, np.uint8) if path.stat().st_size < SMALL else open_map(path)


def dense(raw: Raw, dtype: str, shape: Sequence[int], start: int) -> Dense:
    """Return the tensor that starts at the byte `start` of a file. Its array is a view of `raw`.

    If `raw` is a memory map, the array is a memory map, too, with `start` as its attribute `offset`. An array without
    elements is a plain NumPy array.

    dtype: A key of `STORAGE`.
    """
    whole = (*shape, 2) if dtype in PARTS else tuple(shape)
    size = math.prod(whole) * np.dtype(STORAGE[dtype]).itemsize
    array = raw[start : start + size].view(STORAGE[dtype]).reshape(whole)
    if isinstance(array, np.memmap):  # without elements, NumPy returns a plain array
        array.offset = start
    return Dense(dtype, array)


def append(file: IO[bytes], gradient: Gradient) -> Entry:
    """Write a gradient to a file. Return its entry, from which `at` finds the gradient again.

    A contiguous tensor that is mapped from another file is not copied: the entry has the path of that file. For None,
    write nothing and return None.
    """
    if gradient is None:
        return None
    if isinstance(gradient, Sparse):
        rows = Dense("int64", gradient.rows.astype(np.int64, copy=False))
        return {"rows": append(file, rows), "values": append(file, gradient.values), "shape": gradient.shape}
    array = gradient.array
    entry = {"dtype": gradient.dtype, "shape": gradient.shape}
    # NumPy's results of computations with a memory map have its type, too, but no file.
    if isinstance(array, np.memmap) and array.filename is not None and array.flags.c_contiguous:
        return {**entry, "file": str(array.filename), "start": array.offset}
    start = file.tell()
    size = file.write(np.ascontiguousarray(array).data)
    file.write(bytes(-size % ALIGNMENT))
    return {**entry, "start": start}


def at(raw: Raw, entry: Entry) -> Gradient:
    """Return the gradient that `append` wrote. Return None if the entry is None.

    raw: The bytes of the file that `append` wrote. If the entry has the path of another file, that file is mapped.
    entry: The return value of `append`.
    """
    if entry is not None and "rows" in entry:
        return Sparse(_dense_at(raw, entry["rows"]).array, _dense_at(raw, entry["values"]), tuple(entry["shape"]))
    return None if entry is None else _dense_at(raw, entry)


def _dense_at(raw: Raw, entry: Entry) -> Dense:
    raw = _shared_map(Path(entry["file"])) if "file" in entry else raw
    return dense(raw, entry["dtype"], entry["shape"], entry["start"])


_shared_map = cache(open_map)


def write(gradients: Iterable[tuple[str, Gradient]], directory: Path) -> None:
    """Write the gradients into the file TENSORS of a directory, one at a time, and their entries into INDEX."""
    with (directory / TENSORS).open("wb") as file:
        index = {name: append(file, gradient) for name, gradient in gradients}
    (directory / INDEX).write_text(json.dumps(index), encoding="utf-8")


def load(directory: Path) -> dict[str, Gradient]:
    """Return the gradients that `write` stored in a directory, by name. Gradients with elements are memory-mapped."""
    index: Mapping[str, Entry] = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    raw = open_map(directory / TENSORS)
    return {name: at(raw, entry) for name, entry in index.items()}


def keep(gradients: Iterable[tuple[str, Gradient]], directory: Path) -> dict[str, Gradient]:
    """Return all gradients by name, as memory maps. Gradients in memory are first written into the directory.

    Arrays without elements are plain NumPy arrays. A None remains None.
    """
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
