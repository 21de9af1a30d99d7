"""Limits for reading untrusted files: memory, seconds, nesting and entries. `docs/gradient_files.md` explains the
limits."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, TypeVar

from .coded_error import CodedError

MAX_BYTES = "UNIFIED_CLIP_MAX_BYTES"
MAX_SECONDS = "UNIFIED_CLIP_MAX_SECONDS"
MAX_NESTING = "UNIFIED_CLIP_MAX_NESTING"
MAX_ENTRIES = "UNIFIED_CLIP_MAX_ENTRIES"

DEFAULT_BYTES = 4 * 2**30
DEFAULT_RATIO = 100
"""The default of MAX_BYTES is DEFAULT_RATIO times the file size, but at least DEFAULT_BYTES."""

DEFAULT_SECONDS = 600.0
FILE_SECONDS, BYTES_PER_SECOND = 30.0, 16 * 2**20
"""The default time to convert a file: FILE_SECONDS, and one second more for BYTES_PER_SECOND."""

DEFAULT_NESTING = 100
DEFAULT_ENTRIES = 1_000_000

LONGEST_NAME = 10_000

MOST_AXES = 32
"""NumPy 1 supports at most 32 axes."""

MOST_ELEMENTS = 2**59
"""With at most 16 bytes per element, a tensor below this size has fewer than 2**63 bytes."""

LONGEST_HEADER = 20_000
"""In bytes. NumPy itself rejects more than 10,000 characters."""

UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

Number = TypeVar("Number", int, float)


class LimitError(CodedError, ValueError, code="UC702"):
    """A file exceeds a limit, or the environment variable of a limit is invalid."""


def read_size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    number = float(match[1]) * UNITS.get(match[2], 0) if match else 0.0
    if not 1 <= number < 2**63:
        raise ValueError(
            f"{text!r} is not an amount of memory: write a number and one of {', '.join(UNITS)}, as in 8 GiB"
        )
    return int(number)


def size_text(count: int) -> str:
    unit = next((unit for unit in ("TiB", "GiB") if count >= UNITS[unit]), "MiB")
    return f"{count / UNITS[unit]:.4g} {unit}"


def seconds(file_size: int | None = None) -> float:
    """Return the limit for converting a file of this size, or for a function of the user."""
    default = DEFAULT_SECONDS if file_size is None else FILE_SECONDS + file_size / BYTES_PER_SECOND
    return _setting(MAX_SECONDS, _positive, default)


def check_expanded(count: int, file_size: int) -> None:
    most = _setting(MAX_BYTES, read_size, 0) or max(DEFAULT_BYTES, DEFAULT_RATIO * file_size)
    if count > most:
        unit = next((unit for unit in ("TiB", "GiB") if count >= UNITS[unit]), "MiB")
        setting = f"{MAX_BYTES}='{math.ceil(count / UNITS[unit])} {unit}'"
        remedies = ("Choose fewer tensors", f"Choose fewer tensors, or set {setting} if you trust the file")
        raise LimitError(
            f"the tensors take {size_text(count)}, and the limit for this file is {size_text(most)}. "
            f"{remedies[count < 2**62]}"
        )


def check_shape(name: str, shape: Sequence[object]) -> None:
    if len(shape) > MOST_AXES:
        raise LimitError(f"{name!r} has {len(shape)} axes. Reshape the tensor to at most {MOST_AXES} axes")
    lengths = [length for length in shape if type(length) is int and length >= 0]
    if len(lengths) < len(shape):
        raise LimitError(f"the shape of {name!r} is not a list of lengths. Save the file again")
    if any(length >= MOST_ELEMENTS for length in lengths) or math.prod(filter(None, lengths)) >= MOST_ELEMENTS:
        raise LimitError(f"the shape of {name!r} has 2**59 or more elements. Save the file again")


def check_name(name: str) -> None:
    if len(name) > LONGEST_NAME:
        raise LimitError(
            f"a tensor name has more than {LONGEST_NAME} characters: {name[:50]!r}. Give the tensor a shorter name"
        )


def array_header(file: IO[bytes]) -> bytes:
    """Read the header of a `.npy` file. First check the length, because NumPy would read up to 4 GiB."""
    magic = file.read(8)
    length = file.read({b"\x01": 2, b"\x02": 4, b"\x03": 4}.get(magic[6:7], 0))
    size = int.from_bytes(length, "little")
    if size > LONGEST_HEADER:
        raise LimitError(f"the header has {size} bytes, and the limit is {LONGEST_HEADER}. Save the array again")
    return magic + length + file.read(size)


class Tree:
    """Count and limit the entries of nested data. The limits also end the count of a list that contains itself."""

    def __init__(self, file_size: int = 0) -> None:
        """Add `file_size` to the limits, because a file of n bytes can have n entries."""
        self._depth_limit = _setting(MAX_NESTING, _whole, DEFAULT_NESTING)
        self._entry_limit = _setting(MAX_ENTRIES, _whole, DEFAULT_ENTRIES) + file_size
        self._name_limit = 100 * DEFAULT_ENTRIES + file_size
        self._entries = self._name_characters = 0

    def enter(self, name: str, depth: int) -> None:
        self._entries += 1
        if depth > self._depth_limit:
            raise LimitError(
                f"the dicts and lists are nested more than {self._depth_limit} deep, or contain themselves. Save a "
                f"flat dict of tensors, or set {MAX_NESTING} to a higher number"
            )
        if self._entries > self._entry_limit:
            raise LimitError(
                f"the dicts and lists have more than {self._entry_limit} entries. Save a flat dict of tensors, or set "
                f"{MAX_ENTRIES} to a higher number"
            )
        check_name(name)

    def name(self, name: str) -> None:
        self._name_characters += len(name)
        if self._name_characters > self._name_limit:
            raise LimitError(
                f"all tensor names together have more than {self._name_limit} characters. Shorten the names"
            )


def _setting(variable: str, parse: Callable[[str], Number], default: Number) -> Number:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise LimitError(f"{variable}: {error}. Correct or unset the variable") from None


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise ValueError(f"{text!r} is not a number above 0")


def _whole(text: str) -> int:
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise ValueError(f"{text!r} is not a whole number of 1 or more")
