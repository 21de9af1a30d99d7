"""JAX: gradients that are sharded over devices are clipped as on one device, up to the last bit of the norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO
from jax.sharding import PartitionSpec as P
from support import calls, reference, situations
from support.jax_layouts import LAYOUTS, WAYS, arrays, assert_equal, fitting, mesh_of, put, specs_of
from support.kits import Kit
from support.tiers import quick

import unified_clip.jax as uc
import unified_clip.numpy as np_uc
from unified_clip.errors import NonFiniteNormError


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the exact results are those of eager calls on the host path")


# -- any layout


OF_NORMS = [name for name, call in calls.CALLS.items() if call.scope != "value" and call.p in (1, 2, math.inf)]


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
@settings(max_examples=12)
def test_the_norm_and_the_gradients_are_those_of_one_device(kit: Kit, way: str, data: st.DataObject) -> None:
    call = calls.CALLS[data.draw(st.sampled_from(OF_NORMS))]
    arrays = st.sampled_from(["float32", "bfloat16"]).flatmap(lambda dtype: situations.numbers(kit, dtype))
    gradients = [fitting(array) for array in data.draw(st.lists(arrays, max_size=4))]
    sizes = [abs(array.astype(np.float64))[array != 0] for array in gradients]
    if any((each < 2.0**-120).any() or (each > 2.0**120).any() for each in sizes):
        return  # XLA takes subnormal numbers for 0, among them the coefficient of a norm above 2**126
    mesh, specs = mesh_of(4), specs_of(data.draw(st.sampled_from(list(LAYOUTS))), len(gradients))

    def clip(grads: list[Any]) -> Any:
        argument = call.prepare(kit, list(grads))
        clipped, norm = call.read(kit, argument, call.run(kit, argument, 1.5))
        return clipped, 0.0 if norm is None else norm

    placed = put(gradients, specs, mesh)
    clipped, norm = WAYS[way](clip, mesh, specs)(placed)
    n = None
    if call.given_norm is None and not isinstance(norm, float):
        n = calls.check_norm(kit, norm, gradients, call.p, exact=False) if norm.ndim == 0 and float(norm) else None
    for result, gradient, expected in zip(clipped, placed, calls.expected_of(call, gradients, 1.5, n), strict=True):
        calls.check_gradient(kit, result, expected, exact=False)
        assert result.sharding.is_equivalent_to(gradient.sharding, gradient.ndim) or not gradient.size


@pytest.mark.parametrize("way", WAYS)
def test_float64_gradients(way: str) -> None:
    mesh, specs = mesh_of(4), [P("x", "y"), P("x")]
    gradients = arrays("float64")[:2]
    with jax.enable_x64(True):
        placed = put(gradients, specs, mesh)
        _, norm = WAYS[way](lambda grads: (grads, uc.global_norm(grads)), mesh, specs)(placed)
    assert norm.dtype == "float64"
    np.testing.assert_allclose(norm, reference.norm(gradients), rtol=1e-15)


def test_error_if_nonfinite_names_the_array_with_nan() -> None:
    array = np.ones((4, 4), np.float32)
    array[3, 3] = np.nan
    with pytest.raises(NonFiniteNormError, match="1 has 1 NaN"):
        uc.clip_grad_norm_(put([arrays()[0], array], [P(), P("x")], mesh_of(4)), 1.0, error_if_nonfinite=True)


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


def test_uncommitted_arrays_beside_sharded_ones() -> None:
    (sharded,) = put([np.array([3.0, 0.0], np.float32)], [P("x")], mesh_of(4))
    for free in (jnp.full((), 4.0), jnp.full(1, 4.0), np.full(1, 4.0, np.float32)):
        for gradients in ([free, sharded], [sharded, free]):
            assert uc.clip_by_global_norm(gradients, 1.0)[1] == 5.0


KEYWORDS: list[dict[str, Any]] = [
    {"ownership": "distinct"}, {"check_numel": 4}, {"check_replicas": True}, {"process_group": [0]},
    {"process_group": mesh_of(4)}, {"process_group": ()},
]  # fmt: skip


@pytest.mark.parametrize("options", KEYWORDS)
def test_keywords_for_ranks_are_rejected(options: dict[str, Any]) -> None:
    for way in (jax.jit, lambda function: function):
        with pytest.raises(TypeError, match=r"process_group is|are not supported on JAX"):
            way(lambda g: uc.get_total_norm([g], **options))(jnp.ones(4))


@pytest.mark.nightly
def test_sparse_rows_on_several_devices() -> None:
    mesh = mesh_of(4)
    data, indices = put([np.full((4, 2), 2.0, np.float32), np.array([[0], [1], [1], [3]], np.int32)], [P(), P()], mesh)
    clipped = uc.clip_by_norm(BCOO((data, indices), shape=(5, 2)), 1.0)
    dense = np.zeros((5, 2), np.float32)
    dense[[0, 1, 3]] = [[2], [4], [2]]
    assert_equal([clipped.todense()], [np_uc.clip_by_norm(dense, 1.0)])


# -- the number of all-reduces


def count_all_reduces(compiled: Any) -> int:
    return len(re.findall(r" all-\w+(?:-start)?\(", compiled.as_text()))


CLIPS: dict[str, Callable[[list[Any]], Any]] = {
    "clip_by_global_norm": lambda grads: uc.clip_by_global_norm(grads, 1.0)[0],
    "global_norm": lambda grads: [g * uc.global_norm(grads) for g in grads],
    "GradientClipByGlobalNorm": lambda grads: uc.GradientClipByGlobalNorm(1.0)([(None, g) for g in grads]),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(CLIPS, "clip_by_global_norm"))
def test_a_clip_in_shard_map_has_one_all_reduce(name: str) -> None:
    mesh, gradients = mesh_of(4), arrays()
    specs = specs_of("mixed", len(gradients))
    mapped = jax.shard_map(
        lambda grads: jax.tree.leaves(CLIPS[name](grads)), mesh=mesh, in_specs=(specs,), out_specs=specs
    )
    function = jax.jit(mapped)
    assert count_all_reduces(function.lower(put(gradients, specs, mesh)).compile()) == 1


def test_replicated_gradients_need_no_all_reduce() -> None:
    mesh, gradients = mesh_of(4), arrays()
    specs = specs_of("replicated", len(gradients))
    for way in ("jit", "shard_map"):
        function = WAYS[way](lambda grads: uc.clip_by_global_norm(grads, 1.0), mesh, specs)
        assert count_all_reduces(function.lower(put(gradients, specs, mesh)).compile()) == 0


@pytest.mark.nightly
def test_under_jit_xla_reduces_along_the_sharded_axes() -> None:
    mesh = mesh_of(4)
    for spec, number in ((P("x"), 1), (P(None, "x"), 1), (P("x", "y"), 2), (P(("x", "y")), 1)):
        function = jax.jit(lambda grads: uc.clip_by_global_norm(grads, 1.0))
        assert count_all_reduces(function.lower(put(arrays()[:1], [spec], mesh)).compile()) == number
