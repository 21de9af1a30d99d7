"""What the parity worker needs of each framework: every bit kept, every call made, the framework's own ones too."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from kits import Kit

from unified_clip.parity import arithmetic, compare, oracle, tensors, worker
from unified_clip.parity.adapter import Adapter
from unified_clip.parity.calls import CALLS
from unified_clip.parity.cases import Case
from unified_clip.parity.launch import DEVICE, HOST, Outcome
from unified_clip.parity.tensors import Dense, Sparse

PATHS = {True: HOST, False: DEVICE}

ARGUMENTS: dict[str, dict[str, Any]] = {
    "clip_grad_norm_": {"max_norm": 2.5, "norm_type": 1},
    "clip_grads_with_norm_": {"max_norm": 2.5, "total_norm": 7.5},
    "clip_grad_value_": {"clip_value": 1.5},
    "get_total_norm": {"norm_type": float("inf")},
    "clip_by_global_norm": {"clip_norm": 2.5},
    "clip_by_norm": {"clip_norm": 2.5},
    "clip_by_value": {"clip_value_min": -1.5, "clip_value_max": 1.5},
    "global_norm": {},
    "GradientClipByGlobalNorm": {"clip_norm": 2.5},
    "GradientClipByGlobalNorm.clip_": {"clip_norm": 2.5},
    "GradientClipByNorm": {"clip_norm": 2.5},
    "GradientClipByValue": {"max": 1.5},
}


@pytest.fixture
def adapter(kit: Kit) -> Adapter:
    found: Adapter = importlib.import_module(f"unified_clip.parity.adapter_{kit.name}").Framework()
    return found


def dense(values: Any, dtype: str = "float32") -> Dense:
    return tensors.encode(arithmetic.rounded(np.asarray(values, np.float64), dtype), dtype)


DENSE = [dense([[3.0], [4.0]]), None, dense(-1.5), dense(np.zeros((0, 2)))]
SPARSE = [Sparse(np.array([2, 0, 2]), dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (4, 2)), dense([0.5])]


@pytest.mark.parametrize("dtype", arithmetic.FORMATS)
@pytest.mark.parametrize("values", [[1.0, -0.0, 3e4, 2.0**-20, np.inf, 1e-41], 5.0, np.zeros((2, 0))])
def test_bits_are_kept(adapter: Adapter, dtype: str, values: Any) -> None:
    given = dense(values, dtype)
    with adapter.scope({dtype}):
        found = tensors.densify(adapter.read(adapter.make(given)))
    assert tensors.digest([found]) == tensors.digest([given])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_rows_are_kept(adapter: Adapter, dtype: str) -> None:
    values = dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    with adapter.scope({dtype}):
        found = adapter.read(adapter.make(Sparse(np.array([2, 0, 2]), values, (4, 2))))
    right = dense([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [0.0, 0.0]], dtype)
    assert tensors.digest([tensors.densify(found)]) == tensors.digest([right])


@pytest.mark.parametrize("gradients", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_made(kit: Kit, adapter: Adapter, name: str, gradients: list[Any]) -> None:
    case = Case(name, "given", gradients, name, ARGUMENTS[name], subnormal=False)
    outcome = run(kit, adapter, case, native=False)
    verdict = compare.judge(case, oracle.expect(case), outcome, kit.name, PATHS[kit.exact])
    assert verdict.kind in (("equal",) if kit.exact else ("equal", "close")), verdict.detail


def has_native(framework: str, name: str, axes: bool) -> bool:
    """Whether a framework has a function for the call with these ARGUMENTS, whose norms are not all 2-norms."""
    if framework == "numpy" or name == "clip_grads_with_norm_":
        return False
    if axes:
        return framework == "tensorflow"
    return framework in {"clip_grad_norm_": ("torch", "paddle"), "get_total_norm": ("torch", "paddle", "jax")}.get(
        name, (framework,)
    )


@pytest.mark.parametrize(("name", "axes"), [*((name, {}) for name in CALLS), ("clip_by_norm", {"axes": [0]})])
def test_every_native_is_called(kit: Kit, adapter: Adapter, name: str, axes: dict[str, Any]) -> None:
    gradients = [dense([[3.0], [4.0]]), None, dense([-1.5])]
    case = Case(name, "given", gradients, name, ARGUMENTS[name] | axes, subnormal=False)
    distance = compare.measure(oracle.expect(case), run(kit, adapter, case, native=True))
    assert (distance is not None) == has_native(kit.name, name, bool(axes))
    if distance:
        assert max(distance.norm or 0.0, distance.gradients or 0.0) < 1e-5
        assert distance.function.split(".")[0] in (kit.name, "tf", "optax")


def test_the_path_that_is_taken_is_checked(kit: Kit, adapter: Adapter) -> None:
    ops = importlib.import_module(f"unified_clip._ops.{kit.name}_ops").OPS
    worker.check_path(adapter, ops, PATHS[kit.exact])
    with pytest.raises(RuntimeError, match="path was to be run"):
        worker.check_path(adapter, ops, PATHS[not kit.exact])


def run(kit: Kit, adapter: Adapter, case: Case, *, native: bool) -> Outcome:
    described = {"call": case.call_name, "arguments": dict(case.arguments)}
    result, found = worker.run_case(adapter, kit.namespace, described, case.gradients, native)
    parts = {
        part: [tensors.densify(gradient) for gradient in tensors.unpack(part, found, result[part])]
        for part in ("norm", "gradients")
        if part in result
    }
    return Outcome(parts.get("norm", [None])[0], parts.get("gradients"), result.get("name", ""))
