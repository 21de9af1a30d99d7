"""Print the speed of unified_clip and optax under `jax.jit` on JAX's default device, such as a GPU.

A ratio above 1 means that unified_clip is faster. To measure some lists only, pass their names.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

import jax
import jax.numpy as jnp
import optax

import unified_clip.jax as uc
from unified_clip.bench.gradients import create_gradients, rough_norm
from unified_clip.bench.lists import LISTS
from unified_clip.bench.options import DTYPES

REPEATS, CALLS = 40, 3


def seconds(clip: Callable[[Any], Any], gradients: list[jax.Array]) -> float:
    """Return the time of CALLS calls."""
    start = time.perf_counter()
    for _ in range(CALLS):
        results = clip(gradients)
    jax.block_until_ready(results)
    return time.perf_counter() - start


def ratios(clip: Callable[[Any], Any], native: Callable[[Any], Any], gradients: list[jax.Array]) -> list[float]:
    """Return the quartiles of native / unified_clip. The first call of each function compiles it."""
    seconds(clip, gradients), seconds(native, gradients)
    return quantiles([seconds(native, gradients) / seconds(clip, gradients) for _ in range(REPEATS)], n=4)


def main(names: list[str]) -> None:
    if unknown := set(names) - set(LISTS):
        sys.exit(f"There is no list {', '.join(sorted(unknown))}. Choose from {', '.join(LISTS)}.")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, optax {optax.__version__}")
    for name in names or LISTS:
        for dtype in DTYPES:
            host_arrays = create_gradients(LISTS[name], dtype)
            norm = rough_norm(host_arrays)
            gradients = [jnp.asarray(array) for array in host_arrays]
            for what, threshold in (("clipped", norm / 2), ("not clipped", norm * 2)):
                transformation = optax.clip_by_global_norm(threshold)
                low, middle, high = ratios(
                    jax.jit(lambda grads, threshold=threshold: uc.clip_by_global_norm(grads, threshold)[0]),
                    jax.jit(lambda grads, transformation=transformation: transformation.update(grads, None)[0]),
                    gradients,
                )
                print(f"{name}, {dtype}, {what}: {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
