"""Write safetensors files. The library `safetensors` cannot write bfloat16 tensors from NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import atomic_files

CODES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "int64": "I64"}


def write(path: Path, tensors: Mapping[str, tuple[str, Any]], metadata: Mapping[str, str] | None = None) -> None:
    """`tensors` is {name: (dtype name, array)}. For bfloat16, the array has the dtype uint16 and the same bits."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    blocks = []
    end = 0
    for name, (dtype, array) in tensors.items():
        blocks.append(array.tobytes())
        start, end = end, end + len(blocks[-1])
        header[name] = {"dtype": CODES[dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    padded = text.ljust(-(-len(text) // 8) * 8)
    atomic_files.write(path, b"".join([len(padded).to_bytes(8, "little"), padded, *blocks]))
