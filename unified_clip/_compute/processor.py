"""The floating-point mode of this thread, and the number of threads to use."""

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
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if setting.isdigit() and int(setting):
        return min(int(setting), MAX_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keeps_subnormals() -> bool:
    """Return whether this thread keeps subnormal numbers instead of replacing them by 0."""
    return bool(SMALLEST != 0.0)  # equal to zero if the processor flushes subnormal numbers


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Keep subnormal numbers, and silence NumPy's warnings.

    The processor can replace subnormal numbers by 0 after `torch.set_flush_denormal`, and in TensorFlow's
    `py_function`.
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


(SMALLEST,) = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))  # in that mode, Python may parse a literal as 0


def _libm() -> Any:
    """Return the C library on Linux on x86-64, where the value of FE_DFL_ENV is known. Otherwise, return None."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return None
    return ctypes.CDLL(None)


LIBM = _libm()
