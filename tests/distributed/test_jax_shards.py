"""JAX: gradients that are sharded over devices are clipped to the same bits as on one device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.sparse import BCOO
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support import reference
from support.kits import Kit
from support.processes.jax_sharded import COUNTER_EXAMPLE, arrays, assert_equal
from support.tiers import nightly, quick

import unified_clip
import unified_clip.jax as uc
import unified_clip.numpy as np_uc
from unified_clip.errors import NonFiniteNormError
from unified_clip.integrations import optax_transforms

Way = Callable[[Callable[..., Any], Mesh, Any], Callable[..., Any]]


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the exact results are those of eager calls on the host path")


def mesh_of(devices: int) -> Mesh:
    """Four devices form two rows."""
    shape = (max(devices // 2, 1), min(devices, 2))
    return Mesh(np.array(jax.devices()[:devices]).reshape(shape), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


LAYOUTS: dict[str, list[P]] = {
    "rows": [P("x")],
    "columns": [P(None, "x")],
    "rows and columns": [P("x", "y")],
    "rows over both axes": [P(("x", "y"))],
    "columns over both axes": [P(None, ("x", "y"))],
    "replicated": [P()],
    "mixed": [P("x"), P(None, "y"), P("x", "y"), P(), P(("y", "x")), P("y")],
}


def specs_of(layout: str, number: int) -> list[P]:
    specs = LAYOUTS[layout]
    return [specs[index % len(specs)] for index in range(number)]


def put(arrays: list[np.ndarray], specs: list[P], mesh: Mesh) -> list[Any]:
    return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, specs, strict=True)]


def in_shard_map(function: Callable[..., Any], mesh: Mesh, specs: Any) -> Callable[..., Any]:
    """Map a function that returns gradients, and a value that all devices share."""
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(specs,), out_specs=(specs, P())))


WAYS: dict[str, Way] = {
    "eagerly": lambda function, mesh, specs: function,
    "jit": lambda function, mesh, specs: jax.jit(function),
    "shard_map": in_shard_map,
}


# -- any layout on any number of devices


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", quick(LAYOUTS, "rows over both axes", "mixed"))
@pytest.mark.parametrize("devices", [4, *nightly(1, 2)])
def test_the_norm_and_the_gradients_are_those_of_one_device(devices: int, layout: str, way: str) -> None:
    def clip(grads: list[Any]) -> Any:
        clipped, norm = uc.clip_by_global_norm(grads, 1.5)
        return clipped, (norm, uc.get_total_norm(grads, 1))

    mesh, gradients = mesh_of(devices), arrays()
    specs = specs_of(layout, len(gradients))
    expected, norm = np_uc.clip_by_global_norm(gradients, 1.5)
    placed = put(gradients, specs, mesh)
    clipped, norms = WAYS[way](clip, mesh, specs)(placed)
    assert [float(value) for value in norms] == [reference.norm(gradients), reference.norm(gradients, 1.0)]
    assert norms[0] == norm
    assert_equal(clipped, expected)
    for result, gradient in zip(clipped, placed, strict=True):
        assert result.sharding.is_equivalent_to(gradient.sharding, gradient.ndim) or not gradient.size


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("devices", [4, *nightly(1, 2)])
def test_the_norm_does_not_depend_on_the_order_of_additions(devices: int, way: str) -> None:
    mesh, specs = mesh_of(devices), [P(("x", "y"))]
    assert reference.norm([COUNTER_EXAMPLE]) == 2.0**24 + 2
    placed = put([COUNTER_EXAMPLE], specs, mesh)
    _, norm = WAYS[way](lambda grads: uc.clip_by_global_norm(grads, 1.0), mesh, specs)(placed)
    assert norm == 2.0**24 + 2


@pytest.mark.parametrize("way", ["jit", "shard_map"])
@pytest.mark.parametrize("scale", [2.0**-120, 2.0**100])
def test_nor_for_very_small_or_large_gradients(scale: float, way: str) -> None:
    mesh, specs = mesh_of(4), [P(("x", "y"))]
    placed = put([COUNTER_EXAMPLE * np.float32(scale)], specs, mesh)
    _, norm = WAYS[way](lambda grads: uc.clip_by_global_norm(grads, 1.0), mesh, specs)(placed)
    assert norm == (2.0**24 + 2) * scale


@pytest.mark.parametrize("way", ["jit", "shard_map"])
def test_a_norm_halfway_between_two_float32_rounds_to_even(way: str) -> None:
    mesh, specs = mesh_of(4), [P(("x", "y"))]
    down = np.array([2.0**24, 1.0, 0.0, 0.0], np.float32)  # 2**24 + 1
    up = np.array([2.0**24, 2.0, 1.0, 0.0], np.float32)
    function = WAYS[way](lambda grads: (grads, uc.get_total_norm(grads, 1)), mesh, specs)
    for array, norm in ((down, 2.0**24), (up, 2.0**24 + 4)):
        assert reference.norm([array], 1.0) == norm
        assert function(put([array], specs, mesh))[1] == norm


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["bfloat16", *nightly("float16", "complex64")])
def test_bfloat16_float16_and_complex64_gradients(dtype: str, way: str) -> None:
    mesh, gradients = mesh_of(4), arrays(dtype)
    specs = specs_of("mixed", len(gradients))
    clipped, norm = WAYS[way](lambda grads: uc.clip_by_global_norm(grads, 1.5), mesh, specs)(
        put(gradients, specs, mesh)
    )
    assert float(norm) == reference.norm(gradients)
    expected = uc.clip_by_global_norm(list(map(jnp.asarray, gradients)), 1.5)[0]
    assert_equal(clipped, list(map(np.asarray, expected)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("p", [3.0, math.inf])
def test_norm_types_3_and_inf(p: float, way: str) -> None:
    mesh, gradients = mesh_of(4), arrays()
    specs = specs_of("mixed", len(gradients))
    _, norm = WAYS[way](lambda grads: (grads, uc.get_total_norm(grads, p)), mesh, specs)(put(gradients, specs, mesh))
    np.testing.assert_allclose(norm, np_uc.get_total_norm(gradients, p), rtol=0 if p == math.inf else 1e-7)


@pytest.mark.parametrize("way", WAYS)
def test_complex_elements_count_by_their_magnitude(way: str) -> None:
    mesh, gradients = mesh_of(4), [np.array([3 + 4j, 5 + 12j, 8 - 15j, -7j], np.complex64)]
    _, norm = WAYS[way](lambda grads: (grads, uc.get_total_norm(grads, 1)), mesh, [P("x")])(
        put(gradients, [P("x")], mesh)
    )
    np.testing.assert_allclose(norm, 42.0, rtol=1e-7)


@pytest.mark.parametrize("way", WAYS)
def test_float64_gradients(way: str) -> None:
    mesh, specs = mesh_of(4), [P("x", "y"), P("x")]
    gradients = arrays("float64")[:2]
    with jax.enable_x64(True):
        placed = put(gradients, specs, mesh)
        _, norm = WAYS[way](lambda grads: (grads, uc.global_norm(grads)), mesh, specs)(placed)
    assert norm.dtype == "float64"
    np.testing.assert_allclose(norm, reference.norm(gradients), rtol=0 if way == "eagerly" else 1e-15)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("p", [2, *nightly(1, math.inf)])
def test_nan_and_inf_on_one_device_reach_the_norm_on_all_devices(p: float, value: float, way: str) -> None:
    mesh, specs = mesh_of(4), [P(("x", "y")), P()]
    first = np.ones(8, np.float32)
    first[-1] = value
    placed = put([first, np.ones(3, np.float32)], specs, mesh)
    _, norm = WAYS[way](lambda grads: (grads, uc.get_total_norm(grads, p)), mesh, specs)(placed)
    np.testing.assert_array_equal(norm, np.float32(value))


def test_error_if_nonfinite_names_the_array_with_nan() -> None:
    array = np.ones((4, 4), np.float32)
    array[3, 3] = np.nan
    with pytest.raises(NonFiniteNormError, match="1 has 1 NaN"):
        uc.clip_grad_norm_(put([arrays()[0], array], [P(), P("x")], mesh_of(4)), 1.0, error_if_nonfinite=True)


def test_on_one_device_graphs_have_no_code_for_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced() -> str:
        return str(jax.make_jaxpr(lambda g: uc.global_norm([g]))(jnp.ones(3)))

    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")  # with kernels, both graphs are the same
    assert "while" in traced()
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert "while" not in traced()


# -- eager calls


def test_eager_results_keep_the_sharding_of_the_gradient() -> None:
    mesh = mesh_of(4)
    (array,) = put(arrays()[:1], [P("x", "y")], mesh)
    plain = arrays()[0]
    results = {
        "value": (uc.clip_by_value(array, -0.5, 0.25), np_uc.clip_by_value(plain, -0.5, 0.25)),
        "bounds that are arrays": (
            uc.clip_by_value(array, jnp.full(4, -0.5), 0.25), np_uc.clip_by_value(plain, np.full(4, -0.5), 0.25)
        ),
        "slices": (uc.clip_by_norm(array, 0.5, axes=1), np_uc.clip_by_norm(plain, 0.5, axes=1)),
        "one norm": (uc.clip_by_norm(array, 0.5), np_uc.clip_by_norm(plain, 0.5)),
        "unchanged": (uc.clip_by_norm(array, 1e9), plain),
    }  # fmt: skip
    for result, expected in results.values():
        assert_equal([result], [expected])
        assert result.sharding == array.sharding


def test_the_norm_of_arrays_on_two_meshes_is_not_committed() -> None:
    first, second = mesh_of(2), mesh_of(4)
    norm = uc.global_norm([*put([np.array([3.0, 0.0], np.float32)], [P("y")], first),
                           *put([np.array([4.0, 0.0], np.float32)], [P("y")], second)])  # fmt: skip
    assert norm == 5.0
    assert not norm.committed


def test_uncommitted_arrays_beside_sharded_ones_stay_uncommitted() -> None:
    (sharded,) = put([np.array([3.0, 0.0], np.float32)], [P("x")], mesh_of(4))
    for free in (jnp.full((), 4.0), jnp.full(1, 4.0), np.full(1, 4.0, np.float32)):
        for gradients in ([free, sharded], [sharded, free]):
            clipped, norm = uc.clip_by_global_norm(gradients, 1.0)
            assert norm == 5.0
            assert [result.committed for result in clipped] == [array is sharded for array in gradients]


@pytest.mark.nightly
def test_sparse_rows_on_several_devices() -> None:
    mesh = mesh_of(4)
    data, indices = put([np.full((4, 2), 2.0, np.float32), np.array([[0], [1], [1], [3]], np.int32)], [P(), P()], mesh)
    clipped = uc.clip_by_norm(BCOO((data, indices), shape=(5, 2)), 1.0)
    dense = np.zeros((5, 2), np.float32)
    dense[[0, 1, 3]] = [[2], [4], [2]]
    assert_equal([clipped.todense()], [np_uc.clip_by_norm(dense, 1.0)])


# -- the number of all-reduces


def count_all_reduces(compiled: Any) -> tuple[int, int]:
    """Return the number in the program itself, and in its loops, which run only if a norm may round either way."""
    text = compiled.as_text()
    entry = text[text.index("\nENTRY") :]
    return (*(len(re.findall(r" all-\w+(?:-start)?\(", part)) for part in (entry, text[: text.index("\nENTRY")])),)


CLIPS: dict[str, Callable[[list[Any]], Any]] = {
    "clip_by_global_norm": lambda grads: uc.clip_by_global_norm(grads, 1.0)[0],
    "global_norm": lambda grads: [g * uc.global_norm(grads) for g in grads],
    "GradientClipByGlobalNorm": lambda grads: uc.GradientClipByGlobalNorm(1.0)([(None, g) for g in grads]),
    "GradientClipByNorm": lambda grads: uc.GradientClipByNorm(1.0)([(None, g) for g in grads]),
    "transforms.clip_by_global_norm": lambda grads: uc.transforms.clip_by_global_norm(1.0).update(grads, None)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", quick(CLIPS, "clip_by_global_norm", "GradientClipByNorm"))
def test_a_clip_in_shard_map_has_one_all_reduce(name: str) -> None:
    mesh, gradients = mesh_of(4), arrays()
    specs = specs_of("mixed", len(gradients))
    mapped = jax.shard_map(
        lambda grads: jax.tree.leaves(CLIPS[name](grads)), mesh=mesh, in_specs=(specs,), out_specs=specs
    )
    function = jax.jit(mapped)
    assert count_all_reduces(function.lower(put(gradients, specs, mesh)).compile()) == (1, 1)


def test_replicated_gradients_need_no_all_reduce() -> None:
    mesh, gradients = mesh_of(4), arrays()
    specs = specs_of("replicated", len(gradients))
    for way in ("jit", "shard_map"):
        function = WAYS[way](lambda grads: uc.clip_by_global_norm(grads, 1.0), mesh, specs)
        assert count_all_reduces(function.lower(put(gradients, specs, mesh)).compile()) == (0, 0)


@pytest.mark.nightly
def test_under_jit_xla_reduces_along_the_sharded_axes() -> None:
    mesh = mesh_of(4)
    for spec, number in ((P("x"), 1), (P(None, "x"), 1), (P("x", "y"), 2), (P(("x", "y")), 1)):
        function = jax.jit(lambda grads: uc.clip_by_global_norm(grads, 1.0))
        assert count_all_reduces(function.lower(put(arrays()[:1], [spec], mesh)).compile()) == (number, number)


# -- inside shard_map


SPECS = [P("x"), P(None, "y"), P("x", "y"), P(), P(("y", "x")), P("y")]


def clip_in_place(grads: list[Any]) -> Any:
    clipped = list(grads)
    norm = uc.clip_grad_norm_(clipped, 2.0)
    return clipped, norm


def updated(transformation: Any) -> Callable[[list[Any]], Any]:
    return lambda grads: (transformation.update(grads, transformation.init(grads))[0], uc.global_norm(grads))


def paired(clip: Any) -> Callable[[list[Any]], Any]:
    return lambda grads: ([g for _, g in clip([(None, g) for g in grads])], uc.global_norm(grads))


CALLS_IN_SHARD_MAP: dict[str, tuple[Callable[[list[Any]], Any], Callable[[list[np.ndarray]], list[np.ndarray]]]] = {
    "clip_grad_norm_": (clip_in_place, lambda grads: np_uc.clip_grad_norm_(grads, 2.0)),
    "clip_by_norm": (
        lambda grads: ([uc.clip_by_norm(g, 1.0) for g in grads], uc.global_norm(grads)),
        lambda grads: grads.__setitem__(slice(None), [np_uc.clip_by_norm(g, 1.0) for g in grads]),
    ),
    "GradientClipByNorm": (
        paired(uc.GradientClipByNorm(1.0)),
        lambda grads: grads.__setitem__(slice(None), [np_uc.clip_by_norm(g, 1.0) for g in grads]),
    ),
    "GradientClipByGlobalNorm": (
        paired(uc.GradientClipByGlobalNorm(2.0)),
        lambda grads: grads.__setitem__(slice(None), np_uc.clip_by_global_norm(grads, 2.0)[0]),
    ),
    "transforms.clip_grad_norm": (
        updated(uc.transforms.clip_grad_norm(2.0)), lambda grads: np_uc.clip_grad_norm_(grads, 2.0)
    ),
    "transforms.clip_by_norm": (
        updated(uc.transforms.clip_by_norm(1.0)),
        lambda grads: grads.__setitem__(slice(None), [np_uc.clip_by_norm(g, 1.0) for g in grads]),
    ),
    "in optax.chain": (
        updated(optax.chain(uc.transforms.gradient_clip_by_global_norm(2.0), optax.scale(1.0))),
        lambda grads: grads.__setitem__(slice(None), np_uc.clip_by_global_norm(grads, 2.0)[0]),
    ),
}  # fmt: skip
"""A clip inside `shard_map`, and the same clip of unsharded gradients in place."""


@pytest.mark.parametrize("name", quick(CALLS_IN_SHARD_MAP, "clip_grad_norm_", "GradientClipByNorm"))
def test_every_function_in_shard_map_clips_by_norms_over_all_devices(name: str) -> None:
    function, on_one_device = CALLS_IN_SHARD_MAP[name]
    mesh, gradients = mesh_of(4), arrays()
    clipped, norm = in_shard_map(function, mesh, SPECS)(put(gradients, SPECS, mesh))
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
    batch = np.stack([COUNTER_EXAMPLE, np.arange(76, dtype=np.float32)])
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


@pytest.mark.nightly
def test_the_second_derivative_of_a_clip_covers_all_devices() -> None:
    mesh, gradient, direction = mesh_of(4), arrays()[0], arrays()[3].repeat(2, axis=0)

    def second(clip: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        first = jax.grad(lambda x: (clip(x) ** 2 / 3 + clip(x)).sum())
        return jax.jit(jax.grad(lambda x, v: (first(x) * v).sum()))

    mapped = jax.shard_map(lambda x: uc.clip_by_norm(x, 1.0), mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
    placed = put([gradient, direction], [P("x", "y")] * 2, mesh)
    np.testing.assert_allclose(
        second(mapped)(*placed), second(lambda x: uc.clip_by_norm(x, 1.0))(gradient, direction), rtol=1e-4, atol=1e-6
    )


# -- process_group and ownership in traced code


def own_norms(function: Callable[[Any], Any], **options: Any) -> np.ndarray:
    """Return the function's result on each of four devices, which have the gradients 1, 2, 3 and 4."""
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


@pytest.mark.nightly
def test_process_group_in_pmap() -> None:
    def clip(g: Any, group: Any) -> Any:
        return uc.GradientClipByGlobalNorm(1.0, process_group=group)([(None, g)])[0][1]

    gradients = jnp.array([[3.0], [4.0], [0.0], [0.0]])
    per_device = jax.pmap(lambda g: clip(g, None), axis_name="x")(gradients)
    assert per_device.ravel().tolist() == [1.0, 1.0, 0.0, 0.0]
    over_devices = jax.pmap(lambda g: clip(g, "x"), axis_name="x")(gradients)
    np.testing.assert_array_equal(over_devices.ravel(), np.array([0.6, 0.8, 0.0, 0.0], np.float32))


WITH_PROCESS_GROUP: dict[str, Callable[[Any, Any], Any]] = {
    "clip_by_global_norm": lambda g, group: uc.clip_by_global_norm([g], 1.0, process_group=group)[0][0],
    "global_norm": lambda g, group: g / uc.global_norm([g], process_group=group),
    "clip_by_norm": lambda g, group: uc.clip_by_norm(g, 1.0, process_group=group),
    "GradientClipByNorm": lambda g, group: uc.GradientClipByNorm(1.0, process_group=group)([("g", g)])[0][1],
    "transforms.clip_by_global_norm": lambda g, group: updated_by(
        uc.transforms.clip_by_global_norm(1.0, process_group=group), g
    ),
    "transforms.gradient_clip_by_global_norm": lambda g, group: updated_by(
        uc.transforms.gradient_clip_by_global_norm(1.0, process_group=group), g
    ),
    "transforms.clip_by_norm": lambda g, group: updated_by(uc.transforms.clip_by_norm(1.0, process_group=group), g),
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


def test_a_configuration_clips_values_on_disjoint_devices() -> None:
    clip = unified_clip.ClipConfig(rule="value", threshold=3.0).as_optax()
    gradients = [
        jax.device_put(jnp.array([4.0]), jax.devices()[1]),
        *put([np.ones(4, np.float32)], [P("x")], mesh_of(4)),
    ]
    state = clip.update(gradients, clip.init(gradients))[1]
    assert optax_transforms.last(state).clipped


MISSING = "over which axes gradients are sharded, inside pmap or shard_map with check_vma=False"


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

    with pytest.raises(ValueError, match=r"unreduced over 'x'\. Reduce it first"):
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
        with pytest.raises(ValueError, match=r"unreduced over 'x'\. Reduce it first"):
            WAYS[way](clip, mesh, None)([terms])
        assert uc.global_norm([jax.sharding.reshard(terms, P())]) == 8.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: jax.jit(lambda g: uc.get_total_norm(g, process_group="z"))(g), ValueError,
         "process_group names 'z', but the axes of shard_map are none here. Pass the names of the axes over"),
        (lambda g: uc.get_total_norm(g, process_group="z"), ValueError,
         "process_group names 'z', but this call is not inside shard_map"),
        (lambda g: jax.jit(lambda g: uc.get_total_norm(g, ownership="distinct"))(g), TypeError,
         "ownership, check_numel and check_replicas are not supported in traced code"),
        (lambda g: uc.get_total_norm(g, process_group=3), TypeError,
         "process_group is 3. Pass the name of a mesh axis, a tuple of such names, None, or 'auto'"),
        (lambda g: uc.get_total_norm(g, process_group=[0]), TypeError,
         "process_group, ownership, check_numel and check_replicas are for distributed gradients"),
        (lambda g: jax.jit(lambda g: uc.get_total_norm(g, process_group=[0]))(g), TypeError,
         r"process_group is \[0\], which is not supported in traced code. Pass names of axes of shard_map"),
        (lambda g: uc.get_total_norm(g, check_numel=True), TypeError,
         "process_group, ownership, check_numel and check_replicas are for distributed gradients"),
    ],
)  # fmt: skip
def test_invalid_process_groups_and_ownership_are_rejected(
    call: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call([jnp.ones(2)])


# -- a model


def transformer(params: dict[str, Any], tokens: Any) -> Any:
    """One block: attention with two heads, and two layers."""
    x = params["embed"][tokens]
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, params[name]) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("bshe,bthe->bhst", q, k), axis=-1)
    x = x + jnp.einsum("bhst,bthe,hed->bsd", weights, v, params["out"])
    x = x + jax.nn.gelu(x @ params["up"] + params["bias"]) @ params["down"]
    logits = x @ params["embed"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1).mean()


MODEL = {
    "embed": ((16, 8), P("y")), "q": ((8, 2, 4), P(None, "y")), "k": ((8, 2, 4), P(None, "y")),
    "v": ((8, 2, 4), P(None, "y")), "out": ((2, 4, 8), P("y")), "up": ((8, 32), P(None, "y")),
    "bias": ((32,), P("y")), "down": ((32, 8), P("y")),
}  # fmt: skip
"""Shapes, and the sharding of each parameter over the devices of a row."""


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["data and tensor parallel", "fully sharded"])
@pytest.mark.parametrize("devices", [4, *nightly(1, 2)])
def test_gradients_of_a_transformer_are_clipped(devices: int, layout: str) -> None:
    mesh, random = mesh_of(devices), np.random.default_rng(0)
    specs = {name: P("x", "y") if layout == "fully sharded" and len(shape) == 2 else spec
           for name, (shape, spec) in MODEL.items()}  # fmt: skip
    params = {
        name: jax.device_put((random.standard_normal(shape) / 3).astype(np.float32), NamedSharding(mesh, specs[name]))
        for name, (shape, _) in MODEL.items()
    }
    tokens = jax.device_put(random.integers(0, 16, (4, 6)), NamedSharding(mesh, P("x")))

    @jax.jit
    def step(params: Any, tokens: Any) -> Any:
        grads = jax.grad(transformer)(params, tokens)
        clipped, norm = uc.clip_by_global_norm(grads, 0.5)
        return grads, clipped, norm

    grads, clipped, norm = step(params, tokens)
    gathered = {name: np.asarray(grad) for name, grad in grads.items()}
    assert float(norm) == reference.norm(gathered.values())
    assert norm > 0.5
    expected = np_uc.clip_by_global_norm(gathered, 0.5)[0]
    assert_equal([clipped[name] for name in MODEL], [expected[name] for name in MODEL])
    eager, eager_norm = uc.clip_by_global_norm(grads, 0.5)
    assert float(eager_norm) == float(norm)
    assert_equal([eager[name] for name in MODEL], [expected[name] for name in MODEL])


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [4, *nightly(1, 2)])
def test_gradients_of_layers_in_shard_map_are_clipped(devices: int) -> None:
    mesh, random = mesh_of(devices), np.random.default_rng(1)
    specs = {"up": P(None, "y"), "bias": P("y"), "down": P("y"), "last": P()}
    shapes = {"up": (8, 32), "bias": (32,), "down": (32, 8), "last": (8,)}
    params = {
        name: jax.device_put(random.standard_normal(shapes[name]).astype(np.float32), NamedSharding(mesh, spec))
        for name, spec in specs.items()
    }
    batch = jax.device_put(random.standard_normal((8, 8)).astype(np.float32), NamedSharding(mesh, P("x")))

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jnp.tanh(batch @ params["up"] + params["bias"])
            out = jax.lax.psum(hidden @ params["down"], "y") + params["last"]
            return jax.lax.pmean((out**2).mean(), "x")

        grads = jax.grad(loss)(params)
        clipped, norm = uc.clip_by_global_norm(grads, 0.5)
        return grads, clipped, norm

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(specs, P("x")), out_specs=(specs, specs, P()))
    grads, clipped, norm = jax.jit(mapped)(params, batch)
    gathered = {name: np.asarray(grad) for name, grad in grads.items()}
    assert float(norm) == reference.norm(gathered.values())
    expected = np_uc.clip_by_global_norm(gathered, 0.5)[0]
    assert_equal([clipped[name] for name in specs], [expected[name] for name in specs])
