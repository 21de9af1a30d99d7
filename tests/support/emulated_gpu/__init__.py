"""An NVIDIA GPU that is emulated on the CPU: a driver that launches the kernels of `clip.cu`, compiled by g++.

Tensors in CPU memory stand for those in a GPU's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unified_clip._compute import cuda

HERE = Path(__file__).parent
BUILD = Path(tempfile.gettempdir()) / f"unified-clip-emulated-gpu-{Path.home().stat().st_uid}"
THREADS = 64
"""A block of the emulation. More threads take longer."""

FAST_FROM = 100_000
FLAGS = [
    "-O1", "-shared", "-fPIC", "-std=c++20", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-pragmas", "-fno-gnu-unique", f"-I{cuda.SOURCE}", f"-I{HERE}",
]  # fmt: skip

if "asan" in os.environ.get("LD_PRELOAD", ""):  # `make sanitize`: the kernels' accesses are checked, too
    FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def built(source: Path, *flags: str) -> Path:
    """Return the library that g++ makes of a source file, from an earlier run if nothing has changed."""
    texts = [path.read_bytes() for path in (source, HERE / "emulation.hpp", *sorted(cuda.SOURCE.glob("*.*")))]
    key = hashlib.sha256(repr((texts, FLAGS, flags)).encode()).hexdigest()[:32]
    library = BUILD / f"{source.stem}-{key}.so"
    if not library.exists():
        BUILD.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=BUILD, suffix=".so", delete=False) as file:
            subprocess.run(["g++", *FLAGS, *flags, str(source), "-o", file.name, "-ldl"], check=True)
        Path(file.name).replace(library)
    return library


class Compiler:
    """Stands for NVRTC. `flags`: for g++."""

    version = (12, 9)

    def __init__(self, *flags: str) -> None:
        self.flags, self.compiled = flags, 0

    def compile(self, capability: int, options: Sequence[str]) -> bytes:
        self.compiled += 1
        return built(HERE / "kernel.cpp", *options, *self.flags).read_bytes()


@functools.cache
def driver() -> Path:
    return built(HERE / "driver.cpp")


def variable(name: str) -> Any:
    """Return a number in the driver that tests read and write by its attribute `value`."""
    return ctypes.c_int.in_dll(ctypes.CDLL(str(driver())), name)


def install(patch: Any) -> Compiler:
    """Let this process clip on the emulated GPU. `patch` has the method `setattr` of pytest's monkeypatch."""
    compiler = Compiler()
    patch.setattr(cuda, "ENABLED", True)
    patch.setattr(cuda, "DRIVER", str(driver()))
    patch.setattr(cuda, "THREADS", THREADS)
    patch.setattr(cuda, "FAST_FROM", FAST_FROM)
    patch.setattr(cuda, "find_compiler", lambda: compiler)
    patch.setattr(cuda, "_devices", {})
    cuda._launcher.cache_clear()
    return compiler


def install_for_torch(patch: Any) -> Compiler:
    """Let PyTorch's device path use the emulated GPU. UNIFIED_CLIP_PATH=framework lets tensors take this path."""
    from unified_clip._backends.torch import gpu_lists as lists

    patch.setattr(lists, "emulated", True)
    return install(patch)
