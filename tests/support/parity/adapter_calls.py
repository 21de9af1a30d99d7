"""Calls of a parity adapter, through the files of the worker."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from support.kits import Kit
from support.parity.cases import dense

from unified_clip.parity.adapters.base import Adapter
from unified_clip.parity.call_outcome import CallOutcome, Failure
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.case import Case
from unified_clip.parity.workers import worker, worker_files
from unified_clip.parity.workers.worker_files import WorkItem
from unified_clip.tensors.types import Sparse

SUITE = suites.read(Path(__file__).parents[3] / "parity")

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
    "adaptive.clip_by_unit_norm": {"rule": "agc", "convention": "optax"},
}

DENSE = [dense([[3.0], [4.0]]), None, dense(-1.5), dense(np.zeros((0, 2)))]
SPARSE = [Sparse(np.array([2, 0, 2]), dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (4, 2)), dense([0.5])]


def adapter_of(kit: Kit) -> Adapter:
    adapter: Adapter = importlib.import_module(f"unified_clip.parity.adapters.{kit.name}").FrameworkAdapter()
    return adapter


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
    for number, (result, tensors) in enumerate(worker.run_cases(adapter, namespace, mode, jobs)):
        worker.write_result(tmp_path, number, result, tensors)
    return [worker_files.read_result(tmp_path, number) for number in range(len(cases))]
