"""Results at every address have the same bits as in place, and no byte beside them changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_clip import _native
from unified_clip._compute import kernels

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
DTYPES = {"e": np.uint16, "B": np.uint16, "f": np.uint32, "d": np.uint64}


def placed(code: str, count: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and an array in it that begins `offset` bytes behind the start of a cache line."""
    memory = np.full(count * np.dtype(DTYPES[code]).itemsize + 256, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory, memory[start : start + len(memory) - 256].view(DTYPES[code])


@pytest.mark.parametrize("how", ["scale", "clamp"])
@pytest.mark.parametrize("offset", [0, 2, 8, 24, 1])
@pytest.mark.parametrize("code", DTYPES)
def test_results_are_those_in_place(code: str, offset: int, how: str) -> None:
    arguments = (0.3, 2) if how == "scale" else (kernels.bounds(-0.3), kernels.bounds(0.7), 2)
    for count in (0, 1, 255, 256, 257, 5000, 70_001):
        array = np.frombuffer(np.random.default_rng(count).bytes(count * np.dtype(DTYPES[code]).itemsize), DTYPES[code])
        memory, result = placed(code, count, offset)
        in_place = array.copy()
        getattr(NATIVE.TensorList.of_arrays([array], code), how)(*arguments, [result])
        getattr(NATIVE.TensorList.of_arrays([in_place], code), f"{how}_")(*arguments)
        assert result.tobytes() == in_place.tobytes()
        result.view(np.uint8)[...] = 0xA5
        assert (memory == 0xA5).all(), "bytes beside the result have changed"
