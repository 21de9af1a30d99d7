"""The processor's treatment of subnormal numbers, and its threads."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

MOST_THREADS = 1024


def default_threads() -> int:
    """What OMP_NUM_THREADS says, or as many as this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if said.isdigit() and int(said):
        return min(int(said), MOST_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keeps_subnormals() -> bool:
    """Return whether this thread computes with subnormal numbers."""
    return bool(SMALLEST != 0.0)  # it compares equal to zero where they are flushed


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Arithmetic that keeps subnormal numbers, and says nothing of overflow and NaN.

    A thread may have been told to flush subnormal numbers to zero: torch.set_flush_denormal does it, and so do the
    threads in which TensorFlow runs py_function.
    """
    with np.errstate(all="ignore"):
        if keeps_subnormals() or LIBM is None:
            yield
            return
        saved = ctypes.create_string_buffer(64)  # fenv_t is 32 bytes or fewer where FE_DFL_ENV is -1
        LIBM.fegetenv(saved)
        LIBM.fesetenv(ctypes.c_void_p(-1))
        try:
            yield
        finally:
            LIBM.fesetenv(saved)


(SMALLEST,) = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))  # a literal would be read as 0 in that mode


def _libm() -> Any:
    """Return the C library's floating-point environment; None where FE_DFL_ENV is not known to be -1."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return None
    return ctypes.CDLL(None)


LIBM = _libm()
