"""The parity adapters: conversion of tensors, calls of unified_clip and of the framework's functions."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.kits import Kit, rejects_adaptive
from support.parity.cases import case, dense

from unified_clip.parity.adapters.base import Adapter
from unified_clip.parity.call_outcome import CallOutcome, Failure
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.known import measure
from unified_clip.parity.modes import DEVICE, HOST, IN_GRAPHS, NATIVE
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.public_calls import CALLS
from unified_clip.parity.workers import worker, worker_files
from unified_clip.parity.workers.worker_files import WorkItem
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
    framework: Adapter = importlib.import_module(f"unified_clip.parity.adapters.{kit.name}").FrameworkAdapter()
    return framework


UNITS = [dense([[3.0], [4.0]]), None, dense(-1.5), dense([[1.0], [200.0]]), None, dense(100.0)]
"""Three gradients, followed by their parameters."""


@pytest.fixture
def path(kit: Kit) -> str:
    return PATHS[kit.exact]


DENSE = [dense([[3.0], [4.0]]), None, dense(-1.5), dense(np.zeros((0, 2)))]
SPARSE = [Sparse(np.array([2, 0, 2]), dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (4, 2)), dense([0.5])]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("values", [[1.0, -0.0, 3e4, 2.0**-20, np.inf, 1e-41], 5.0, np.zeros((2, 0))])
def test_conversion_keeps_the_bits(kit: Kit, adapter: Adapter, dtype: str, values: Any) -> None:
    if (kit.name, dtype) == ("mlx", "complex128"):
        pytest.skip("MLX has no complex128")
    array = np.asarray(values, np.float64)
    tensor = dense(np.stack([array, -array], axis=-1) if dtype in types.PARTS else array, dtype)
    with adapter.scope({dtype}):
        result = types.densify(adapter.read(adapter.make(tensor)))
    assert types.digest([result]) == types.digest([tensor])


def test_a_transposed_tensor_has_the_same_bits(adapter: Adapter) -> None:
    tensor = dense(np.arange(24.0).reshape(2, 3, 4))
    result = types.densify(adapter.read(adapter.transposed(adapter.make(tensor))))
    assert types.digest([result]) == types.digest([tensor])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_gradients_keep_their_values(adapter: Adapter, dtype: str) -> None:
    values = dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    with adapter.scope({dtype}):
        result = adapter.read(adapter.make(Sparse(np.array([2, 0, 2]), values, (4, 2))))
    expected = dense([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [0.0, 0.0]], dtype)
    assert types.digest([types.densify(result)]) == types.digest([expected])


@pytest.mark.parametrize("gradients", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_agrees_with_the_oracle(
    kit: Kit, adapter: Adapter, path: str, tmp_path: Path, name: str, gradients: list[Any]
) -> None:
    if CALLS[name].style == "units":
        gradients = UNITS
    if CALLS[name].style == "steps" and rejects_adaptive(kit):
        pytest.skip("MLX rejects adaptive thresholds here")
    assert_agrees(
        kit, adapter, path, tmp_path, case(gradients, name, **ARGUMENTS[name], update=name != "get_total_norm")
    )


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
    if "need_clip" in call_form and name == "clip_by_global_norm":
        pytest.skip("functional names have no parameters")
    assert_agrees(kit, adapter, path, tmp_path, case(DENSE, name, clip_norm=2.5, call_form=call_form))


def test_an_error_is_reported_with_the_gradients_after_it(
    kit: Kit, adapter: Adapter, path: str, tmp_path: Path
) -> None:
    for name in ("clip_grad_norm_", "clip_by_global_norm", "GradientClipByGlobalNorm"):
        argument = {"max_norm" if name.endswith("_") else "clip_norm": -1.0}
        assert_agrees(kit, adapter, path, tmp_path, case(DENSE, name, **argument, raises="ValueError"))


# -- inside graphs


@pytest.fixture
def modes(kit: Kit) -> list[str]:
    if not kit.exact:
        pytest.skip("the path outside of graphs does not matter")
    return [mode for mode in SUITE.frameworks[kit.name].modes if mode in IN_GRAPHS]


@pytest.mark.nightly
@pytest.mark.graphs
def test_every_call_inside_graphs_agrees_with_the_oracle(
    kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path
) -> None:
    cases = [
        case(gradients, name, **ARGUMENTS[name], update=name != "get_total_norm")
        for gradients in (DENSE, SPARSE)
        for name in CALLS
        if CALLS[name].style != "units"
    ]
    cases += [case(DENSE, "clip_by_global_norm", clip_norm=2.5, call_form=call_form) for call_form in GRAPH_CALL_FORMS]
    for mode in modes:
        graph_cases = [a_case for a_case in cases if a_case.is_for_graphs(SUITE.frameworks[kit.name].leaves_out(mode))]
        assert len(graph_cases) > len(CALLS) / 2
        for a_case, result in zip(
            graph_cases, outcomes(adapter, kit.namespace, mode, graph_cases, tmp_path), strict=True
        ):
            verdict = compare_with_exact(a_case, oracle.expect(a_case), result, mode)
            assert verdict.kind in ("equal", "close"), (mode, a_case.name, verdict.detail)


GRAPH_CALL_FORMS = [
    {"container": "nested"},
    {"container": "generator"},
    {"transposed": True},
    {"tensor_arguments": True},
]


@pytest.mark.nightly
@pytest.mark.graphs
def test_a_fault_inside_a_graph_fails_only_its_case(
    kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path
) -> None:
    namespace = kit.namespace

    def per_tensor(t_list: Any, clip_norm: float) -> Any:
        clipped = [None if t is None else namespace.clip_by_norm(t, clip_norm) for t in t_list]
        return clipped, namespace.global_norm(t_list)

    def fails(t: Any, clip_norm: float) -> Any:
        raise KeyError("planted")

    faulty = SimpleNamespace(**vars(namespace) | {"clip_by_global_norm": per_tensor, "clip_by_norm": fails})
    cases = [case(DENSE, name, **ARGUMENTS[name]) for name in ("clip_by_value", "clip_by_global_norm", "clip_by_norm")]
    for mode in modes:
        result = outcomes(adapter, faulty, mode, cases, tmp_path)
        verdicts = [
            compare_with_exact(*judged, mode) for judged in zip(cases, map(oracle.expect, cases), result, strict=True)
        ]
        assert [verdict.kind for verdict in verdicts] == ["equal", "different", "unreadable"]
        assert "planted" in verdicts[2].detail


@pytest.mark.graphs
def test_an_error_inside_a_graph_is_reported(kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path) -> None:
    a_case = case(DENSE, "clip_by_global_norm", clip_norm=-1.0, raises="ValueError")
    for mode in modes:
        if a_case.is_for_graphs(SUITE.frameworks[kit.name].leaves_out(mode)):
            (result,) = outcomes(adapter, kit.namespace, mode, [a_case], tmp_path)
            assert compare_with_exact(a_case, oracle.expect(a_case), result, mode).kind == "equal"


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


def test_an_unexpected_path_is_an_error(kit: Kit, adapter: Adapter, path: str) -> None:
    if not kit.reads_tensors:
        pytest.skip("the adapter's tensors are on the CPU")
    backend = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    worker.check_path(adapter, backend, path)
    with pytest.raises(RuntimeError, match="the backend did not use this path"):
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


def run(kit: Kit, adapter: Adapter, a_case: Case, mode: str, tmp_path: Path) -> CallOutcome:
    (outcome,) = outcomes(adapter, kit.namespace, mode, [a_case], tmp_path)
    assert isinstance(outcome, CallOutcome), outcome
    return outcome


def outcomes(
    adapter: Adapter, namespace: Any, mode: str, cases: list[Case], tmp_path: Path
) -> list[CallOutcome | Failure]:
    """Return the outcomes of cases that share a graph, through the files of the worker."""
    worker_files.write_job(tmp_path, {number: WorkItem(mode, a_case) for number, a_case in enumerate(cases)})
    described = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["cases"]
    jobs = [({**described[a_case.name], "user_function": None}, a_case.gradients) for a_case in cases]
    results_out = worker.ResultsOut(tmp_path)
    for number, (result, tensors) in enumerate(worker.run_cases(adapter, namespace, mode, jobs)):
        results_out.write(number, result, tensors)
    return [worker_files.read_result(tmp_path, number) for number in range(len(cases))]
