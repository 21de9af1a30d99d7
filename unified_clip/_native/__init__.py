"""The compiled kernels of the host path, where they were built; `_ops/kernels.py` has the same in NumPy.

UNIFIED_CLIP_NATIVE=0 leaves them out, =1 requires them, when the package is installed as well.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def _load() -> ModuleType | None:
    setting = os.environ.get("UNIFIED_CLIP_NATIVE", "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"UNIFIED_CLIP_NATIVE is {setting!r}; set it to 0 or 1, or leave it unset")
    if setting == "0":
        return None
    try:
        return importlib.import_module("._kernels", __name__)
    except ImportError as error:
        if setting != "1":
            return None
        raise ImportError(
            f"UNIFIED_CLIP_NATIVE is 1, and the compiled kernels cannot be loaded ({error}); install unified_clip with "
            "a C++ compiler, or leave the variable unset"
        ) from error


KERNELS = _load()
"""The extension, or None."""
