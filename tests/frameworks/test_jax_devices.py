"""Several devices: results are on the devices that JAX would choose, and sharded arrays stay sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.calls import Result, function
from support.kits import Kit

import unified_clip.jax as uc

NAMES = ("clip_grad_norm_", "clip_grad_value_", "clip_by_global_norm", "clip_by_norm", "GradientClipByGlobalNorm")


@pytest.fixture(params=NAMES)
def clip(request: pytest.FixtureRequest, kit: Kit) -> Callable[[list[Any]], Result]:
    return function(kit, request.param, 2.0)


# -- one device each


def test_results_are_committed_where_the_gradients_are(clip: Callable[[list[Any]], Result]) -> None:
    second = jax.devices()[1]
    plain = [jnp.array([3.0, 4.0], "float32"), jnp.array([12.0], "float32")]
    grads = jax.device_put(plain, second)
    results, norm = clip(grads)
    expected, _ = clip(plain)
    for result, one in zip(results, expected, strict=True):
        assert result.committed
        assert result.devices() == {second}
        np.testing.assert_array_equal(result, one)
    assert norm is None or (norm.committed and norm.devices() == {second})
    jax.jit(jnp.add)(grads[0], results[0])  # JAX refuses arrays that are committed to different devices


def test_results_of_arrays_that_may_leave_their_device_may_leave_it_too(clip: Callable[[list[Any]], Result]) -> None:
    results, norm = clip([jnp.array([3.0, 4.0], "float32"), jnp.array([12.0], "float32")])
    assert not any(result.committed for result in [*results, norm] if result is not None)
    with jax.default_device(jax.devices()[2]):
        made_there = jnp.array([3.0, 4.0], "float32")
    results, norm = clip([made_there])
    assert results[0].devices() == (made_there * 2).devices()  # on the default device, as JAX does


def test_each_goes_with_its_own_gradient() -> None:
    first, second = jax.devices()[:2]
    grads = [jnp.array([3.0], "float32"), jax.device_put(jnp.array([4.0], "float32"), second)]
    clipped, norm = uc.clip_by_global_norm(grads, 1.0)
    assert [result.committed for result in clipped] == [False, True]
    assert norm.devices() == {second}
    grads[0] = jax.device_put(grads[0], first)
    clipped, norm = uc.clip_by_global_norm(grads, 1.0)
    assert [result.devices() for result in clipped] == [{first}, {second}]
    assert not norm.committed, "it has to go with both"


def test_a_sharding_over_one_device_is_kept() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[1:2]), ("x",)), PartitionSpec("x"))
    clipped, norm = uc.clip_by_global_norm([jax.device_put(jnp.array([3.0, 4.0], "float32"), sharding)], 1.0)
    assert clipped[0].sharding == sharding
    assert norm.devices() == sharding.device_set


def test_sparse_gradients_stay_where_they_are() -> None:
    second = jax.devices()[1]
    data = jax.device_put(jnp.array([[3.0], [4.0]], "float32"), second)
    clipped = uc.clip_by_norm(BCOO((data, jax.device_put(jnp.array([[1], [1]]), second)), shape=(4, 1)), 1.0)
    assert clipped.data.devices() == clipped.indices.devices() == {second}


# -- sharded arrays


def sharded(axis_type: AxisType = AxisType.Auto) -> tuple[Mesh, list[Any], list[Any]]:
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(axis_type, axis_type))
    random = np.random.default_rng(0)
    specs = [(("a", "b"), (4, 6)), (("b",), (8,)), ((None, "a"), (3, 2)), ((), (5,)), (("b",), (8,)), (("a",), (8,))]
    plain = [jnp.asarray(random.standard_normal(shape), "float32") for _, shape in specs]
    given = [
        jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
        for array, (spec, _) in zip(plain, specs, strict=True)
    ]
    return mesh, given, plain


@pytest.mark.parametrize("axes", [0, 1])
def test_slices_of_an_array_whose_sharding_is_part_of_its_type(axes: int) -> None:
    mesh, (gradient, *_), (plain, *_) = sharded(AxisType.Explicit)
    with jax.set_mesh(mesh):
        clipped = jax.jit(lambda g: uc.clip_by_norm(g, 1.0, axes=axes))(gradient)
    assert clipped.sharding.is_equivalent_to(gradient.sharding, gradient.ndim)
    np.testing.assert_array_equal(clipped, uc.clip_by_norm(plain, 1.0, axes=axes))


def test_the_derivative_of_a_sharded_array_is_sharded_as_it_is() -> None:
    _, given, plain = sharded()
    derivative = jax.jit(jax.grad(lambda grads: sum(g.sum() for g in uc.clip_by_global_norm(grads, 1.0)[0])))
    for got, expected, gradient in zip(derivative(given), derivative(plain), given, strict=True):
        assert got.sharding.is_equivalent_to(gradient.sharding, gradient.ndim)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
