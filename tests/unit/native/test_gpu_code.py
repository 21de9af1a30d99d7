"""The kernels for GPUs, compiled by NVRTC for GPUs that need not be there. `.ci/run` has these tests if a kernel has
changed."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from unified_clip._compute import cuda

pytestmark = pytest.mark.nightly
CAPABILITIES = (75, 80, 89, 90, 100)
NARROW, MIXED, ALL = 2, 7, 15
"""Dtypes as bits: bfloat16, all but float64, and all."""

KERNELS = [
    *itertools.product(["ADD"], [1, 2], ["FAST"], [NARROW]),
    *itertools.product(["ADD"], [1, 2], ["PAIRS", "PRECISE"], [MIXED]),
    *itertools.product(["ADD"], [1, 2], ["WIDE"], [ALL]),
    ("ADD", 0, "FAST", ALL),
    *itertools.product(["FINISH", "CLIP"], [0, 1, 2], ["FAST"], [ALL]),
    ("SCALE", 0, "FAST", ALL), ("CLAMP", 0, "FAST", ALL),
]  # fmt: skip


def test_every_kernel_compiles() -> None:
    """Alternately for short lists and for long ones, whose parameters have more than 4 KB."""
    compiler = cuda.find_compiler()
    assert compiler.version >= cuda.LEAST_COMPILER

    def code(capability: int, number: int) -> bytes:
        kernel, order, mode, dtypes = KERNELS[number]
        capacity = 240 if (capability + number) % 2 else 2032
        options = [f"{kernel}=1", f"MODE={mode}", f"ORDER={order}", f"HAS={dtypes}", f"CAPACITY={capacity}"]
        return compiler.compile(capability, [f"-D{option}" for option in (*options, f"THREADS={cuda.THREADS}")])

    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(code, *zip(*itertools.product(CAPABILITIES, range(len(KERNELS))), strict=True)))
    assert all(each.startswith(b"\x7fELF") for each in codes)


def test_an_error_has_the_compilers_text() -> None:
    with pytest.raises(RuntimeError, match="CAPACITY"):
        cuda.find_compiler().compile(90, ["-DADD=1", "-DCAPACITY=wrong"])
    with pytest.raises(RuntimeError, match="sm_61"):
        cuda.find_compiler().compile(61, ["-DNOTHING=1", "--no-such-option"])
