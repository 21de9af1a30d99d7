"""Results that exceed the caches are written past the caches, with the same bits as in place, at every address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_clip import _native
from unified_clip._compute import kernels

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
LONG = np.ones((32 << 20) // 4, np.float32)
"""An array with as many bytes as `STREAMED` of elementwise.hpp."""

DTYPES = {"e": np.uint16, "B": np.uint16, "f": np.uint32, "d": np.uint64}


def placed(code: str, count: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and an array in it that begins `offset` bytes behind the start of a cache line."""
    memory = np.full(count * np.dtype(DTYPES[code]).itemsize + 256, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory, memory[start : start + len(memory) - 256].view(DTYPES[code])


@pytest.mark.parametrize("how", ["scale", "clamp"])
@pytest.mark.parametrize("offset", [0, 2, 8, 24, 1])
@pytest.mark.parametrize("code", DTYPES)
def test_long_results_are_those_in_place(code: str, offset: int, how: str) -> None:
    for count in (0, 1, 255, 256, 257, 5000, 70_001):
        array = np.frombuffer(np.random.default_rng(count).bytes(count * np.dtype(DTYPES[code]).itemsize), DTYPES[code])
        memory, result = placed(code, count, offset)
        in_place, long_result = array.copy(), np.empty_like(LONG)
        tensors, alone = (
            NATIVE.TensorList.of_arrays([LONG, array], f"f{code}"),
            NATIVE.TensorList.of_arrays([in_place], code),
        )
        if how == "scale":
            tensors.scale(0.3, 2, [long_result, result])
            alone.scale_(0.3, 1)
        else:
            bounds = kernels.bounds(-0.3), kernels.bounds(0.7)
            tensors.clamp(*bounds, 2, [long_result, result])
            alone.clamp_(*bounds, 1)
        assert result.tobytes() == in_place.tobytes()
        assert (long_result == np.float32(0.3 if how == "scale" else 0.7)).all()
        result.view(np.uint8)[...] = 0xA5
        assert (memory == 0xA5).all(), "bytes beside the result have changed"
