"""Runs of the parity engine with fake workers, which return the exact outcome or a deliberately wrong one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from support.parity.cases import dense, suite

from unified_clip.parity import run_suite
from unified_clip.parity.call_outcome import CallOutcome, Failure
from unified_clip.parity.judge import oracle
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.results import ParityReport
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.case import Case
from unified_clip.parity.workers import run_worker
from unified_clip.parity.workers.run_worker import WorkerResults
from unified_clip.parity.workers.worker_files import WorkItem

FRAMEWORKS = "[frameworks.numpy]\nmodes = ['host']\n[frameworks.torch]\n"

CASES = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]
    [[gradients]]
    name = "<script>throw Error('case')</script>"
    tensors = [{ random = 7, exponents = [-2, 1], shape = [40] }]
    [[cases]]
    gradients = ["worked example", "<script>throw Error('case')</script>"]
    calls = [
      { call = "clip_grad_norm_", max_norm = 0.5 },
      { call = "get_total_norm" },
      { call = "clip_grad_value_", clip_value = 0.25 },
    ]
"""

Result = CallOutcome | Failure
ChangeOutcome = Callable[[str, str, Case, CallOutcome], Result]
"""Takes the framework, the mode, the case and its exact outcome. Returns the outcome of the fake worker."""


def exact_outcome(case: Case) -> CallOutcome:
    expected = oracle.expect(case)
    return CallOutcome(expected.norm, expected.gradients, expected.update)


@contextmanager
def fake_workers(change: ChangeOutcome) -> Iterator[None]:
    def give(
        worker: Sequence[str], runs: Sequence[WorkItem], timeout: float, take: run_worker.OnResult, *_: Any
    ) -> WorkerResults:
        framework = worker[-1]
        results = WorkerResults(versions={framework: "1.0"})
        for mode, case in runs:
            result = change(framework, mode, case, exact_outcome(case))
            if mode == NATIVE and isinstance(result, CallOutcome):
                result = dataclasses.replace(result, name=f"torch.{case.call_name}")
            results.by_case[mode, case.name] = take(WorkItem(mode, case), result)
        return results

    with mock.patch.object(run_worker, "run_worker", give):
        yield


def run_suite_with(
    directory: Path, change: ChangeOutcome, cases: str = CASES, frameworks: str = FRAMEWORKS
) -> ParityReport:
    with fake_workers(change):
        return run_suite.run(suites.read(suite(directory, cases, frameworks=frameworks)))


NORM_OFF = "worked example: get_total_norm()"


def wrong_outcome(framework: str, mode: str, case: Case, outcome: CallOutcome) -> Result:
    """Return a wrong norm, wrong results of framework functions, or a crash with colours in its message."""
    if mode == NATIVE and outcome.norm:
        return dataclasses.replace(outcome, norm=dense(outcome.norm.values() * 1.5))
    if mode == HOST and framework == "torch" and case.call_name == "get_total_norm" and len(case.gradients) == 2:
        return dataclasses.replace(outcome, norm=dense(5.5))
    if mode == DEVICE and case.call_name == "clip_grad_value_":
        return Failure("crashed", "\x1b[31mred | </failure>\x00")
    return outcome


def unchanged_outcome(framework: str, mode: str, case: Case, outcome: CallOutcome) -> Result:
    return outcome
