"""Digests of values and checksums of tensors, by which ranks compare them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels import Array

PIECES = 4
"""A digest has four pieces of 16 bits, whose sums over up to 2**30 ranks fit into int64."""


def digest(value: Any) -> int:
    content = value if isinstance(value, bytes) else repr(value).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=2 * PIECES).digest(), "little")


def split(number: int) -> list[int]:
    return [number >> (16 * place) & 0xFFFF for place in range(PIECES)]


CHUNK = 2**16


def checksum(views: Sequence[Array]) -> int:
    """Return a 64-bit checksum that depends on the order of the numbers."""
    totals = (int(np.dot(part, weights()[: part.size])) + part.size for view in views for part in _integers(view))
    return combined(totals)


def combined(totals: Iterable[int]) -> int:
    """Combine the totals of chunks. A total is the dot product of a chunk with `weights()`, plus the chunk's length."""
    checksum = 0
    for total in totals:
        checksum = (checksum * 0x9E3779B97F4A7C15 + total) % 2**64
    return checksum


@functools.cache
def weights() -> npt.NDArray[np.uint64]:
    """All weights are odd, so that a change of one number changes the sum."""
    bits = np.arange(1, CHUNK + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))) | np.uint64(1)


def _integers(view: Array) -> Iterator[npt.NDArray[np.uint64]]:
    flat = np.ascontiguousarray(view).reshape(-1)
    bits = flat.view(np.uint16 if flat.itemsize == 2 else np.uint32)
    for start in range(0, bits.size, CHUNK):
        yield bits[start : start + CHUNK].astype(np.uint64)
