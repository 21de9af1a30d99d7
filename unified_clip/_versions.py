"""Collect the versions of unified_clip and of the frameworks, without importing a framework."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

import unified_clip

from ._compute import cuda
from ._native import KERNELS
from .recorder import OLDEST, is_too_old

PACKAGES = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly"),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "jax": ("jax",),
    "mlx": ("mlx",),
    "numpy": ("numpy",),
}


def lines() -> Iterator[str]:
    yield f"unified_clip {unified_clip.__version__}"
    yield f"Python       {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield f"kernels      {'compiled' if KERNELS else 'not compiled: NumPy computes the same results'}"
    yield f"CUDA kernels {cuda.describe()}"
    yield from (f"{name:12} {_version(name)}" for name in PACKAGES)


def _version(framework: str) -> str:
    spec = find_spec(framework)
    if spec is None or spec.origin is None:  # a directory of this name is not a package
        return "not installed"
    for package in PACKAGES[framework]:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        is_old = framework in OLDEST and is_too_old(framework, version)
        return f"{version} (older than {OLDEST[framework]}, the oldest supported release)" if is_old else version
    return "installed, in an unknown version"
