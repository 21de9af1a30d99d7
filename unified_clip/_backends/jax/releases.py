"""What differs between releases of JAX. Each line names the release that made it unnecessary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental

enable_x64: Callable[[bool], AbstractContextManager[Any]] = (
    jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # until JAX 0.7
)

LACKS_FLOAT64_IN_GRAPHS = jax.__version_info__ < (0, 7)  # until JAX 0.7
"""Without `jax_enable_x64`, these releases store the float64 numbers of a graph in float32."""


def check_graph(inputs: Sequence[Any]) -> None:
    is_traced = LACKS_FLOAT64_IN_GRAPHS and any(isinstance(each, jax.core.Tracer) for each in inputs)
    if is_traced and not jax.config.jax_enable_x64:
        raise RuntimeError(
            f"a clip inside jax.jit or jax.grad needs JAX 0.7, and JAX {jax.__version__} is installed. Update JAX, set "
            'jax.config.update("jax_enable_x64", True) at the start, or clip outside of jax.jit'
        )
