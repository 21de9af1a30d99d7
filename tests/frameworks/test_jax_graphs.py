"""Every function inside JAX's transformations matches eager. float64 is used only inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support import reference
from support.kits import Kit
from support.tiers import nightly

import unified_clip
import unified_clip.jax as uc

Function = Callable[..., Any]

DTYPES = ("float32", "bfloat16", "float16", "float32", "float32")
SHAPES = ((5, 7), (3,), (), (5, 7), (70, 70, 1, 1))
"""Two are alike. One is longer than the gradients that are summed as one array, and ends in axes of length 1."""


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("compares with eager calls on the host path")


def arrays(seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal(s), d) for s, d in zip(SHAPES, DTYPES, strict=True)]


def in_place(call: Callable[[list[Any]], Any]) -> Function:
    def function(*gradients: Any) -> Any:
        grads = list(gradients)
        result = call(grads)
        return grads, result

    return function


def by_pairs(clip: Any) -> Function:
    return lambda *grads: [gradient for _, gradient in clip([(str(i), g) for i, g in enumerate(grads)])]


def by_set_gradient_clip(*grads: Any) -> Any:
    uc.set_gradient_clip(uc.GradientClipByGlobalNorm(2.0))
    try:
        return by_pairs(uc.append_gradient_clip_ops)(*grads)
    finally:
        uc.set_gradient_clip(None)


IN_PLACE: dict[str, Function] = {
    "clip_grad_norm_": in_place(lambda grads: uc.clip_grad_norm_(grads, 2.0)),
    "clip_grad_norm_ p=1": in_place(lambda grads: uc.clip_grad_norm_(grads, 2.0, norm_type=1)),
    "clip_grad_norm_ p=inf": in_place(lambda grads: uc.clip_grad_norm_(grads, 2.0, norm_type=math.inf)),
    "clip_grad_value_": in_place(lambda grads: uc.clip_grad_value_(grads, 0.5)),
    "clip_grads_with_norm_": in_place(lambda grads: uc.clip_grads_with_norm_(grads, 2.0, uc.get_total_norm(grads))),
    "GradientClipByGlobalNorm.clip_": in_place(lambda grads: uc.GradientClipByGlobalNorm(2.0).clip_(grads)),
    "GradientClipByNorm.clip_": in_place(lambda grads: uc.GradientClipByNorm(2.0).clip_(grads)),
    "GradientClipByValue.clip_": in_place(lambda grads: uc.GradientClipByValue(0.5).clip_(grads)),
}
FUNCTIONAL: dict[str, Function] = {
    "get_total_norm": lambda *given: uc.get_total_norm(given),
    "global_norm": lambda *given: uc.global_norm(given),
    "clip_by_global_norm": lambda *given: uc.clip_by_global_norm(given, 2.0),
    "clip_by_global_norm within": lambda *given: uc.clip_by_global_norm(given, 1000.0),
    "clip_by_norm": lambda *given: [uc.clip_by_norm(g, 0.5) for g in given],
    "clip_by_norm axes": lambda *given: [uc.clip_by_norm(g, 0.5, axes=[-1]) for g in given if g.ndim],
    "clip_by_value": lambda *given: [uc.clip_by_value(g, -0.5, 0.25) for g in given],
    "GradientClipByGlobalNorm": by_pairs(uc.GradientClipByGlobalNorm(2.0)),
    "GradientClipByNorm": by_pairs(uc.GradientClipByNorm(2.0)),
    "GradientClipByValue": by_pairs(uc.GradientClipByValue(0.5)),
    "ErrorClipByValue": lambda *given: [uc.ErrorClipByValue(0.5)(g) for g in given],
    "append_gradient_clip_ops": by_set_gradient_clip,
    "the package's own": lambda *given: unified_clip.clip_by_global_norm(given, 2.0),
}
NAMES = IN_PLACE | FUNCTIONAL


def call_all(*grads: Any) -> dict[str, Any]:
    """Return the results of all functions. One graph compiles in less time than one for each function."""
    return {name: function(*grads) for name, function in NAMES.items()}


def stacked(*results: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def in_scan(function: Function) -> Function:
    return lambda *grads: lax.scan(lambda carry, now: (carry, function(*now)), 0, stacked(grads))[1]


def in_cond(function: Function) -> Function:
    return lambda *grads: lax.cond(grads[0].size > 0, function, function, *grads)


def in_while_loop(function: Function) -> Function:
    def looped(*grads: Any) -> Any:
        start = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(function, *grads))
        return lax.while_loop(lambda state: state[0] < 1, lambda state: (state[0] + 1, function(*grads)), (0, start))[1]

    return looped


def in_custom_vjp(function: Function) -> Function:
    @jax.custom_vjp
    def wrapped(*grads: Any) -> Any:
        return function(*grads)

    wrapped.defvjp(lambda *grads: (function(*grads), None), lambda _, __: ())
    return wrapped


MODES: dict[str, Callable[[Function], Function]] = {
    "jit": lambda function: function,
    "scan": lambda function: lambda *given: jax.tree.map(lambda part: part[0], in_scan(function)(*given)),
    "cond": in_cond,
    "while_loop": in_while_loop,
    "checkpoint": jax.checkpoint,
    "custom_vjp": in_custom_vjp,
    "jvp": lambda function: lambda *given: jax.jvp(function, given, given)[0],
    "vjp": lambda function: lambda *given: jax.vjp(function, *given)[0],
}


def assert_same(result: Any, expected: Any) -> None:
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for (path, leaf), expected_leaf in zip(jax.tree.leaves_with_path(result), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == expected_leaf.dtype, path
        assert leaf.shape == expected_leaf.shape, path
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(expected_leaf), str(path))


QUICK = ("jit", "scan")


@pytest.mark.parametrize("mode", [*QUICK, *nightly(*(mode for mode in MODES if mode not in QUICK))])
def test_every_function_in_a_graph_matches_eager(mode: str) -> None:
    grads = arrays()
    assert_same(jax.jit(MODES[mode](call_all))(*grads), call_all(*grads))


@pytest.mark.nightly
def test_transformations_without_jit_match_eager() -> None:
    grads = arrays()[1:3]
    for function in (NAMES["clip_grad_norm_"], NAMES["clip_by_norm"], NAMES["clip_by_value"]):
        expected = function(*grads)
        assert_same(jax.jvp(function, grads, grads)[0], expected)
        assert_same(jax.linearize(function, *grads)[0], expected)
        assert_same(jax.checkpoint(function)(*grads), expected)
        assert_same(jax.vmap(function)(*(x[None] for x in grads)), stacked(expected))


def test_shapes_and_dtypes_are_known_without_computing() -> None:
    grads = arrays()
    expected = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), call_all(*grads))
    assert jax.eval_shape(call_all, *grads) == expected


def test_vmap_gives_each_member_its_own_norm() -> None:
    members = [arrays(seed) for seed in range(3)]
    expected = stacked(*[call_all(*member) for member in members])
    assert_same(jax.jit(jax.vmap(call_all))(*stacked(*members)), expected)


def test_vmap_over_thresholds() -> None:
    gradient = jnp.array([3.0, 4.0], "float32")
    limits = jnp.array([1.0, 2.5, 10.0], "float32")
    clipped, norms = jax.jit(jax.vmap(lambda c: uc.clip_by_global_norm([gradient], c)))(limits)
    np.testing.assert_array_equal(norms, [5.0] * 3)
    np.testing.assert_array_equal(clipped[0], np.outer(np.array([0.2, 0.5, 1.0], np.float32), np.float32([3, 4])))


def test_in_place_functions_update_lists_and_dicts_of_the_traced_function() -> None:
    @jax.jit
    def step(params: Any, batch: Any) -> Any:
        grads = jax.grad(lambda p: ((batch @ p["w"] + p["b"]) ** 2).sum())(params)
        before = dict(grads)
        norm = uc.clip_grad_norm_(grads, 1.0)
        return before, grads, norm

    before, after, norm = step({"w": jnp.ones(2), "b": jnp.zeros(())}, jnp.array([[3.0, 4.0], [1.0, 2.0]]))
    assert_same(norm, uc.global_norm(before))
    assert float(norm) > 1.0
    assert float(uc.global_norm(after)) == pytest.approx(1.0, abs=1e-5)


# -- float64 inside


@pytest.mark.parametrize("mode", ["jit", *nightly("scan", "checkpoint", "vjp", "vmap")])
def test_sums_are_float64(mode: str) -> None:
    """A float64 sum, rounded once, is the exact norm. Nearly all float32 sums of 20,300 numbers are not."""

    def norm(*arrays_: Any) -> Any:
        return uc.global_norm([g[:20_000] for g in arrays_] + [arrays_[0][20_000:], arrays_[1][20_000:]])

    batched = jax.vmap(norm)
    wrapped = jax.jit(
        (lambda *arrays_: batched(*(g[None] for g in arrays_))[0]) if mode == "vmap" else MODES[mode](norm)
    )
    for seed in range(3):
        arrays_ = list(np.random.default_rng(seed).standard_normal((2, 20_300), np.float32))
        assert float(wrapped(*map(jnp.asarray, arrays_))) == reference.norm(arrays_)


def test_squares_that_overflow_or_underflow_float32_are_measured() -> None:
    for scale in (2.0**-100, 2.0**100):
        gradient = jnp.array([3.0, 4.0], "float32") * jnp.float32(scale)
        assert float(jax.jit(lambda x: uc.global_norm([x]))(gradient)) == 5.0 * scale


def test_results_are_never_float64(kit: Kit) -> None:
    def function(*grads: Any) -> Any:
        return jax.tree.map(lambda part: part * 2 + jnp.ones((), "float32"), call_all(*grads))

    for shape in jax.tree.leaves(jax.eval_shape(function, *arrays())):
        assert shape.dtype == "float32"
        assert not shape.weak_type
    ones = jnp.ones(())
    assert ones.dtype == ("float64" if "float64" in kit.floating else "float32")


@pytest.mark.nightly
@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_derivatives_have_the_dtype_of_the_gradient(p: float, dtype: str) -> None:
    given = jnp.asarray([3.0, 4.0], dtype)

    def norm(x: Any) -> Any:
        return uc.get_total_norm([x, x[:1]], p)

    function = jax.jit(norm)
    value, gradient = jax.value_and_grad(function)(given)
    assert (value.dtype, gradient.dtype) == ("float32", dtype)
    assert np.isfinite(np.asarray(gradient, "complex64")).all()
    assert jax.jvp(function, (given,), (given,))[1].dtype == "float32"


# -- derivatives


def closed_form(x: Any, limit: float) -> Any:
    return x * (limit / jnp.sqrt((x * x).sum()))


CLIPS: dict[str, Callable[[Any], Any]] = {
    "clip_by_global_norm": lambda x: jnp.concatenate(uc.clip_by_global_norm([x[:2], x[2:]], 1.0)[0]),
    "clip_by_norm": lambda x: uc.clip_by_norm(x, 1.0),
    "clip_by_norm axes": lambda x: uc.clip_by_norm(x[None], 1.0, axes=1)[0],
    "GradientClipByNorm": lambda x: uc.GradientClipByNorm(1.0)([("x", x)])[0][1],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CLIPS)
def test_first_and_second_derivatives_of_clips(name: str) -> None:
    """Differentiate inside the graph, and a jitted function from outside, where float64 is off."""
    clip = jax.jit(CLIPS[name])
    point = jnp.array([3.0, -4.0, 1.0, 2.0], "float32")

    def formula(x: Any) -> Any:
        return closed_form(x, 1.0)

    def total(function: Function) -> Function:
        return lambda x: (function(x) * jnp.arange(1.0, 5.0, dtype="float32")).sum()

    for derivative in (jax.jacfwd, jax.jacrev, lambda f: jax.hessian(total(f)), lambda f: jax.jacrev(jax.jacfwd(f))):
        expected = jax.jit(derivative(formula))(point)
        for result in (jax.jit(derivative(clip))(point), jax.jit(derivative(CLIPS[name]))(point)):
            assert result.dtype == "float32"
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    tangent = jax.linearize(clip, point)[1](point)  # the only derivative here outside `jit`
    np.testing.assert_allclose(tangent, jnp.zeros(4), atol=1e-6)
    gradient = jax.grad(jax.checkpoint(total(clip)))(point)
    np.testing.assert_allclose(gradient, jax.grad(total(formula))(point), rtol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("p", [2, *nightly(0.5, 1, 3, math.inf)])
def test_first_and_second_derivatives_of_norms(p: float) -> None:
    def norm(x: Any) -> Any:
        return uc.get_total_norm([x[:2], x[2:]], p)

    def formula(x: Any) -> Any:
        return abs(x).max() if p == math.inf else (abs(x) ** p).sum() ** (1 / p)

    point = jnp.array([3.0, -4.0, 1.0, 2.0], "float32")
    for derivative in (jax.grad, jax.jacfwd, jax.hessian, lambda f: jax.grad(lambda x: jax.grad(f)(x)[1])):
        expected = jax.jit(derivative(formula))(point)
        for result in (jax.jit(derivative(jax.jit(norm)))(point), jax.jit(derivative(norm))(point)):
            assert result.dtype == "float32"
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_the_derivative_of_the_inf_norm_is_shared_by_the_largest_elements() -> None:
    gradient = jax.grad(lambda x: uc.get_total_norm([x[:2], x[2:]], math.inf))(jnp.array([4.0, -4.0, 1.0, 4.0]))
    assert float(abs(gradient).sum()) == pytest.approx(1.0)
    assert (np.sign(gradient) == [1, -1, 0, 1]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("p", [2, *nightly(0.5, 1, 3, math.inf)])
def test_no_derivative_at_zero_is_nan(p: float) -> None:
    zeros = jnp.zeros(3, "float32")
    for order in (jax.grad, jax.hessian):
        result = jax.jit(order(jax.jit(lambda x: uc.get_total_norm([x, x[:1]], p))))(zeros)
        assert np.isfinite(np.asarray(result)).all()
    for limit in (0.0, 1.0):
        clip = jax.jit(lambda x, c: uc.clip_by_global_norm([x], c)[0][0].sum())
        assert np.isfinite(np.asarray(jax.grad(clip)(zeros, limit))).all()


@pytest.mark.nightly
def test_derivatives_in_a_scan_and_in_a_batch() -> None:
    point = jnp.array([3.0, 4.0], "float32")

    def repeated(x: Any) -> Any:
        return lax.scan(lambda carry, _: (uc.clip_by_norm(carry * 2, 1.0), None), x, length=3)[0].sum()

    np.testing.assert_allclose(jax.grad(repeated)(point), [0.032, -0.024], rtol=1e-5)
    single = jax.grad(lambda x: uc.clip_by_norm(x, 1.0).sum())
    batch = jnp.stack([point, point / 10])
    np.testing.assert_allclose(jax.vmap(single)(batch), [[0.032, -0.024], [1.0, 1.0]], rtol=1e-5)


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


@pytest.mark.parametrize("values", [[math.inf, 1.0], [math.nan, 1.0], [3.0, 4.0]])
def test_an_infinite_threshold_measures_only(values: list[float]) -> None:
    gradient = jnp.array(values, "float32")
    clipped = jax.jit(lambda c: uc.clip_by_global_norm([gradient], c)[0][0])(jnp.float32(math.inf))
    np.testing.assert_array_equal(clipped, gradient)


@pytest.mark.parametrize("name", ["clip_grad_norm_", "GradientClipByNorm"])
@pytest.mark.parametrize("value", [3e38, 1e3])
def test_a_constant_factor_of_gradients_is_not_multiplied_into_the_coefficient(name: str, value: float) -> None:
    """A product that overflows stays infinite, so that the clipped gradient is NaN, not 0."""

    def clip(gradient: Any) -> Any:
        grads = [gradient * 1.5, gradient[:2] * 1.5]
        if name == "clip_grad_norm_":
            return uc.clip_grad_norm_(grads, 0.7), grads
        return uc.GradientClipByNorm(0.7)([(gradient, grad) for grad in grads])

    gradient = jnp.asarray(np.random.default_rng(0).standard_normal(40), "float32").at[0].set(value)
    for result, expected in zip(jax.tree.leaves(jax.jit(clip)(gradient)), jax.tree.leaves(clip(gradient)), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("limit", "clipped"), [(-1.0, [-0.6, -0.8]), (math.nan, [math.nan] * 2), (0.0, [0.0, 0.0])])
def test_a_threshold_that_cannot_be_checked_is_used_as_it_is(limit: float, clipped: list[float]) -> None:
    gradient = jnp.array([3.0, 4.0], "float32")
    result, norm = jax.jit(lambda c: uc.clip_by_global_norm([gradient], c))(jnp.float32(limit))
    np.testing.assert_allclose(result[0], clipped, rtol=1e-6)
    assert norm == 5.0


def test_derivatives_by_a_traced_threshold_and_norm() -> None:
    gradient = jnp.array([3.0, 4.0], "float32")
    clip = jax.jit(lambda c, n: uc.clip_by_global_norm([gradient], c, use_norm=n)[0][0].sum())
    by_limit, by_norm = jax.grad(clip, argnums=(0, 1))(2.0, 5.0)
    np.testing.assert_allclose([by_limit, by_norm], [7 / 5, -7 * 2 / 25], rtol=1e-6)


# -- cost


@pytest.mark.parametrize("make_threshold", [float, np.float32, jnp.float32, lambda value: np.array([value])])
def test_a_step_is_traced_once(make_threshold: Callable[[float], Any]) -> None:
    traces = []

    @jax.jit
    def step(grads: Any, limit: Any) -> Any:
        traces.append(1)
        norm = uc.clip_grad_norm_(grads, limit)
        clipped, _ = uc.clip_by_global_norm(grads, limit, use_norm=norm)
        return clipped

    for repeat in range(100):
        step([jnp.full(3, float(repeat), "float32"), jnp.ones((2, 2), "float32")], make_threshold(1.0 + repeat))
    assert len(traces) == 1


def test_graphs_have_no_host_callback() -> None:
    traced = jax.jit(call_all).trace(*arrays())
    assert "callback" not in str(traced.jaxpr)
    assert "callback" not in traced.lower().as_text()


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
