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

MAX_THREADS = 1024


def default_threads() -> int:
    """Return the value of OMP_NUM_THREADS, or the number of CPUs that this process may use."""
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if setting.isdigit() and int(setting):
        return min(int(setting), MAX_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keeps_subnormals() -> bool:
    """Return whether this thread computes with subnormal numbers."""
    return bool(SMALLEST != 0.0)  # equal to zero if the processor flushes subnormal numbers


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Keep subnormal numbers, and silence NumPy's warnings.

    A thread may flush subnormal numbers to zero: torch.set_flush_denormal sets this, and TensorFlow for py_function.
    """
    with np.errstate(all="ignore"):
        if keeps_subnormals() or LIBM is None:
            yield
            return
        saved = ctypes.create_string_buffer(64)  # fenv_t has at most 32 bytes if FE_DFL_ENV is -1
        LIBM.fegetenv(saved)
        LIBM.fesetenv(ctypes.c_void_p(-1))
        try:
            yield
        finally:
            LIBM.fesetenv(saved)


(SMALLEST,) = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))  # Python may parse a literal as 0 in that mode


def _libm() -> Any:
    """Return the C library for its floating-point environment; None unless FE_DFL_ENV is known to be -1."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return None
    return ctypes.CDLL(None)


LIBM = _libm()
