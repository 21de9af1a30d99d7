"""What JAX knows of a graph before it runs, derivatives in loops, and the cost. Values are in test_each_compiled.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.calls import CALLS, function
from support.kits import Kit

import unified_clip.jax as uc

DTYPES = ("float32", "bfloat16", "float16", "float32", "float32")
SHAPES = ((5, 7), (3,), (), (5, 7), (70, 70, 1, 1))
"""Two are alike. One is longer than the gradients that are summed as one array, and ends in axes of length 1."""


def arrays() -> list[Any]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(s), d) for s, d in zip(SHAPES, DTYPES, strict=True)]


@pytest.fixture
def call_all(kit: Kit) -> Callable[..., dict[str, Any]]:
    """All functions. One graph compiles in less time than one for each function."""

    def call(*grads: Any) -> dict[str, Any]:
        results = {name: tuple(function(kit, name, 2.0)(grads)) for name in CALLS}
        return results | {"axes": uc.clip_by_norm(grads[0], 0.5, axes=[-1])}

    return call


def test_shapes_and_dtypes_are_known_without_computing(call_all: Callable[..., dict[str, Any]]) -> None:
    grads = arrays()
    expected = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), call_all(*grads))
    assert jax.eval_shape(call_all, *grads) == expected


def test_results_are_never_float64_and_need_no_host_callback(call_all: Callable[..., dict[str, Any]]) -> None:
    def doubled(*grads: Any) -> Any:
        return jax.tree.map(lambda part: part * 2 + jnp.ones((), "float32"), call_all(*grads))

    for shape in jax.tree.leaves(jax.eval_shape(doubled, *arrays())):
        assert shape.dtype == "float32"
        assert not shape.weak_type
    traced = jax.jit(call_all).trace(*arrays())
    assert "callback" not in str(traced.jaxpr)
    assert "callback" not in traced.lower().as_text()


def test_vmap_over_thresholds() -> None:
    gradient = jnp.array([3.0, 4.0], "float32")
    limits = jnp.array([1.0, 2.5, 10.0], "float32")
    clipped, norms = jax.jit(jax.vmap(lambda c: uc.clip_by_global_norm([gradient], c)))(limits)
    np.testing.assert_array_equal(norms, [5.0] * 3)
    np.testing.assert_array_equal(clipped[0], np.outer(np.array([0.2, 0.5, 1.0], np.float32), np.float32([3, 4])))


# -- cost


def grads_of_different_lengths(count: int) -> list[Any]:
    """Return gradients of different lengths, which are not summed as one array."""
    return [jnp.ones(length, "float32") for length in range(1, count + 1)]


def test_xla_computes_the_sum_once() -> None:
    """Repeating the sum for each tensor made compiling a thousand tensors take minutes."""
    grads = grads_of_different_lengths(20)
    compiled = jax.jit(uc.clip_by_global_norm).lower(grads, 1.0).compile().as_text()
    assert compiled.count(" add(") < 5 * len(grads)


def test_symbolic_shapes_can_be_exported() -> None:
    (length,) = export.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((length,), jnp.float32)
    exported = export.export(jax.jit(lambda x: uc.clip_by_global_norm([x, x], 1.0)))(spec)
    _, norm = exported.call(jnp.array([3.0, 4.0], "float32"))
    assert float(norm) == float(np.float32(50**0.5))
