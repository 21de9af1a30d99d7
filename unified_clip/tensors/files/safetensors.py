"""Read safetensors files. `parity/data/README.md` describes the format of sparse gradients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._kit.limits import check_shape
from ..._kit.safetensors_files import CODES
from ..types import STORAGE, Dense, Sparse, UnreadableError
from .entries import Item
from .memmap import Raw, dense, open_map, read_or_map

LONGEST_HEADER = 100_000_000
"""The format allows at most this number of bytes."""

DTYPES = {
    **{code: name for name, code in CODES.items()},
    "C64": "complex64", "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
}  # fmt: skip


class TensorEntry(NamedTuple):
    dtype: str
    shape: Sequence[int]
    start: int
    stop: int

    def read(self, raw: Raw) -> Dense:
        return dense(raw, self.dtype, self.shape, self.start)


def items(path: Path) -> Iterator[Item]:
    """Yield the tensors of a file. The tensors NAME.indices and NAME.values of a sparse gradient become one `Item`."""
    raw = open_map(path)
    header, start = _header(raw)
    sparse = _sparse_shapes(header.pop("__metadata__", {}))
    entries = _entries(header, start, len(raw))
    for name in sparse:
        rows, values = f"{name}.indices", f"{name}.values"
        for part in (rows, values):
            if part not in entries:
                raise UnreadableError(
                    f"the metadata lists {name!r} as sparse, but the file has no tensor {part!r}. Save {part!r}, too"
                )
        if entries[rows].dtype != "int64":
            raise UnreadableError(
                f"{rows!r} contains the row indices of a sparse tensor, but its dtype is {entries[rows].dtype}. Save "
                "the row indices as int64"
            )
    for name, entry in entries.items():
        gradient, _, part = name.rpartition(".")
        if gradient not in sparse or part not in ("indices", "values"):
            yield Item(name, entry.dtype, partial(entry.read, raw), entry.shape)
        elif part == "values":
            read = partial(_sparse, raw, entries[f"{gradient}.indices"], entry, sparse[gradient])
            yield Item(gradient, entry.dtype, read, sparse[gradient])


def load(path: Path) -> dict[str, Dense]:
    """Return the tensors in a file that unified_clip wrote."""
    try:
        raw = read_or_map(path)
        header, start = _header(raw)
        return {name: entry.read(raw) for name, entry in _entries(header, start, len(raw)).items()}
    except (UnreadableError, OSError, ValueError) as error:
        # The remedy of an UnreadableError is for a file of the user.
        problem = str(error).rpartition(". ")[0] if isinstance(error, UnreadableError) else error
        raise UnreadableError(
            f"{path}, which unified-clip wrote, was changed or removed: {problem}. Run the command again"
        ) from None


def _sparse(raw: Raw, rows: TensorEntry, values: TensorEntry, shape: Sequence[int]) -> Sparse:
    return Sparse(rows.read(raw).array, values.read(raw), tuple(shape))


def _header(raw: Raw) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(raw[:8].tobytes(), "little")
    if len(raw) < 8 or length > min(LONGEST_HEADER, len(raw) - 8):
        raise UnreadableError(
            f"the file has {len(raw)} bytes, but its header should have {length} bytes. The file is incomplete, or is "
            "not a safetensors file. Copy the file again, or save the gradients as safetensors"
        )
    try:
        header = json.loads(raw[8 : 8 + length].tobytes(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8
        raise UnreadableError(
            f"the header of this safetensors file is not JSON: {error}. Save the file again"
        ) from None
    if not isinstance(header, dict):
        raise UnreadableError("the header of this safetensors file is not a JSON object. Save the file again")
    return header, 8 + length


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise UnreadableError(f"the header has the name {name!r} twice. Save the file again")
        table[name] = value
    return table


def _sparse_shapes(metadata: Any) -> dict[str, Sequence[int]]:
    try:
        shapes = json.loads(metadata.get("sparse", "{}"))
        if all(map(_are_lengths, shapes.values())):
            return dict(shapes)
    except (AttributeError, TypeError, ValueError, RecursionError):
        pass
    raise UnreadableError(
        "`sparse` in the metadata is not a JSON object of names and shapes. Write the name and the dense shape "
        'of each sparse gradient, as in {"embedding.weight": [17, 32]}'
    )


def _entries(header: Mapping[str, Any], first: int, size: int) -> dict[str, TensorEntry]:
    entries = {name: _entry(name, entry, first) for name, entry in header.items()}
    end = first
    for name, entry in sorted(entries.items(), key=lambda each: (each[1].start, each[1].stop)):
        if entry.start != end:
            offsets = f"[{entry.start - first}, {entry.stop - first}]"
            raise UnreadableError(
                f"{name!r} has the data_offsets {offsets}, but must start at {end - first}. Tensors must not overlap "
                "or leave gaps. Save the file again"
            )
        end = entry.stop
    if end != size:
        raise UnreadableError(f"the file has {size} bytes, but the header describes {end} bytes. Copy the file again")
    return entries


def _entry(name: str, entry: Any, first: int) -> TensorEntry:
    try:
        code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        code = shape = start = stop = None
    if not (isinstance(code, str) and _are_lengths(shape) and _are_lengths([start, stop])):
        raise UnreadableError(
            f"{name!r} has an invalid dtype, shape or pair of data_offsets in the header. Save the file again"
        )
    if stop < start:
        raise UnreadableError(
            f"{name!r} has the data_offsets [{start}, {stop}], which end before they start. Save the file again"
        )
    check_shape(name, shape)
    dtype = DTYPES.get(code, code)
    size = np.dtype(STORAGE["bfloat16"] if dtype == "bfloat16" else dtype).itemsize if code in DTYPES else 0
    if code in DTYPES and stop - start != math.prod(shape) * size:
        needed = f"{math.prod(shape) * size} bytes for the dtype {dtype} and the shape {shape}"
        raise UnreadableError(f"{name!r} has {stop - start} bytes, but needs {needed}. Save the file again")
    return TensorEntry(dtype, shape, first + start, first + stop)


def _are_lengths(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
