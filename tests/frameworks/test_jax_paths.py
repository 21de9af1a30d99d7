"""JAX: arrays whose memory is read directly, traced arrays, pytrees, and donated results."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import sparse
from jax.experimental.sparse import BCOO
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import unified_clip
import unified_clip.jax as uc
from unified_clip._backends.jax import exchange, releases

# -- the host path is taken for arrays that are here


def test_a_jitted_step_is_compiled_once_for_what_is_clipped_and_what_is_not() -> None:
    traced = []

    @jax.jit
    def step(p: Any, g: Any) -> Any:
        traced.append(g)
        return p - g

    parameter = jnp.ones(2, "float32")
    for limit in (1.0, 9.0, 2.0):
        clipped, _ = uc.clip_by_global_norm([jnp.array([3.0, 4.0], "float32")], limit)
        step(parameter, clipped[0])
    assert len(traced) == 1


def test_a_deleted_array_is_jaxs_own_error() -> None:
    array = jnp.ones(2)
    array.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        uc.global_norm([array])


@pytest.mark.parametrize("scale", [1e-300, 1e300, 2e307])
def test_extreme_float64_in_a_graph(scale: float) -> None:
    with releases.enable_x64(True):
        wide = jnp.asarray(np.array([3.0, 4.0]) * scale)
    for p, expected in ((2, 5.0), (1, 7.0), (3, 91 ** (1 / 3))):
        norm = jax.jit(lambda x, p=p: uc.get_total_norm([x], p))(wide)
        np.testing.assert_allclose(float(norm), expected * scale, rtol=1e-12)


def test_sparse_gradients_inside_a_graph_and_with_padding() -> None:
    sparse = BCOO((jnp.array([[3.0], [4.0], [24.0], [7.0]], "float32"), jnp.array([[1], [1], [2], [4]])), shape=(4, 1))
    expected = np.array([[0], [7], [24], [0]], np.float32) * np.float32(0.04)
    for clip in (uc.clip_by_norm, jax.jit(uc.clip_by_norm)):
        clipped = clip(sparse, 1.0)
        assert isinstance(clipped, BCOO)
        np.testing.assert_array_equal(clipped.todense(), expected)


# -- containers


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    weight: Any
    bias: Any


def test_every_pytree_is_a_container() -> None:
    state = optax.EmptyState()
    tree = {"layer": Layer(jnp.array([3.0], "float32"), None), "rest": (jnp.array([4.0], "float32"), state)}
    for namespace in (uc, unified_clip):
        clipped, norm = namespace.clip_by_global_norm(tree, 1.0)
        assert float(norm) == 5.0
        assert jax.tree.structure(clipped) == jax.tree.structure(tree)
        np.testing.assert_array_equal(clipped["layer"].weight, np.array([0.6], np.float32))
        assert clipped["layer"].bias is None
    clipped, _ = unified_clip.clip_by_global_norm(Layer(jnp.array([3.0], "float32"), jnp.array([4.0], "float32")), 1.0)
    np.testing.assert_array_equal(clipped.bias, np.array([0.8], np.float32))
    with pytest.raises(TypeError, match=r"position 1 \(parameter 'layer.bias'\) is int32"):
        uc.global_norm({"layer": Layer(jnp.array([3.0], "float32"), jnp.array([4], "int32"))})


def test_a_pytree_that_cannot_be_updated_is_rejected_with_the_function_that_takes_it() -> None:
    layer = Layer(jnp.array([3.0], "float32"), jnp.array([4.0], "float32"))
    for grads in (layer, [layer], flax.core.freeze({"a": {"b": layer}})):
        for clip, advice in ((uc.clip_grad_norm_, "clip_by_global_norm"), (uc.clip_grad_value_, "ClipConfig")):
            with pytest.raises(TypeError, match=f"updates only a list or a dict.*Use .*{advice}"):
                clip(grads, 1.0)


@pytest.mark.parametrize("kind", [sparse.BCSR, sparse.CSR, sparse.COO])
def test_sparse_arrays_of_other_formats_are_named(kind: Any) -> None:
    array = kind.fromdense(jnp.array([[0.0, 3.0], [4.0, 0.0]], "float32"))
    for function in (lambda: uc.global_norm([array]), lambda: uc.clip_by_norm(array, 1.0)):
        with pytest.raises(TypeError, match=rf"{kind.__name__} array\. Pass gradient\.todense\(\)"):
            function()
    assert float(uc.global_norm([array.todense()])) == 5.0


def test_random_keys_are_no_gradients() -> None:
    with pytest.raises(TypeError, match="position 0 is key"):
        uc.global_norm([jax.random.key(0)])


@pytest.mark.parametrize("clip", [
    lambda tree: uc.clip_by_global_norm(tree, 1.0),
    lambda tree: uc.clip_by_value(tree["steps"], -1.0, 1.0),
    lambda tree: uc.clip_grad_norm_(tree, 1.0),
    lambda tree: uc.GradientClipByNorm(1.0)(list(tree.items())),
])  # fmt: skip
def test_gradients_of_integer_parameters_are_rejected_by_name(clip: Any) -> None:
    parameters = {"steps": jnp.arange(3), "weight": jnp.ones(2)}
    gradients = jax.grad(lambda tree: tree["weight"].sum(), allow_int=True)(parameters)
    assert gradients["steps"].dtype == jax.dtypes.float0
    with pytest.raises(TypeError, match=r"position 0.* is float0, .*Replace these gradients with None"):
        clip(gradients)
    gradients["steps"] = None
    assert float(uc.clip_grad_norm_(gradients, 1.0)) == float(np.sqrt(np.float32(2)))


@pytest.mark.nightly
def test_sparse_arrays_of_other_forms_are_refused() -> None:
    for n_batch, n_dense in ((1, 0), (0, 2)):
        sparse = BCOO.fromdense(jnp.eye(2), n_batch=n_batch, n_dense=n_dense)
        with pytest.raises(TypeError, match=r"is not supported. Pass gradient.todense"):
            uc.global_norm([sparse])


# -- new arrays: a compiled function makes the small ones of a list, once a list of their shapes and dtypes came before


def _bits(array: Any) -> tuple[Any, ...]:
    return array.shape, str(array.dtype), np.asarray(array).tobytes()


SETTINGS: list[Callable[[], Any]] = [
    nullcontext,
    partial(jax.transfer_guard, "disallow"),
    partial(jax.debug_nans, True),
    partial(jax.debug_infs, True),
    jax.disable_jit,
    partial(releases.enable_x64, True),
    lambda: jax.set_mesh(Mesh(np.array(jax.devices()), ("x",))),
]


def test_clipping_compiles_once_for_a_structure_and_never_for_one_that_does_not_come_again() -> None:
    exchange._copied.clear_cache()
    for length in range(1, 6):
        uc.clip_by_global_norm([jnp.full(100 + length, 2.0)], 1.0)
    norms_only = exchange._copied._cache_size()
    assert norms_only <= 1
    grads = [jnp.full(100, 2.0), jnp.full((2, 3), 2.0)]
    for _ in range(4):
        clipped, norm = uc.clip_by_global_norm(grads, 1.0)
    assert exchange._copied._cache_size() <= norms_only + 2
    np.testing.assert_allclose(np.concatenate([np.ravel(each) for each in clipped]), 2.0 / float(norm), rtol=1e-6)


def small_gradients(dtype: str = "float32") -> list[Any]:
    values = np.random.default_rng(0).normal(size=(20, 7)) * 10.0 ** np.arange(-38, 2, 2)[:, None]
    return [jnp.asarray(row[: index % 8], dtype) for index, row in enumerate(values)] + [jnp.asarray(2.5, dtype)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_products_have_the_same_bits_for_the_first_list_and_for_later_ones(
    setting: Callable[[], Any], dtype: str
) -> None:
    exchange._structure.cache_clear()
    grads = small_gradients(dtype)
    first, *later = [uc.clip_by_global_norm(grads, 1.0)[0] for _ in range(3)]
    with setting():
        later.append(uc.clip_by_global_norm(grads, 1.0)[0])
    for clipped in later:
        assert all(type(array) is type(grads[0]) and not array.committed for array in clipped)
        assert [_bits(array) for array in clipped] == [_bits(array) for array in first]


def test_an_unchanged_list_of_small_arrays_is_copied_since_its_arrays_may_be_donated() -> None:
    for _ in range(3):
        grads = small_gradients()
        clipped, _ = uc.clip_by_global_norm(grads, math.inf)
        expected = [_bits(array) for array in grads]
        for array in grads:
            array.delete()
        assert [_bits(array) for array in clipped] == expected


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_of_64_bits_keep_their_values_without_x64(dtype: str) -> None:
    with releases.enable_x64(True):
        array = jnp.asarray([2**40, 5], dtype)
    for _ in range(3):  # a later list is copied by a compiled function
        got = uc.clip_by_value(array, 7, 2**50)
        assert got.dtype == dtype
        assert np.asarray(got).tolist() == [2**40, 7]


def test_a_clip_in_a_graph_names_the_release_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "LACKS_FLOAT64_IN_GRAPHS", True)
    gradient = jnp.array([3.0, 4.0])

    def norm(gradients: list[jax.Array]) -> jax.Array:  # what JAX has not traced before in this process
        return uc.global_norm(gradients)

    for function in (jax.jit(norm), jax.grad(norm)):
        with pytest.raises(RuntimeError, match=r"jax\.jit or jax\.grad needs JAX 0\.7"):
            function([gradient])
    assert uc.global_norm([gradient]) == 5.0
    with releases.enable_x64(True):
        assert jax.jit(norm)([gradient]) == 5.0


def test_results_are_not_overwritten_through_the_array_they_were_made_from() -> None:
    source = np.array([3.0, 4.0], np.float32)
    (kept,), _ = uc.clip_by_global_norm([source], 10.0)
    source[:] = 0
    np.testing.assert_array_equal(kept, [3.0, 4.0])


def test_eager_calls_on_constants_of_a_traced_function_return_arrays() -> None:
    grads = small_gradients()
    expected = uc.clip_by_global_norm(grads, 1.0)[0]

    @jax.jit
    def step(x: Any) -> Any:
        clipped, _ = uc.clip_by_global_norm(grads, 1.0)
        assert not any(isinstance(array, jax.core.Tracer) for array in clipped)
        return [x * array for array in clipped]

    assert [_bits(array) for array in step(jnp.float32(1.0))] == [_bits(array) for array in expected]


NAMES: dict[str, Callable[[Any, float], Any]] = {
    "clip_by_global_norm": lambda gradient, limit: uc.clip_by_global_norm([gradient], limit)[0][0],
    "clip_by_global_norm of a dict": lambda gradient, limit: uc.clip_by_global_norm({"w": gradient}, limit)[0]["w"],
    "clip_by_norm": uc.clip_by_norm,
    "clip_by_norm of slices": lambda gradient, limit: uc.clip_by_norm(gradient, limit, axes=0),
    "clip_by_value": lambda gradient, limit: uc.clip_by_value(gradient, -limit, limit),
}


def place_whole(gradient: jax.Array) -> jax.Array:
    return gradient


def place_on_a_mesh(gradient: jax.Array) -> jax.Array:
    return jax.device_put(gradient, NamedSharding(Mesh(jax.devices(), ("x",)), PartitionSpec()))


@pytest.mark.parametrize("place", [place_whole, place_on_a_mesh])
@pytest.mark.parametrize("limit", [1.0, 1e9, math.inf])
@pytest.mark.parametrize("path", ["", "framework"])
@pytest.mark.parametrize("name", NAMES)
def test_donating_a_result_keeps_the_gradient(
    monkeypatch: pytest.MonkeyPatch, name: str, path: str, limit: float, place: Callable[[jax.Array], jax.Array]
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    gradient = place(jnp.full((1000,), 3.0))
    result = NAMES[name](gradient, limit)
    assert result.sharding == gradient.sharding
    jax.jit(jnp.negative, donate_argnums=0)(result)
    assert result.is_deleted()
    assert not gradient.is_deleted()
    assert gradient.tolist() == [3.0] * 1000


def test_a_class_instance_returns_the_given_gradient_where_nothing_is_clipped() -> None:
    gradient = jnp.array([3.0, 4.0])
    for clip in (uc.GradientClipByGlobalNorm(10.0), uc.GradientClipByNorm(10.0)):
        [(_, result)] = clip([(jnp.ones(2), gradient)])
        assert result is gradient


def test_in_place_names_keep_the_array_where_nothing_is_clipped() -> None:
    gradients = [jnp.array([3.0, 4.0])]
    [before] = gradients
    uc.clip_grad_norm_(gradients, 10.0)
    assert gradients[0] is before
