"""Load the compiled kernels. `_compute/kernels.py` has the same functions in NumPy.

UNIFIED_CLIP_NATIVE=0 disables the kernels. With UNIFIED_CLIP_NATIVE=1, missing kernels are an error, also during
installation.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from importlib import metadata
from pathlib import Path
from types import ModuleType

from ..recorder import guard as _guard

PACKAGE_PARENT = Path(__file__).parents[2]


def _load() -> ModuleType | None:
    setting = os.environ.get("UNIFIED_CLIP_NATIVE", "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"UNIFIED_CLIP_NATIVE is {setting!r}. Set it to 0 or 1, or leave it unset")
    if setting == "0":
        return None
    try:
        return importlib.import_module("._kernels", __name__)
    except ImportError as error:
        if setting != "1":
            if isinstance(error, ModuleNotFoundError):
                _warn_in_clone()
            return None
        raise ImportError(
            f"UNIFIED_CLIP_NATIVE=1 needs the compiled kernels, but they cannot be loaded ({error}). Install "
            "unified_clip with a C++ compiler, or unset UNIFIED_CLIP_NATIVE"
        ) from error


def _warn_in_clone() -> None:
    """Warn if Python imports a clone of the repository without compiled kernels, but the installed package has them.

    With `PYTHONSAFEPATH`, do not warn: Python ignores the current directory, so the clone is imported on purpose.
    """
    if getattr(sys.flags, "safe_path", False) or not (PACKAGE_PARENT / "pyproject.toml").is_file():
        return
    installed = _installed_kernels()
    if installed is not None:
        _guard.warn(
            f"unified_clip is imported from the clone {PACKAGE_PARENT}, which has no compiled kernels. The copy "
            f"installed in {installed} has them. Without kernels, results have the same bits, but clips of long "
            f"lists are several times slower. Start Python outside {PACKAGE_PARENT}, or install the clone in editable "
            f"mode: pip install --no-deps -e {PACKAGE_PARENT}. Set UNIFIED_CLIP_NATIVE=0 to use NumPy without this "
            "warning.",
            lambda message: warnings.warn(message, stacklevel=3),
        )


def _installed_kernels() -> Path | None:
    try:
        files = metadata.files("unified_clip") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.parent.parts == ("unified_clip", "_native") and file.name.startswith("_kernels."):
            path = Path(str(file.locate()))
            return path.parents[2] if path.is_file() else None
    return None


KERNELS = _load()
"""None if there are no compiled kernels. NumPy computes then."""
