"""JAX: programs for one CPU device compute norms by the compiled kernels, with the bits of the host path."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import jet
from support import reference
from support.kits import in_a_new_process

import unified_clip
import unified_clip.jax as uc
from unified_clip._backends.jax import backend, custom_call
from unified_clip._backends.jax.path import JaxPath
from unified_clip._native import KERNELS

pytestmark = pytest.mark.skipif(KERNELS is None, reason="this build has no compiled kernels")

CALL = "@unified_clip_norm"
Clip = Callable[[list[Any]], Any]


@pytest.fixture(autouse=True)
def _on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_PATH", raising=False)
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH", raising=False)


def program(clip: Callable[..., Any], *arguments: Any) -> str:
    """Lower a new function each time: JAX caches traces, and a cached one ignores a changed setting."""
    return jax.jit(lambda *given: clip(*given)).lower(*arguments).as_text()


def gradients(dtype: str = "float32") -> list[Any]:
    random = np.random.default_rng(7)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in ((5, 7), (3,), (), (2, 1, 4))]


def half_way(dtype: str) -> list[list[Any]]:
    """Lists whose exact norm is half way between two numbers of the norm's dtype, or next to that."""
    bits = 24 if dtype == "float32" else 53
    with jax.enable_x64(True):
        lists = []
        for legs in ((3, 4, 5), (5, 12, 13), (8, 15, 17)):
            scale = (2 ** (bits + 1) - 1) // legs[2] | 1
            for exponent in (0, -60, 60):
                parts = [math.ldexp(leg * scale, exponent) for leg in legs[:2]]
                for least in (0.0, math.ldexp(1.0, exponent - 40)):
                    lists.append([jnp.asarray([part], dtype) for part in (*parts, least)])
        return lists


def norm_of(grads: list[Any], p: float = 2.0) -> float:
    return reference.norm([np.asarray(each) for each in grads], p)


# -- which programs


CLIPS: dict[str, Clip] = {
    "clip_grad_norm_": lambda grads: uc.clip_grad_norm_(list(grads), 1.0),
    "of order 1": lambda grads: uc.get_total_norm(grads, 1.0),
    "global_norm": uc.global_norm,
    "clip_by_global_norm": lambda grads: uc.clip_by_global_norm(grads, 1.0),
    "clip_by_norm": lambda grads: [uc.clip_by_norm(each, 1.0) for each in grads],
    "GradientClipByNorm": lambda grads: uc.GradientClipByNorm(1.0)([(None, each) for each in grads]),
    "transforms": lambda grads: uc.transforms.clip_grad_norm(1.0).update(grads, None),
}


@pytest.mark.parametrize("name", CLIPS)
def test_programs_for_one_cpu_device_call_the_kernels(name: str) -> None:
    assert CALL in program(CLIPS[name], gradients())


def test_a_list_is_measured_by_one_call() -> None:
    assert program(CLIPS["clip_by_global_norm"], gradients()).count(CALL) == 1
    assert program(CLIPS["GradientClipByNorm"], gradients()).count(CALL) == 1


@pytest.mark.parametrize(
    ("variable", "value"), [("UNIFIED_CLIP_GRAPH", "framework"), ("UNIFIED_CLIP_PATH", "framework")]
)
def test_a_setting_leaves_the_kernels_out(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert CALL not in program(CLIPS["clip_by_global_norm"], gradients())


def test_an_unknown_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "numpy")
    with pytest.raises(
        ValueError, match=r"UNIFIED_CLIP_GRAPH is 'numpy'. Set it to 'framework' or 'kernels', or leave it unset"
    ):
        program(uc.global_norm, gradients())


def test_other_platforms_compute_by_operations() -> None:
    traced = jax.jit(CLIPS["clip_by_global_norm"]).trace(gradients())
    assert CALL not in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert CALL in traced.lower(lowering_platforms=("cpu",)).as_text()


def test_an_exported_program_needs_no_kernels() -> None:
    exported = jax.export.export(jax.jit(CLIPS["clip_by_global_norm"]))(gradients())
    assert CALL not in exported.mlir_module()
    clipped, norm = exported.call(gradients())
    wanted, wanted_norm = uc.clip_by_global_norm(gradients(), 1.0)
    assert norm == wanted_norm
    assert all(map(np.array_equal, clipped, wanted))


@pytest.mark.parametrize("p", [3.0, math.inf])
def test_other_orders_are_computed_by_operations(p: float) -> None:
    assert CALL not in program(lambda grads: uc.get_total_norm(grads, p), gradients())


def test_a_release_of_xla_that_rejects_the_kernels_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: Any, **__: Any) -> None:
        raise RuntimeError("unsupported version")

    for name in ("register", "rejection"):
        monkeypatch.setattr(custom_call, name, functools.cache(getattr(custom_call, name).__wrapped__))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", reject)
    with pytest.warns(RuntimeWarning, match="rejects the compiled kernels of unified_clip .unsupported version"):
        norm = jax.jit(lambda grads: uc.global_norm(grads))(gradients())
    assert norm == uc.global_norm(gradients())
    assert not unified_clip.native_available("jax")


def test_native_available_says_whether_programs_call_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unified_clip.native_available("jax")
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    assert not unified_clip.native_available("jax")


COMPILE = """
import pickle
import jax, jax.numpy as jnp
from jax.experimental import serialize_executable
import unified_clip.jax as uc
compiled = jax.jit(uc.global_norm).lower([jnp.ones(2)]).compile()
with open({path!r}, "wb") as file:
    pickle.dump(serialize_executable.serialize(compiled), file)
"""
LOAD = """
import pickle
import jax, jax.numpy as jnp
from jax.experimental import serialize_executable
import unified_clip.jax
with open({path!r}, "rb") as file:
    compiled = serialize_executable.deserialize_and_load(*pickle.load(file), execution_devices=jax.devices()[:1])
print(compiled([jnp.array([3.0, 4.0])]))
"""


@pytest.mark.nightly
def test_another_process_loads_a_compiled_program(tmp_path: Path) -> None:
    path = str(tmp_path / "program")
    in_a_new_process(COMPILE.format(path=path))
    assert in_a_new_process(LOAD.format(path=path)).strip() == "5.0"


# -- values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_half_way_between_two_floats_are_rounded_as_on_the_host_path(dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        compiled = jax.jit(uc.global_norm)
        for grads in half_way(dtype):
            assert float(compiled(grads)) == norm_of(grads) == float(uc.global_norm(grads))


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_norms_of_random_lists(dtype: str, p: float) -> None:
    random = np.random.default_rng(3)
    compiled = jax.jit(lambda grads: uc.get_total_norm(grads, p))
    for _ in range(100):
        scale = 2.0 ** random.integers(-6, 6)
        grads = [jnp.asarray(random.standard_normal(shape) * scale, dtype) for shape in ((17,), (3, 5))]
        assert float(compiled(grads)) == norm_of(grads, p)


def test_complex_numbers() -> None:
    random = np.random.default_rng(4)
    grads = [jnp.asarray(random.standard_normal(9) + 1j * random.standard_normal(9), "complex64")]
    assert CALL in program(uc.global_norm, grads)
    assert CALL not in program(lambda given: uc.get_total_norm(given, 1.0), grads)
    assert jax.jit(uc.global_norm)(grads) == uc.global_norm(grads)


def test_the_norm_counts_subnormal_numbers() -> None:
    grads = [jnp.asarray([2.0**-126, 2.0**-127], "float32")]
    assert float(jax.jit(uc.global_norm)(grads)) == norm_of(grads) > 2.0**-126


def test_xla_returns_a_subnormal_norm_as_zero() -> None:
    grads = [jnp.asarray([2.0**-130], "float32")]
    assert float(uc.global_norm(grads)) == 2.0**-130
    assert float(jax.jit(uc.global_norm)(grads)) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
def test_special_values(value: float) -> None:
    grads = [jnp.asarray([1.0, value], "float32"), jnp.zeros((0, 3))]
    np.testing.assert_array_equal(jax.jit(uc.global_norm)(grads), uc.global_norm(grads))


def test_long_lists_have_the_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    grads = [jnp.asarray(np.random.default_rng(5).standard_normal(300_001), "float32")]
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        text = program(lambda given: uc.global_norm(given), grads)
        assert f"threads = {threads}" in text
        assert jax.jit(lambda given: uc.global_norm(given))(grads) == uc.global_norm(grads)


# -- transformations


@pytest.mark.parametrize("axes", [0, 1])
def test_each_member_of_a_batch_has_its_own_norm(axes: int) -> None:
    batch = jnp.stack([each * 2.0**k for k, each in enumerate([gradients()[0]] * 3)], axis=axes)
    batched = jax.vmap(lambda x: uc.global_norm([x, jnp.ones(2)]), in_axes=axes)
    assert CALL in program(batched, batch)
    wanted = [uc.global_norm([jnp.take(batch, k, axes), jnp.ones(2)]) for k in range(3)]
    assert jax.jit(batched)(batch).tolist() == wanted


def test_a_batch_of_batches_and_norms_per_tensor() -> None:
    batch = jnp.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)

    def clip(x: Any) -> Any:
        pairs = uc.GradientClipByNorm(1.0)([("a", x), ("b", x[0])])
        return [each for _, each in pairs]

    got = jax.jit(jax.vmap(jax.vmap(clip)))(batch)
    for i in range(2):
        for j in range(3):
            assert all(np.array_equal(one[i, j], other) for one, other in zip(got, clip(batch[i, j]), strict=True))


def test_an_empty_batch() -> None:
    assert jax.jit(jax.vmap(lambda x: uc.global_norm([x])))(jnp.zeros((0, 4))).shape == (0,)


@pytest.mark.nightly
def test_derivatives_are_those_of_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(grads: list[Any]) -> Any:
        clipped, norm = uc.clip_by_global_norm(grads, 1.0)
        return sum(jnp.sum(jnp.sin(each)) for each in clipped) * norm

    given = gradients()
    for derive in (jax.grad, lambda f: jax.jacfwd(jax.grad(f)), lambda f: jax.checkpoint(jax.grad(f))):
        got = jax.jit(derive(loss))(given)
        monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
        wanted = jax.jit(derive(lambda grads: loss(grads)))(given)
        monkeypatch.delenv("UNIFIED_CLIP_GRAPH")
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


def test_taylor_series_are_computed_by_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    point, direction = jnp.asarray([3.0, 4.0]), jnp.asarray([1.0, 0.0])
    norm, (slope,) = jet.jet(lambda grad: uc.global_norm([grad]), (point,), ((direction,),))
    assert float(norm) == 5
    assert float(slope) == pytest.approx(0.6)


def test_derivatives_outside_of_jit_have_the_exact_value() -> None:
    grads = half_way("float32")[3]
    value, derivative = jax.value_and_grad(uc.global_norm)(grads)
    assert float(value) == norm_of(grads)
    assert all(each.dtype == jnp.float32 for each in derivative)


@pytest.mark.nightly
def test_derivatives_and_batches_under_disable_jit() -> None:
    grads = gradients()
    with jax.disable_jit():
        value, derivative = jax.value_and_grad(uc.global_norm)(grads)
        batch = jax.vmap(lambda x: uc.global_norm([x]))(grads[0])
    assert value == uc.global_norm(grads)
    assert all(map(np.array_equal, derivative, jax.grad(uc.global_norm)(grads)))
    assert batch.tolist() == [uc.global_norm([row]) for row in grads[0]]


def test_the_primitive_and_the_operations_agree() -> None:
    """The fallback of other platforms: to the last bit for these numbers, whose sums are exact."""
    given_arrays = [jnp.ones(4, "float32"), jnp.full(9, 2.0, "float32")]
    for each in (False, True):
        with jax.enable_x64(True):
            norm = custom_call.Norm(2, each)
            got = jax.jit(lambda given, norm=norm: backend.KERNEL_NORM(given, norm))(given_arrays)
            assert got.tolist() == ([2.0, 6.0] if each else float(np.float32(math.sqrt(40.0))))
            assert JaxPath(backend.BACKEND, given_arrays, True, each).norm_by_operations(2).tolist() == got.tolist()


# -- processes and threads


def test_several_threads_may_run_programs_at_once() -> None:
    grads = [jnp.asarray(np.random.default_rng(k).standard_normal(200_000), "float32") for k in range(3)]
    compiled, wanted = jax.jit(uc.global_norm), uc.global_norm(grads)
    found: list[Any] = []

    def run() -> None:
        found.extend(compiled(grads) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(norm == wanted for norm in found)


EXIT = """
import jax, jax.numpy as jnp, unified_clip.jax as uc
clip = jax.jit(lambda grads: uc.clip_by_global_norm(grads, 1.0))
result = clip([jnp.ones(1_000_000)])  # runs on while the interpreter ends
print("end")
"""


@pytest.mark.nightly
def test_a_process_ends_with_a_program_alive() -> None:
    assert in_a_new_process(EXIT).strip() == "end"
