"""JAX: the bytes that a compiled clip reads and writes, by XLA's cost analysis, are those of traffic.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from support.kits import Kit
from support.traffic import ELEMENTS, SHAPES, row_of

import unified_clip.jax as uc

CLIPS: dict[str, Callable[[Any], Any]] = {
    "JAX: unified_clip": lambda arrays: uc.clip_by_global_norm(arrays, 1.0),
    "JAX: unified_clip, by value": lambda arrays: [uc.clip_by_value(array, -1.0, 1.0) for array in arrays],
    "JAX: `optax.clip_by_global_norm`": lambda arrays: optax.clip_by_global_norm(1.0).update(arrays, None)[0],
}


@pytest.mark.since("0.10", "the page has the bytes of this release's XLA")
@pytest.mark.parametrize("name", CLIPS)
def test_the_page_has_the_bytes_of_a_compiled_clip(name: str, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA compiles for the CPU here. A product does not depend on whether the coefficient is 1.

    With several devices, the analysis would count a loop over the gradients that mostly does not run.
    """
    if not kit.exact or kit.name != "jax":
        pytest.skip("once is enough")
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    result = []
    for dtype in (jnp.float32, jnp.bfloat16):
        arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in SHAPES]
        analysis = jax.jit(CLIPS[name]).lower(arrays).compile().cost_analysis()
        result += [round(analysis["bytes accessed"] / ELEMENTS)] * 2
    assert row_of(name)[:4] == result
