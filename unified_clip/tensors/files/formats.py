"""Read `.npz` and `.safetensors`. `docs/gradient_files.md` describes sparse gradients in safetensors."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._kit import atomic_files
from ..._kit.safetensors_files import CODES
from ..types import STORAGE, Dense, Gradient, Sparse, UnreadableError, from_numpy, name_of
from .entries import Item
from .memmap import Raw, dense, open_map, read_or_map

NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Newer versions of the npy format are only for structured arrays, which are not supported."""

DTYPES = {
    **{code: name for name, code in CODES.items()},
    "C64": "complex64", "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
}  # fmt: skip

COPY_AGAIN = "Copy the file again, or save the gradients as safetensors"


def npz_items(path: Path, opened: ExitStack) -> Iterator[Item]:
    """opened: Closes the file, when all items have been read."""
    archive = opened.enter_context(zipfile.ZipFile(opened.enter_context(atomic_files.reading(path))))

    def read(member: str) -> Gradient:
        with archive.open(member) as file:
            return from_numpy(np.lib.format.read_array(file, allow_pickle=False))

    for member in archive.namelist():
        with archive.open(member) as file:  # only the header: text and objects are not read
            shape, _, dtype = NPY_HEADERS[np.lib.format.read_magic(file)](file)
        yield Item(member.removesuffix(".npy"), name_of(dtype), partial(read, member), shape)


class TensorEntry(NamedTuple):
    dtype: str
    shape: Sequence[int]
    start: int

    def read(self, raw: Raw) -> Dense:
        return dense(raw, self.dtype, self.shape, self.start)


def safetensors_items(path: Path, opened: ExitStack) -> Iterator[Item]:
    """Yield the tensors of a file. The tensors NAME.indices and NAME.values of a sparse gradient become one `Item`."""
    raw = open_map(path)
    entries, metadata = _entries(raw)
    sparse = json.loads(metadata.get("sparse", "{}"))
    for name in sparse:
        rows = entries.get(f"{name}.indices")
        if rows is None or rows.dtype != "int64" or f"{name}.values" not in entries:
            raise UnreadableError(
                f"the metadata lists {name!r} as sparse, so the file needs the tensors '{name}.indices', with the "
                f"dtype int64, and '{name}.values'. Save both"
            )
    for name, entry in entries.items():
        gradient, _, part = name.rpartition(".")
        if gradient not in sparse or part not in ("indices", "values"):
            yield Item(name, entry.dtype, partial(entry.read, raw), entry.shape)
        elif part == "values":
            shape = tuple(sparse[gradient])
            yield Item(
                gradient, entry.dtype, partial(_sparse, raw, entries[f"{gradient}.indices"], entry, shape), shape
            )


def _sparse(raw: Raw, rows: TensorEntry, values: TensorEntry, shape: tuple[int, ...]) -> Sparse:
    return Sparse(rows.read(raw).array, values.read(raw), shape)


def load(path: Path) -> dict[str, Dense]:
    """Return the tensors in a file that unified_clip wrote."""
    try:
        raw = read_or_map(path)
        return {name: entry.read(raw) for name, entry in _entries(raw)[0].items()}
    except (UnreadableError, OSError, ValueError) as error:
        problem = str(error).removesuffix(f". {COPY_AGAIN}")  # which is for a file of the user
        raise UnreadableError(
            f"{path}, which unified-clip wrote, was changed or removed: {problem}. Run the command again"
        ) from None


def _entries(raw: Raw) -> tuple[dict[str, TensorEntry], Mapping[str, str]]:
    first = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    try:
        header: dict[str, Any] = json.loads(raw[8:first].tobytes())
        metadata = header.pop("__metadata__", {})
        entries = {name: _entry(name, first, len(raw), **each) for name, each in header.items()}
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        problem = f"the header of the file is incomplete, or is not that of a safetensors file: {error}"
        raise UnreadableError(f"{problem}. {COPY_AGAIN}") from None
    return entries, metadata


def _entry(name: str, first: int, size: int, dtype: str, shape: list[int], data_offsets: list[int]) -> TensorEntry:
    start, stop = (first + offset for offset in data_offsets)
    entry = TensorEntry(DTYPES.get(dtype, dtype), shape, start)
    if dtype in DTYPES:
        width = np.dtype(STORAGE.get(entry.dtype, entry.dtype)).itemsize * (2 if dtype == "C64" else 1)
        if not first <= start <= stop <= size or stop - start != math.prod(shape) * width:
            raise UnreadableError(
                f"{name!r} should have {math.prod(shape) * width} bytes for the dtype {entry.dtype} and the shape "
                f"{shape}, from {start} to {stop} of a file of {size} bytes. {COPY_AGAIN}"
            )
    return entry
