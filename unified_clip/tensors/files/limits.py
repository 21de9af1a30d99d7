"""Limits for reading files: memory and seconds. `docs/gradient_files.md` explains them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ..._kit.coded_error import CodedError

MAX_BYTES = "UNIFIED_CLIP_MAX_BYTES"
MAX_SECONDS = "UNIFIED_CLIP_MAX_SECONDS"

DEFAULT_BYTES = 4 * 2**30
DEFAULT_RATIO = 100
"""The default of MAX_BYTES is DEFAULT_RATIO times the file size, but at least DEFAULT_BYTES."""

DEFAULT_SECONDS = 600.0
FILE_SECONDS, BYTES_PER_SECOND = 30.0, 16 * 2**20
"""The default time to convert a file: FILE_SECONDS, and one second more for BYTES_PER_SECOND."""

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
