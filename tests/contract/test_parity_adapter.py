"""What the parity worker needs of each framework: every bit kept, every call made, the framework's own ones too."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.parity.cases import case, dense

from unified_clip.parity import outcome
from unified_clip.parity.adapters.base import Adapter
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.known import measure
from unified_clip.parity.modes import DEVICE, HOST, IN_GRAPHS, NATIVE
from unified_clip.parity.outcome import CallOutcome
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.cases import Case
from unified_clip.parity.suite.public_calls import CALLS
from unified_clip.parity.workers import pool, worker
from unified_clip.tensors import types
from unified_clip.tensors.arithmetic import FORMATS
from unified_clip.tensors.types import Sparse

PATHS = {True: HOST, False: DEVICE}

SUITE = suites.read(Path(__file__).parents[2] / "parity")

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
    "append_gradient_clip_ops": {"clip_norm": 2.5},
    "ErrorClipByValue": {"max": 1.5},
    "GradientClipByNorm.clip_": {"clip_norm": 2.5},
    "GradientClipByValue.clip_": {"max": 1.5},
    "adaptive.clip_by_global_norm": {"rule": "zclip", "warmup_steps": 1, "clip_norm": 2.5, "steps": 2},
    "adaptive.clip_by_tensor_norm": {"rule": "adagc", "warmup_steps": 1, "steps": 2},
    "adaptive.clip_by_unit_norm": {"rule": "agc", "convention": "optax"},
}


@pytest.fixture
def adapter(kit: Kit) -> Adapter:
    found: Adapter = importlib.import_module(f"unified_clip.parity.adapters.{kit.name}").Framework()
    return found


UNITS = [dense([[3.0], [4.0]]), None, dense(-1.5), dense([[1.0], [200.0]]), None, dense(100.0)]
"""Gradients, and then their parameters."""


@pytest.fixture
def ours(kit: Kit) -> str:
    return PATHS[kit.exact]


DENSE = [dense([[3.0], [4.0]]), None, dense(-1.5), dense(np.zeros((0, 2)))]
SPARSE = [Sparse(np.array([2, 0, 2]), dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (4, 2)), dense([0.5])]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("values", [[1.0, -0.0, 3e4, 2.0**-20, np.inf, 1e-41], 5.0, np.zeros((2, 0))])
def test_bits_are_kept(kit: Kit, adapter: Adapter, dtype: str, values: Any) -> None:
    if (kit.name, dtype) == ("mlx", "complex128"):
        pytest.skip("MLX has no complex128")
    array = np.asarray(values, np.float64)
    given = dense(np.stack([array, -array], axis=-1) if dtype in types.PARTS else array, dtype)
    with adapter.scope({dtype}):
        found = types.densify(adapter.read(adapter.make(given)))
    assert types.digest([found]) == types.digest([given])


def test_a_transposed_tensor_has_the_same_bits(adapter: Adapter) -> None:
    given = dense(np.arange(24.0).reshape(2, 3, 4))
    found = types.densify(adapter.read(adapter.transposed(adapter.make(given))))
    assert types.digest([found]) == types.digest([given])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_rows_are_kept(adapter: Adapter, dtype: str) -> None:
    values = dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    with adapter.scope({dtype}):
        found = adapter.read(adapter.make(Sparse(np.array([2, 0, 2]), values, (4, 2))))
    right = dense([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [0.0, 0.0]], dtype)
    assert types.digest([types.densify(found)]) == types.digest([right])


@pytest.mark.parametrize("gradients", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_made(
    kit: Kit, adapter: Adapter, ours: str, tmp_path: Path, name: str, gradients: list[Any]
) -> None:
    if CALLS[name].style == "units":
        gradients = UNITS
    if CALLS[name].style == "steps" and not kit.exact and kit.name == "mlx":
        pytest.skip("the device has no float64")
    check(kit, adapter, ours, tmp_path, case(gradients, name, **ARGUMENTS[name], update=name != "get_total_norm"))


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
def test_every_manner_is_heeded(
    kit: Kit, adapter: Adapter, ours: str, tmp_path: Path, name: str, call_form: dict[str, Any]
) -> None:
    if "need_clip" in call_form and name == "clip_by_global_norm":
        pytest.skip("functional names have no parameters")
    check(kit, adapter, ours, tmp_path, case(DENSE, name, clip_norm=2.5, call_form=call_form))


def test_an_error_and_what_it_left_are_told(kit: Kit, adapter: Adapter, ours: str, tmp_path: Path) -> None:
    for name in ("clip_grad_norm_", "clip_by_global_norm", "GradientClipByGlobalNorm"):
        argument = {"max_norm" if name.endswith("_") else "clip_norm": -1.0}
        check(kit, adapter, ours, tmp_path, case(DENSE, name, **argument, raises="ValueError"))


# -- inside graphs


@pytest.fixture
def modes(kit: Kit) -> list[str]:
    if not kit.exact:
        pytest.skip("which path is taken outside does not matter")
    return [mode for mode in SUITE.frameworks[kit.name].modes if mode in IN_GRAPHS]


@pytest.mark.nightly
def test_every_call_is_made_inside_graphs(kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path) -> None:
    cases = [
        case(gradients, name, **ARGUMENTS[name], update=name != "get_total_norm")
        for gradients in (DENSE, SPARSE)
        for name in CALLS
        if CALLS[name].style != "units"
    ]
    cases += [case(DENSE, "clip_by_global_norm", clip_norm=2.5, call_form=call_form) for call_form in GRAPH_MANNERS]
    for mode in modes:
        fit = [one for one in cases if one.is_for_graphs(SUITE.frameworks[kit.name].leaves_out(mode))]
        assert len(fit) > len(CALLS) / 2
        for one, result in zip(fit, outcomes(adapter, kit.namespace, mode, fit, tmp_path), strict=True):
            verdict = compare_with_exact(one, oracle.expect(one), result, mode)
            assert verdict.kind in ("equal", "close"), (mode, one.name, verdict.detail)


GRAPH_MANNERS = [{"container": "nested"}, {"container": "generator"}, {"transposed": True}, {"tensor_arguments": True}]


@pytest.mark.nightly
def test_a_fault_inside_a_graph_is_found_at_its_case(
    kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path
) -> None:
    right = kit.namespace

    def per_tensor(t_list: Any, clip_norm: float) -> Any:
        clipped = [None if t is None else right.clip_by_norm(t, clip_norm) for t in t_list]
        return clipped, right.global_norm(t_list)

    def fails(t: Any, clip_norm: float) -> Any:
        raise KeyError("planted")

    faulty = SimpleNamespace(**vars(right) | {"clip_by_global_norm": per_tensor, "clip_by_norm": fails})
    cases = [case(DENSE, name, **ARGUMENTS[name]) for name in ("clip_by_value", "clip_by_global_norm", "clip_by_norm")]
    for mode in modes:
        found = outcomes(adapter, faulty, mode, cases, tmp_path)
        verdicts = [
            compare_with_exact(*each, mode) for each in zip(cases, map(oracle.expect, cases), found, strict=True)
        ]
        assert [verdict.kind for verdict in verdicts] == ["equal", "different", "unreadable"]
        assert "planted" in verdicts[2].detail


def test_an_error_leaves_a_graph(kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path) -> None:
    one = case(DENSE, "clip_by_global_norm", clip_norm=-1.0, raises="ValueError")
    for mode in modes:
        if one.is_for_graphs(SUITE.frameworks[kit.name].leaves_out(mode)):
            (result,) = outcomes(adapter, kit.namespace, mode, [one], tmp_path)
            assert compare_with_exact(one, oracle.expect(one), result, mode).kind == "equal"


def check(kit: Kit, adapter: Adapter, path: str, tmp_path: Path, one: Case) -> None:
    """Ours has to agree with the oracle."""
    verdict = compare_with_exact(one, oracle.expect(one), run(kit, adapter, one, path, tmp_path), path)
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
def test_every_native_is_called(kit: Kit, adapter: Adapter, tmp_path: Path, name: str) -> None:
    gradients = UNITS if CALLS[name].style == "units" else [dense([[3.0], [4.0]]), dense([-1.5, 0.5])]
    one = case(gradients, name, **ARGUMENTS[name])
    difference = measure.measure(one, oracle.expect(one), run(kit, adapter, one, NATIVE, tmp_path))
    assert (difference is not None) == (name in NATIVES.get(kit.name, ()))
    if difference and name != "append_gradient_clip_ops":  # which does nothing
        assert difference.kind == ""
        assert difference.function.split(".")[0] in (kit.name, "tf", "optax")


def test_a_native_with_slices_is_tensorflows(kit: Kit, adapter: Adapter, tmp_path: Path) -> None:
    one = case([dense([[3.0, 0.5], [4.0, 0.0]])], "clip_by_norm", clip_norm=2.5, axes=[0])
    difference = measure.measure(one, oracle.expect(one), run(kit, adapter, one, NATIVE, tmp_path))
    assert (difference is not None) == (kit.name == "tensorflow")


def test_the_path_that_is_taken_is_checked(kit: Kit, adapter: Adapter, ours: str) -> None:
    backend = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    worker.check_path(adapter, backend, ours)
    with pytest.raises(RuntimeError, match="the backend used another path"):
        worker.check_path(adapter, backend, PATHS[not kit.exact])


def test_a_mode_without_a_branch_is_an_error_that_names_the_function(
    kit: Kit, adapter: Adapter, tmp_path: Path
) -> None:
    backend = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    with pytest.raises(RuntimeError, match=r"mode 'hooks': check_path in parity/workers/worker\.py has no branch"):
        worker.check_path(adapter, backend, "hooks")
    (outcome,) = outcomes(
        adapter, kit.namespace, "hooks", [case(DENSE, "clip_by_value", **ARGUMENTS["clip_by_value"])], tmp_path
    )
    assert "_run_cases in parity/workers/worker.py has no branch" in str(outcome)


def run(kit: Kit, adapter: Adapter, one: Case, mode: str, tmp_path: Path) -> CallOutcome:
    """The outcome of a case."""
    (outcome,) = outcomes(adapter, kit.namespace, mode, [one], tmp_path)
    assert isinstance(outcome, CallOutcome), outcome
    return outcome


def outcomes(
    adapter: Adapter, namespace: Any, mode: str, cases: list[Case], tmp_path: Path
) -> list[CallOutcome | outcome.Failure]:
    """The outcomes of cases that share a graph, by way of the files that the worker reads and writes."""
    pool.write_job(tmp_path, {number: pool.WorkItem(mode, one) for number, one in enumerate(cases)})
    described = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["cases"]
    jobs = [({**described[one.name], "user_function": None}, one.gradients) for one in cases]
    for number, (result, found) in enumerate(worker.run_cases(adapter, namespace, mode, jobs)):
        worker.write_result(tmp_path, number, result, found)
    return [pool._read_result(tmp_path, number) for number in range(len(cases))]
