"""The parity adapters: conversion of tensors, calls of unified_clip and of the framework's functions."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.parity.adapter_calls import ARGUMENTS, DENSE, SPARSE, adapter_of, run
from support.parity.cases import case, dense
from support.tiers import where

from unified_clip.parity.adapters.base import Adapter
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.known import measure
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.public_calls import CALLS
from unified_clip.parity.workers import worker
from unified_clip.tensors import types
from unified_clip.tensors.arithmetic import FORMATS

PATHS = {True: HOST, False: DEVICE}


@pytest.fixture
def adapter(kit: Kit) -> Adapter:
    return adapter_of(kit)


UNITS = [dense([[3.0], [4.0]]), None, dense(-1.5), dense([[1.0], [200.0]]), None, dense(100.0)]
"""Three gradients, followed by their parameters."""


@pytest.fixture
def path(kit: Kit) -> str:
    return PATHS[kit.exact]


@where(lambda kit, dtype: (kit.name, dtype) != ("mlx", "complex128"))
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("values", [[1.0, -0.0, 3e4, 2.0**-20, np.inf, 1e-41], 5.0, np.zeros((2, 0))])
def test_conversion_keeps_the_bits(kit: Kit, adapter: Adapter, dtype: str, values: Any) -> None:
    array = np.asarray(values, np.float64)
    tensor = dense(np.stack([array, -array], axis=-1) if dtype in types.PARTS else array, dtype)
    with adapter.scope({dtype}):
        result = types.densify(adapter.read(adapter.make(tensor)))
    assert types.digest([result]) == types.digest([tensor])


@pytest.mark.parametrize("gradients", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_agrees_with_the_oracle(
    kit: Kit, adapter: Adapter, path: str, tmp_path: Path, name: str, gradients: list[Any]
) -> None:
    if CALLS[name].style == "units":
        gradients = UNITS
    assert_agrees(
        kit, adapter, path, tmp_path, case(gradients, name, **ARGUMENTS[name], update=name != "get_total_norm")
    )


@where(lambda kit, call_form, name: "need_clip" not in call_form or name != "clip_by_global_norm")
@pytest.mark.parametrize(
    "call_form",
    [
        {"container": "nested"},
        {"transposed": True},
        {"tensor_arguments": True},
        {"need_clip": (True, True, False, True)},
    ],
)
@pytest.mark.parametrize("name", ["clip_by_global_norm", "GradientClipByGlobalNorm"])
def test_every_call_form_is_used(
    kit: Kit, adapter: Adapter, path: str, tmp_path: Path, name: str, call_form: dict[str, Any]
) -> None:
    assert_agrees(kit, adapter, path, tmp_path, case(DENSE, name, clip_norm=2.5, call_form=call_form))


def test_an_error_is_reported_with_the_gradients_after_it(
    kit: Kit, adapter: Adapter, path: str, tmp_path: Path
) -> None:
    for name in ("clip_grad_norm_", "clip_by_global_norm", "GradientClipByGlobalNorm"):
        argument = {"max_norm" if name.endswith("_") else "clip_norm": -1.0}
        assert_agrees(kit, adapter, path, tmp_path, case(DENSE, name, **argument, raises="ValueError"))


def assert_agrees(kit: Kit, adapter: Adapter, mode: str, tmp_path: Path, a_case: Case) -> None:
    verdict = compare_with_exact(a_case, oracle.expect(a_case), run(kit, adapter, a_case, mode, tmp_path), mode)
    assert verdict.kind in (("equal",) if kit.exact else ("equal", "close")), verdict.detail


NATIVES = {
    "torch": {"clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_", "get_total_norm", "global_norm"},
    "tensorflow": {"clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm"},
    "paddle": {
        "clip_grad_norm_", "clip_grad_value_", "get_total_norm", "global_norm", "append_gradient_clip_ops",
        "GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue",
    },
    "jax": {
        "clip_by_global_norm", "clip_by_value", "get_total_norm", "global_norm", "adaptive.clip_by_unit_norm",
    },
    "mlx": {"clip_grad_value_", "global_norm"},  # `ARGUMENTS` have other orders of the norm
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_function_of_the_framework_is_called(kit: Kit, adapter: Adapter, tmp_path: Path, name: str) -> None:
    gradients = UNITS if CALLS[name].style == "units" else [dense([[3.0], [4.0]]), dense([-1.5, 0.5])]
    a_case = case(gradients, name, **ARGUMENTS[name])
    difference = measure.measure(a_case, oracle.expect(a_case), run(kit, adapter, a_case, NATIVE, tmp_path))
    lacks = kit.lacks(f"torch.nn.utils.{name.replace('global_norm', 'get_total_norm')}")
    assert (difference is not None) == (name in NATIVES.get(kit.name, ()) and not lacks)
    if difference and name != "append_gradient_clip_ops":  # it does nothing without set_gradient_clip
        assert difference.kind == ""
        assert difference.function.split(".")[0] in (kit.name, "tf", "optax")


def test_only_tensorflows_function_has_axes(kit: Kit, adapter: Adapter, tmp_path: Path) -> None:
    a_case = case([dense([[3.0, 0.5], [4.0, 0.0]])], "clip_by_norm", clip_norm=2.5, axes=[0])
    difference = measure.measure(a_case, oracle.expect(a_case), run(kit, adapter, a_case, NATIVE, tmp_path))
    assert (difference is not None) == (kit.name == "tensorflow")


@where(lambda kit: kit.reads_tensors)
def test_an_unexpected_path_is_an_error(kit: Kit, adapter: Adapter, path: str) -> None:
    backend = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    worker.check_path(adapter, backend, path)
    with pytest.raises(RuntimeError, match="the backend did not take this path"):
        worker.check_path(adapter, backend, PATHS[not kit.exact])


def test_a_mode_without_a_branch_is_an_error(kit: Kit, adapter: Adapter) -> None:
    """Before it runs a case, a worker checks the path of its mode."""
    backend = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    with pytest.raises(RuntimeError, match=r"mode 'hooks': check_path in parity/workers/worker\.py has no branch"):
        worker.check_path(adapter, backend, "hooks")
