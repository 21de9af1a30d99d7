from __future__ import annotations

import hashlib
from typing import Any

PIECES = 4
"""A digest has four pieces of 16 bits, whose sums over up to 2**30 ranks fit into int64."""


def digest(value: Any) -> int:
    content = value if isinstance(value, bytes) else repr(value).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=2 * PIECES).digest(), "little")


def split(number: int) -> list[int]:
    return [number >> (16 * place) & 0xFFFF for place in range(PIECES)]
