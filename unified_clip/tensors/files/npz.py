"""Read NumPy's `.npz`, a zip of arrays."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ..._kit.limits import array_header, check_shape
from ..types import Gradient, UnreadableError, from_numpy, name_of
from .entries import Item
from .memmap import Raw, dense, open_map

MAX_EXPANSION = 1032
"""Deflate compresses at most this number of bytes into one byte."""

LOCAL_HEADER = 30
"""The header of a zip entry has 30 bytes before the name. The last four bytes are the lengths of the name and the
extra field."""

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Newer versions of the npy format are only for structured arrays, which are not supported."""


def items(path: Path) -> Iterator[Item]:
    raw = open_map(path)
    archive = zipfile.ZipFile(path)  # not closed here: it must be open while items are read
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            raise UnreadableError(f"{name!r} is not an array. Save arrays with np.savez")
        if info.flag_bits & 1:
            raise UnreadableError(f"{name!r} is encrypted. Save the arrays with np.savez_compressed")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnreadableError(
                f"{name!r} is compressed by another method than deflate. Save the arrays with np.savez_compressed"
            )
        try:
            with archive.open(info) as file:
                text = io.BytesIO(array_header(file))
            version = np.lib.format.read_magic(text)
            if version not in READ_HEADER:
                raise ValueError(f"the header has the unknown version {version}")
            shape, is_fortran, dtype = READ_HEADER[version](text)
        except (ValueError, tokenize.TokenError) as error:  # the header is a Python literal, which may be invalid
            raise UnreadableError(f"{name!r} is not an array: {error}. Save arrays with np.savez") from None
        check_shape(name, shape)
        size = text.tell() + math.prod(shape) * dtype.itemsize
        if info.file_size != size and not dtype.hasobject:  # Python objects are rejected elsewhere
            sizes = f"the array has {info.file_size} bytes, but the header describes {size}"
            raise UnreadableError(f"{name!r} is damaged: {sizes}. Copy the file again")
        if info.file_size > MAX_EXPANSION * info.compress_size:
            sizes = f"{info.compress_size} compressed bytes cannot expand to {info.file_size}"
            raise UnreadableError(f"{name!r} is damaged: {sizes}. Copy the file again")
        is_mapped = info.compress_type == zipfile.ZIP_STORED and not is_fortran and dtype.isnative
        mapped = partial(_map, raw, info, text.tell(), name_of(dtype), shape)
        yield Item(name, name_of(dtype), mapped if is_mapped else partial(_read, archive, info), shape)


def _map(raw: Raw, info: zipfile.ZipInfo, header_length: int, dtype: str, shape: Sequence[int]) -> Gradient:
    # The local header may be longer than the member's entry in the zip's directory.
    local = raw[info.header_offset : info.header_offset + LOCAL_HEADER]
    name, extra = local[-4:].view("<u2").tolist()
    return dense(raw, dtype, shape, int(info.header_offset + LOCAL_HEADER + name + extra + header_length))


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Gradient:
    with archive.open(info) as file:
        return from_numpy(np.lib.format.read_array(file, allow_pickle=False))
