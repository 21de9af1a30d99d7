"""Runs of the parity engine without workers: what they would give is computed here, and made wrong on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from support.parity.cases import dense, suite

from unified_clip.parity import run_suite
from unified_clip.parity.judge import oracle
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.outcome import CallOutcome, Failure
from unified_clip.parity.results import ParityReport
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.cases import Case
from unified_clip.parity.workers import pool
from unified_clip.parity.workers.pool import WorkerResults

FRAMEWORKS = "[frameworks.numpy]\nmodes = ['host']\n[frameworks.torch]\ntitle = 'PyTorch'\n"

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
Wrong = Callable[[str, str, Case, CallOutcome], Result]
"""Framework, mode and case, and the right result of it: the result to give in its place."""


def right(case: Case) -> CallOutcome:
    """What a worker gives that makes no mistake."""
    expected = oracle.expect(case)
    return CallOutcome(expected.norm, expected.gradients, expected.update)


@contextmanager
def workers(wrong: Wrong) -> Iterator[None]:
    """Workers that give what is right, made wrong."""

    def give(
        worker: Sequence[str], runs: Sequence[pool.WorkItem], timeout: float, take: pool.OnResult, *_: Any
    ) -> WorkerResults:
        framework = worker[-1]
        found = WorkerResults(versions={framework: "1.0"})
        for mode, case in runs:
            result = wrong(framework, mode, case, right(case))
            if mode == NATIVE and isinstance(result, CallOutcome):
                result = dataclasses.replace(result, name=f"torch.{case.call_name}")
            found.results[mode, case.name] = take(pool.WorkItem(mode, case), result)
        return found

    with mock.patch.object(pool, "run", give):
        yield


def run(directory: Path, wrong: Wrong, cases: str = CASES, frameworks: str = FRAMEWORKS) -> ParityReport:
    """A run of a suite in this directory, on NumPy and PyTorch."""
    with workers(wrong):
        return run_suite.run(suites.read(suite(directory, cases, frameworks=frameworks)))


NORM_OFF = "worked example: get_total_norm()"


def wrong(framework: str, mode: str, case: Case, right: CallOutcome) -> Result:
    """A norm that is off, natives that are off, and a worker that ended while it wrote colours."""
    if mode == NATIVE and right.norm:
        return dataclasses.replace(right, norm=dense(right.norm.values() * 1.5))
    if mode == HOST and framework == "torch" and case.call_name == "get_total_norm" and len(case.gradients) == 2:
        return dataclasses.replace(right, norm=dense(5.5))
    if mode == DEVICE and case.call_name == "clip_grad_value_":
        return Failure("crashed", "\x1b[31mred | </failure>\x00")
    return right


def as_it_should_be(framework: str, mode: str, case: Case, right: CallOutcome) -> Result:
    return right
