"""JAX: clips inside `shard_map` and `pmap`, whose norms cover all devices or those of `process_group`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import reference
from support.jax_layouts import WAYS, arrays, assert_equal, in_shard_map, mesh_of, put
from support.kits import Kit

import unified_clip
import unified_clip.jax as uc
import unified_clip.numpy as np_uc
from unified_clip.integrations import optax_transforms


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the exact results are those of eager calls on the host path")


# -- inside shard_map


SPECS = [P("x"), P(None, "y"), P("x", "y"), P(), P(("y", "x")), P("y")]


TRANSFORMS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "optax.stateless": (
        optax.stateless(lambda updates, _: [uc.clip_by_norm(each, 1.0) for each in updates]),
        np_uc.GradientClipByNorm(1.0).clip_,
    ),
    "ClipConfig.as_optax": (
        optax.chain(
            unified_clip.ClipConfig(rule="global_norm", threshold=2.0, family="paddle").as_optax(), optax.scale(1.0)
        ),
        np_uc.GradientClipByGlobalNorm(2.0).clip_,
    ),
}
"""A transformation inside `shard_map`, and the same clip of unsharded gradients in place."""


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transformation_in_shard_map_clips_by_norms_over_all_devices(name: str) -> None:
    transformation, on_one_device = TRANSFORMS[name]
    mesh, gradients = mesh_of(4), arrays()
    update = in_shard_map(lambda grads: (updated_by(transformation, grads), uc.global_norm(grads)), mesh, SPECS)
    clipped, norm = update(put(gradients, SPECS, mesh))
    expected = [array.copy() for array in gradients]
    on_one_device(expected)
    assert_equal(clipped, expected)
    assert float(norm) == reference.norm(gradients)


@pytest.mark.nightly
def test_axes_that_only_xla_shards_are_counted() -> None:
    mesh, gradients = mesh_of(4), arrays()
    specs = [P("x"), P(None, "x"), P("x"), P(), P("x"), P()]
    placed = put(gradients, [P("x", "y"), P("y", "x"), P("x"), P("y"), P("x"), P(None, "y")], mesh)
    mapped = jax.shard_map(
        lambda grads: uc.clip_by_global_norm(grads, 1.5),
        mesh=mesh,
        in_specs=(specs,),
        out_specs=(specs, P()),
        axis_names={"x"},
    )
    clipped, norm = jax.jit(mapped)(placed)
    expected, expected_norm = np_uc.clip_by_global_norm(gradients, 1.5)
    assert norm == expected_norm
    assert_equal(clipped, expected)


def test_clips_in_scan_with_checkpoint() -> None:
    mesh = mesh_of(4)

    def steps(grads: list[Any]) -> Any:
        @jax.checkpoint
        def step(x: Any, _: Any) -> Any:
            (x,), norm = uc.clip_by_global_norm([x * 2], 1.0)
            return x, norm

        x, norms = jax.lax.scan(step, grads[0], None, length=3)
        return [x], norms

    _, norms = in_shard_map(steps, mesh, [P("x", "y")])(put([np.full((4, 4), 0.25, np.float32)], [P("x", "y")], mesh))
    assert norms.tolist() == [2.0, 2.0, 2.0]


def test_norms_over_axes_are_those_of_the_local_shard() -> None:
    mesh = mesh_of(4)
    function = in_shard_map(lambda grads: ([uc.clip_by_norm(grads[0], 0.5, axes=1)], 0), mesh, [P("x")])
    (clipped,), _ = function(put(arrays()[:1], [P("x")], mesh))
    assert_equal([clipped], [np_uc.clip_by_norm(arrays()[0], 0.5, axes=1)])


def test_vmap_in_shard_map_returns_norms_over_all_devices() -> None:
    mesh = mesh_of(4)
    function = in_shard_map(
        lambda grads: (grads, jax.vmap(lambda g: uc.global_norm([g]))(grads[0])), mesh, [P(None, "x")]
    )
    batch = np.arange(152, dtype=np.float32).reshape(2, 76)
    _, norms = function(put([batch], [P(None, "x")], mesh))
    assert_equal([norms], [np.array([reference.norm([row]) for row in batch], np.float32)])


@pytest.mark.nightly
@pytest.mark.parametrize("order", [1, 2, 3, math.inf])
def test_derivatives_of_norms_cover_all_devices(order: float) -> None:
    mesh = mesh_of(4)
    gradients = [array for array in arrays() if array.size]
    specs = SPECS[: len(gradients)]
    mapped = jax.shard_map(lambda grads: uc.get_total_norm(grads, order), mesh=mesh, in_specs=(specs,), out_specs=P())
    derivative = jax.jit(jax.grad(mapped))(put(gradients, specs, mesh))
    expected = jax.jit(jax.grad(lambda grads: uc.get_total_norm(grads, order)))(list(map(jnp.asarray, gradients)))
    for result_gradient, expected_gradient in zip(derivative, expected, strict=True):
        np.testing.assert_allclose(result_gradient, expected_gradient, rtol=1e-6)


# -- process_group and ownership in traced code


def own_norms(function: Callable[[Any], Any], **options: Any) -> np.ndarray:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(
        lambda g: function([g]) * jnp.ones_like(g), mesh=mesh, in_specs=P("x"), out_specs=P("x"), **options
    )
    return np.asarray(jax.jit(mapped)(jnp.array([1.0, 2.0, 3.0, 4.0])))


@pytest.mark.parametrize("check_vma", [False, True])
def test_with_process_group_none_each_device_has_its_own_norm(check_vma: bool) -> None:
    norms = own_norms(lambda grads: uc.get_total_norm(grads, process_group=None), check_vma=check_vma)
    assert norms.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("group", ["x", ("x",)])
@pytest.mark.parametrize("check_vma", [False, True])
def test_process_group_names_the_axes_of_the_norm(check_vma: bool, group: Any) -> None:
    norms = own_norms(lambda grads: uc.clip_grad_norm_(grads, 1.0, process_group=group), check_vma=check_vma)
    assert norms.tolist() == [np.float32(np.sqrt(30.0))] * 4


def test_process_group_may_name_one_of_two_axes() -> None:
    mesh = mesh_of(4)
    mapped = jax.shard_map(
        lambda g: uc.get_total_norm([g], process_group="x").reshape(1),
        mesh=mesh,
        in_specs=P(("x", "y")),
        out_specs=P("y"),
    )
    norms = jax.jit(mapped)(jnp.array([3.0, 6.0, 4.0, 8.0]))
    assert norms.tolist() == [5.0, 10.0]


WITH_PROCESS_GROUP: dict[str, Callable[[Any, Any], Any]] = {
    "clip_by_global_norm": lambda g, group: uc.clip_by_global_norm([g], 1.0, process_group=group)[0][0],
    "global_norm": lambda g, group: g / uc.global_norm([g], process_group=group),
    "clip_by_norm": lambda g, group: uc.clip_by_norm(g, 1.0, process_group=group),
    "GradientClipByNorm": lambda g, group: uc.GradientClipByNorm(1.0, process_group=group)([("g", g)])[0][1],
    "ClipConfig.as_optax": lambda g, group: updated_by(
        unified_clip.ClipConfig(rule="global_norm", threshold=1.0, family="tensorflow").as_optax(process_group=group), g
    ),
}
"""Functions with a parameter `process_group`, which clip a gradient to a norm of 1."""


def updated_by(transformation: Any, gradient: Any) -> Any:
    return transformation.update(gradient, transformation.init(gradient))[0]


@pytest.mark.nightly
@pytest.mark.parametrize("name", WITH_PROCESS_GROUP)
def test_every_function_accepts_process_group_in_pmap(name: str) -> None:
    gradients = jnp.tile(jnp.array([3.0, 4.0]), (4, 1))
    per_device = jax.pmap(lambda g: WITH_PROCESS_GROUP[name](g, None), axis_name="x")(gradients)
    np.testing.assert_allclose(per_device, gradients / 5, rtol=1e-6)
    over_devices = jax.pmap(lambda g: WITH_PROCESS_GROUP[name](g, "x"), axis_name="x")(gradients)
    np.testing.assert_allclose(over_devices, gradients / 10, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"process_group": "x"}])
def test_a_configuration_reports_values_clipped_on_any_device(options: dict[str, Any]) -> None:
    clip = unified_clip.ClipConfig(rule="value", threshold=3.0).as_optax(**options)

    def step(grads: list[Any]) -> Any:
        clipped_grads, state = clip.update(grads, clip.init(grads))
        return clipped_grads, state

    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=([P("x")],), out_specs=([P("x")], P()), check_vma="process_group" not in options
    )
    for last, clipped in ((4.0, True), (3.0, False)):
        _, state = jax.jit(mapped)([jnp.array([1.0, 2.0, 3.0, last])])
        assert optax_transforms.last(state).clipped is clipped


MISSING = "Inside pmap, or inside shard_map with check_vma=False, unified_clip cannot detect sharded axes"


def test_without_varying_axes_in_types_process_group_is_required() -> None:
    with pytest.raises(ValueError, match=MISSING):
        own_norms(uc.global_norm, check_vma=False)
    with pytest.raises(ValueError, match=MISSING):
        jax.pmap(lambda g: uc.clip_by_norm(g, 1.0))(jnp.ones((4, 2)))
    own_norms(lambda grads: uc.clip_by_value(grads[0], 0.0, 1.0), check_vma=False)  # needs no norm


def test_unreduced_arrays_are_rejected() -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this JAX has no terms of sums")

    def norm(g: Any) -> Any:
        return uc.global_norm([jax.lax.pcast(g, "x", to="unreduced")])

    with pytest.raises(ValueError, match=r"unreduced over 'x'\. Reduce the gradient first"):
        jax.jit(jax.shard_map(norm, mesh=mesh, in_specs=P("x"), out_specs=P()))(jnp.ones(4))


@pytest.mark.parametrize("way", ["eagerly", "jit"])
@pytest.mark.parametrize(
    "clip", [uc.global_norm, lambda grads: uc.clip_by_value(grads[0], 0.0, 1.0), lambda g: uc.GradientClipByNorm(1.0)([
        ("a", g[0]), ("b", g[0])
    ])]
)  # fmt: skip
def test_unreduced_arrays_on_explicit_axes_are_rejected(clip: Callable[[list[Any]], Any], way: str) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(jnp.ones((2, 4)), NamedSharding(mesh, P(None, "x")))
        terms = jax.jit(lambda a, b: jnp.einsum("ab,cb->ac", a, b, out_sharding=P(unreduced={"x"})))(rows, rows)
        with pytest.raises(ValueError, match=r"unreduced over 'x'\. Reduce the gradient first"):
            WAYS[way](clip, mesh, None)([terms])
        assert uc.global_norm([jax.sharding.reshard(terms, P())]) == 8.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: jax.jit(lambda g: uc.get_total_norm(g, process_group="z"))(g), ValueError,
         "process_group contains 'z', but this call is not inside shard_map. Leave it out"),
        (lambda g: uc.get_total_norm(g, process_group="z"), ValueError,
         "process_group contains 'z', but this call is not inside shard_map"),
        (lambda g: uc.get_total_norm(g, process_group=3), TypeError,
         "process_group is 3. Pass the name of a mesh axis, a tuple of such names, None, or 'auto'"),
    ],
)  # fmt: skip
def test_invalid_process_groups_are_rejected(call: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call([jnp.ones(2)])
