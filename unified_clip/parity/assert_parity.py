"""Run one call on several frameworks, without a suite, for `unified_clip.testing.assert_clip_parity`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .._kit import install
from ..tensors import diff, in_memory, norms
from ..tensors.types import Gradient
from .call_outcome import CallOutcome, ClipTensors, Failure
from .judge import oracle
from .judge.verdict import compare_with_exact
from .modes import HOST
from .run_suite import AT_ONCE
from .suite import cases
from .suite.case import Case
from .suite.schema import SuiteError
from .workers import run_worker
from .workers.worker_files import WorkItem

EXACT = "the exact result"
GIVEN = "gradients"


def make_case(container: Any, call: str, arguments: Mapping[str, Any]) -> Case:
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in arguments.items()}
    try:
        return cases.make_case(GIVEN, in_memory.read_container(container), {"call": call, **plain})
    except SuiteError as error:
        text = re.sub(r", or expect the error: raises = '\w+'", "", str(error))  # only a suite can expect an error
        raise ValueError(text.removeprefix(GIVEN).removeprefix(", calls 1").lstrip(",: ")) from None


def run(case: Case, interpreters: Mapping[str, str], timeout: float) -> dict[str, CallOutcome | Failure]:
    def work(framework: str, python: str) -> CallOutcome | Failure:
        worker = run_worker.run_worker(run_worker.command(framework, python), [WorkItem(HOST, case)], timeout)
        outcome: CallOutcome | Failure = worker.by_case[HOST, case.name]
        return outcome

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(zip(interpreters, threads.map(work, interpreters, interpreters.values()), strict=True))


def problems(
    case: Case, outcomes: Mapping[str, CallOutcome | Failure], interpreters: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return two lists of messages: about missing frameworks, and about wrong results.

    If no result is wrong, the second list is about results with other bits than the result of the first framework.
    """
    right = oracle.expect(case)
    absent, wrong = [], []
    for framework, outcome in outcomes.items():
        if isinstance(outcome, Failure) and outcome.kind == "missing":
            python = interpreters[framework]
            remedy = f"Install {framework} for {python}, or correct this path in interpreters= or --clip-interpreter."
            if python == sys.executable:
                remedy = f"Install it: {install.command(framework)}. "
                remedy += f"Or pass interpreters= with a Python that has {framework}."
            absent.append(f"{framework} is missing: {outcome.detail}. {remedy}")
        elif not (verdict := compare_with_exact(case, right, outcome, HOST)).agrees:
            numbers = ""
            if isinstance(outcome, CallOutcome) and verdict.stages:
                numbers = diff.describe(_named(case, outcome), _named(case, right), (framework, EXACT))
            wrong.append(f"{framework}: {numbers or f'{verdict.kind}: {verdict.detail}'}")
    norms.clear_caches()
    return absent, wrong or _differing_bits(case, outcomes)


def _differing_bits(case: Case, outcomes: Mapping[str, CallOutcome | Failure]) -> list[str]:
    results = {name: _named(case, outcome) for name, outcome in outcomes.items() if isinstance(outcome, CallOutcome)}
    first, *others = results or [""]
    texts = (diff.describe(results[name], results[first], (name, first)) for name in others)
    return [text for text in texts if text]


def _named(case: Case, result: ClipTensors) -> dict[str, Gradient]:
    clipped: Sequence[Gradient] = result.gradients or []
    named: dict[str, Gradient] = {"the norm": result.norm}
    return named | dict(zip(case.names, clipped, strict=False))
