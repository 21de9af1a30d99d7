"""What JAX knows of a graph before it runs, derivatives in loops, and the cost. Values are in test_each_compiled.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support.calls import CALLS
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
    if not kit.exact:
        pytest.skip("compares with eager calls on the host path")
    inside = SimpleNamespace(namespace=uc)

    def call(*grads: Any) -> dict[str, Any]:
        results: dict[str, Any] = {"axes": uc.clip_by_norm(grads[0], 0.5, axes=[-1])}
        for name, each in CALLS.items():
            argument = each.prepare(kit, list(grads))
            results[name] = tuple(each.read(kit, argument, each.run(inside, argument, 2.0)))
        return results

    return call


def test_shapes_and_dtypes_are_known_without_computing(call_all: Callable[..., dict[str, Any]]) -> None:
    grads = arrays()
    expected = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), call_all(*grads))
    assert jax.eval_shape(call_all, *grads) == expected


def test_results_are_never_float64_and_need_no_host_callback(kit: Kit, call_all: Callable[..., dict[str, Any]]) -> None:
    def function(*grads: Any) -> Any:
        return jax.tree.map(lambda part: part * 2 + jnp.ones((), "float32"), call_all(*grads))

    for shape in jax.tree.leaves(jax.eval_shape(function, *arrays())):
        assert shape.dtype == "float32"
        assert not shape.weak_type
    assert jnp.ones(()).dtype == ("float64" if "float64" in kit.floating else "float32")
    traced = jax.jit(call_all).trace(*arrays())
    assert "callback" not in str(traced.jaxpr)
    assert "callback" not in traced.lower().as_text()


def test_vmap_over_thresholds() -> None:
    gradient = jnp.array([3.0, 4.0], "float32")
    limits = jnp.array([1.0, 2.5, 10.0], "float32")
    clipped, norms = jax.jit(jax.vmap(lambda c: uc.clip_by_global_norm([gradient], c)))(limits)
    np.testing.assert_array_equal(norms, [5.0] * 3)
    np.testing.assert_array_equal(clipped[0], np.outer(np.array([0.2, 0.5, 1.0], np.float32), np.float32([3, 4])))


@pytest.mark.nightly
@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_second_derivatives_of_norms_in_a_scan(p: float, kit: Kit) -> None:
    if "float64" in kit.floating:
        pytest.skip("a test of programs without x64")
    steps = jnp.array([1.0, 2.0, 3.0], "float32")

    def square(x: Any, step: Any) -> Any:
        return uc.get_total_norm([x[:2] * step, x[2:]], p) ** 2  # the second derivative of the inf norm itself is 0

    def scanned(x: Any) -> Any:
        return lax.scan(lambda total, step: (total + square(x, step), None), jnp.float32(0), steps)[0]

    point = jnp.array([3.0, -4.0, 1.0, 2.0], "float32")
    expected = jax.hessian(lambda x: sum(square(x, step) for step in steps))(point)
    assert abs(expected).max() > 0
    for derivative in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))):
        for result in (derivative(scanned)(point), jax.jit(derivative(scanned))(point)):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


# -- cost


def grads_of_different_lengths(count: int) -> list[Any]:
    """Return gradients of different lengths, which are not summed as one array."""
    return [jnp.ones(length, "float32") for length in range(1, count + 1)]


@pytest.mark.nightly
def test_the_number_of_equations_per_tensor_does_not_grow_with_the_number_of_tensors() -> None:
    def equations(grads: list[Any]) -> int:
        return len(jax.make_jaxpr(lambda given: uc.clip_by_global_norm(given, 1.0))(grads).eqns)

    assert equations(grads_of_different_lengths(60)) - equations(grads_of_different_lengths(30)) <= 30 * 9
    assert equations([jnp.ones(9)] * 60) - equations([jnp.ones(9)] * 30) <= 30 * 5


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
