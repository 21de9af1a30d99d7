"""Compile the kernels for NVIDIA GPUs (`_native/gpu/clip.cu`), and keep them in the user's cache directory.

UNIFIED_CLIP_CUDA=1 enables the kernels. UNIFIED_CLIP_CUDA_CACHE is the directory of the cache, or 0 for no cache.

NVRTC, NVIDIA's compiler library, comes with each CUDA build of a framework, and the driver with the GPU. So installing
unified_clip needs neither.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._kit import atomic_files
from .._native import KERNELS
from ..errors import ClipWarning

ON_BY_DEFAULT = False
"""The kernels have run in an emulation on the CPU only. Set this to True after `make gpu` has passed on a GPU."""

SOURCE = Path(__file__).parents[1] / "_native" / "gpu"
DRIVER = "libcuda.so.1"
COMPILERS = ("libnvrtc.so.13", "libnvrtc.so.12")
LEAST_COMPILER = (12, 1)
"""Older compilers do not support parameters of more than 4 KB."""

OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space")
"""No contraction of products and sums: the error bounds assume that each is rounded."""

THREADS = 256
FAST_FROM = 2**24
"""From this number of 16-bit elements on, a sum in float64 and a second pass in case of doubt take less time than one
compensated sum."""

MAX_CACHED = 256


def _is_enabled() -> bool:
    choice = os.environ.get("UNIFIED_CLIP_CUDA", "")
    if choice not in ("", "0", "1"):
        raise ValueError(f"UNIFIED_CLIP_CUDA is {choice!r}. Set it to 1 or 0, or leave it unset")
    if "UNIFIED_CLIP_TRITON" in os.environ:
        warnings.warn(
            "UNIFIED_CLIP_TRITON has no effect any more: CUDA kernels have replaced the Triton kernels. Set "
            "UNIFIED_CLIP_CUDA=1 to use the CUDA kernels, or unset both variables",
            ClipWarning,
            stacklevel=2,
        )
    return choice == "1" or (ON_BY_DEFAULT and not choice)


ENABLED = _is_enabled()


class Compiler:
    """NVRTC."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = major.value, minor.value

    def compile(self, capability: int, options: Sequence[str]) -> bytes:
        """Return the code for one compute capability. Older drivers reject code for several (PTX)."""
        source, header = (atomic_files.read_bytes(SOURCE / name) for name in ("clip.cu", "call.hpp"))
        arguments = [text.encode() for text in (f"--gpu-architecture=sm_{capability}", *OPTIONS, *options)]
        program, library = ctypes.c_void_p(), self._library
        one = ctypes.c_char_p * 1
        self._check(
            library.nvrtcCreateProgram(ctypes.byref(program), source, b"clip.cu", 1, one(header), one(b"call.hpp"))
        )
        try:
            failed = library.nvrtcCompileProgram(
                program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)
            )
            if failed:
                raise RuntimeError(f"NVRTC cannot compile for sm_{capability}: {self._result(program, 'ProgramLog')!r}")
            return self._result(program, "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _result(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{name}Size")(program, ctypes.byref(size)))
        memory = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{name}")(program, memory))
        return memory.raw

    def _check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"NVRTC failed with the error {error}")


@functools.cache
def find_compiler() -> Compiler:
    """Return NVRTC from this process, from the framework's packages, or from the system, in this order."""
    for path, mode in _libraries():
        with suppress(OSError):
            compiler = Compiler(ctypes.CDLL(path, mode))
            if compiler.version >= LEAST_COMPILER:
                return compiler
    raise RuntimeError("NVRTC 12.1 or later is not installed: pip install nvidia-cuda-nvrtc")


def _libraries() -> Iterator[tuple[str, int]]:
    for name in COMPILERS:
        yield name, getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*"), reverse=True):
            yield str(path), os.RTLD_NOW
    for name in COMPILERS:
        yield name, os.RTLD_NOW


# -- compiled kernels


def cache_directory() -> Path | None:
    choice = os.environ.get("UNIFIED_CLIP_CUDA_CACHE", "")
    if choice == "0":
        return None
    if choice:
        return Path(choice)
    with suppress(RuntimeError):  # no home directory
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unified_clip"
    return None


@functools.cache
def _source_digest() -> bytes:
    return hashlib.sha256(b"".join(atomic_files.read_bytes(SOURCE / name) for name in ("clip.cu", "call.hpp"))).digest()


def compiled(compiler: Compiler, capability: int, options: Sequence[str]) -> bytes:
    """Return the code from the cache, or compile it. A file of the cache has a digest of the code, and the code."""
    directory = cache_directory()
    if directory is None:
        return compiler.compile(capability, options)
    key = hashlib.sha256(repr((_source_digest(), compiler.version, capability, OPTIONS, list(options))).encode())
    path = directory / f"{key.hexdigest()}.cubin"
    with suppress(OSError):
        content = atomic_files.read_bytes(path)
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return content[32:]
    code = compiler.compile(capability, options)
    with suppress(OSError):  # a cache that cannot be written is left out
        directory.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, hashlib.sha256(code).digest() + code)
        files = sorted(directory.glob("*.cubin"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_CACHED]:
            file.unlink(missing_ok=True)
    return code


# -- the kernels of this process

_LOCK = threading.Lock()
_devices: dict[int, str] = {}
"""For each device that was tried, an empty text, or the reason why its kernels cannot be used."""


@functools.cache
def _launcher() -> Any:
    if KERNELS is None:
        raise RuntimeError("unified_clip has no compiled kernels. Install it with a C++ compiler")
    compiler = find_compiler()
    return KERNELS.Gpu(DRIVER, functools.partial(compiled, compiler), THREADS, FAST_FROM)


def launcher(device: int) -> Any | None:
    """Return the object that launches kernels, or None if the kernels are disabled or the device lacks a requirement.

    In the latter case, the first call warns.
    """
    if not ENABLED:
        return None
    reason = _devices.get(device)
    if reason is None:
        with _LOCK:
            reason = _devices.get(device)
            if reason is None:
                reason = _devices[device] = _try(device)
    return None if reason else _launcher()


def _try(device: int) -> str:
    try:
        gpu = _launcher()
        compiled(find_compiler(), gpu.capability(device), [*PROBE, f"-DTHREADS={THREADS}"])
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"unified_clip's CUDA kernels are not used, because {error}. The framework's operations clip instead. Set "
            "UNIFIED_CLIP_CUDA=0 to clip without this warning",
            ClipWarning,
            stacklevel=2,
        )
        return str(error)
    return ""


PROBE = ("-DADD=1", "-DMODE=PRECISE", "-DORDER=2", "-DHAS=4", "-DCAPACITY=240")
"""The options of a kernel that most calls need."""


def describe() -> str:
    """Return a line for `unified-clip --version`, without loading a library."""
    state = "enabled" if ENABLED else "off, UNIFIED_CLIP_CUDA=1 enables them"
    return f"{state}; cache: {cache_directory() or 'none'}"
