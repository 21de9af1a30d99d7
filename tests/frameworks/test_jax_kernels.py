"""JAX: programs for one CPU device compute norms by the compiled kernels, with the bits of the host path."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import unified_clip
import unified_clip.jax as uc
from unified_clip._backends.jax import kernel_custom_call
from unified_clip._native import KERNELS
from unified_clip.errors import ClipWarning

pytestmark = pytest.mark.skipif(KERNELS is None, reason="this build has no compiled kernels")

CALL = "@unified_clip_norm"
Clip = Callable[[list[Any]], Any]


def lowered_text(clip: Callable[..., Any], *arguments: Any) -> str:
    """Lower a new function each time: JAX caches traces, and a cached one ignores a changed setting."""
    return jax.jit(lambda *grads_: clip(*grads_)).lower(*arguments).as_text()


def gradients(dtype: str = "float32") -> list[Any]:
    random = np.random.default_rng(7)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in ((5, 7), (3,), (), (2, 1, 4))]


# -- which programs


CLIPS: dict[str, tuple[Clip, int]] = {
    "clip_grad_norm_": (lambda grads: uc.clip_grad_norm_(list(grads), 1.0), 1),
    "of order 1": (lambda grads: uc.get_total_norm(grads, 1.0), 1),
    "clip_by_global_norm": (lambda grads: uc.clip_by_global_norm(grads, 1.0), 1),
    "clip_by_norm": (lambda grads: [uc.clip_by_norm(gradient, 1.0) for gradient in grads], 4),
    "GradientClipByNorm": (lambda grads: uc.GradientClipByNorm(1.0)([(None, gradient) for gradient in grads]), 1),
    "of order 3": (lambda grads: uc.get_total_norm(grads, 3.0), 0),
    "of order inf": (lambda grads: uc.get_total_norm(grads, math.inf), 0),
    "complex": (lambda grads: uc.global_norm([grads[0] * (1 + 1j)]), 1),
    "complex, of order 1": (lambda grads: uc.get_total_norm([grads[0] * (1 + 1j)], 1.0), 0),
}
"""Clips, and the number of calls of the kernels in a program for one CPU device."""


def test_a_list_takes_one_kernel_call() -> None:
    for name, (clip, count) in CLIPS.items():
        assert lowered_text(clip, gradients()).count(CALL) == count, name


@pytest.mark.parametrize(
    ("variable", "value"), [("UNIFIED_CLIP_GRAPH", "framework"), ("UNIFIED_CLIP_PATH", "framework")]
)
def test_settings_switch_the_kernels_off(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert CALL not in lowered_text(CLIPS["clip_by_global_norm"][0], gradients())


def test_an_unknown_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "numpy")
    with pytest.raises(ValueError, match=r"UNIFIED_CLIP_GRAPH is 'numpy'. Set it to 'framework', or leave it unset"):
        lowered_text(uc.global_norm, gradients())


def test_an_exported_program_needs_no_kernels() -> None:
    exported = export.export(jax.jit(CLIPS["clip_by_global_norm"][0]))(gradients())
    assert CALL not in exported.mlir_module()
    clipped, norm = exported.call(gradients())
    expected, expected_norm = uc.clip_by_global_norm(gradients(), 1.0)
    assert norm == expected_norm
    assert all(map(np.array_equal, clipped, expected))


def test_an_xla_release_that_rejects_the_kernels_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: Any, **__: Any) -> None:
        raise RuntimeError("unsupported version")

    monkeypatch.setattr(kernel_custom_call.HOOK, "_is_reported", False)
    monkeypatch.setattr(kernel_custom_call, "register", functools.cache(kernel_custom_call.register.__wrapped__))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", reject)
    with pytest.warns(ClipWarning, match="JAX rejects the compiled kernels of unified_clip.*: unsupported version"):
        norm = jax.jit(lambda grads: uc.global_norm(grads))(gradients())
    assert norm == uc.global_norm(gradients())
    assert not unified_clip.native_available("jax")


# -- values


def test_complex_gradients_have_the_bits_of_the_host_path() -> None:
    random = np.random.default_rng(4)
    grads = [jnp.asarray(random.standard_normal(9) + 1j * random.standard_normal(9), "complex64")]
    assert jax.jit(uc.global_norm)(grads) == uc.global_norm(grads)


def test_xla_returns_a_subnormal_norm_as_zero() -> None:
    grads = [jnp.asarray([2.0**-130], "float32")]
    assert float(uc.global_norm(grads)) == 2.0**-130
    assert float(jax.jit(uc.global_norm)(grads)) == 0


def test_long_lists_have_the_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    grads = [jnp.asarray(np.random.default_rng(5).standard_normal(300_001), "float32")]
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        text = lowered_text(lambda grads_: uc.global_norm(grads_), grads)
        assert f"threads = {threads}" in text
        assert jax.jit(lambda grads_: uc.global_norm(grads_))(grads) == uc.global_norm(grads)


# -- transformations


# -- processes and threads


def test_several_threads_may_run_programs_at_once() -> None:
    grads = [jnp.asarray(np.random.default_rng(k).standard_normal(200_000), "float32") for k in range(3)]
    compiled, expected = jax.jit(uc.global_norm), uc.global_norm(grads)
    norms: list[Any] = []

    def run() -> None:
        norms.extend(compiled(grads) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(norms) == 80
    assert all(norm == expected for norm in norms)
