"""Call functions once more whose results have other bits than in a baseline, to find out if they are deterministic."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..tensors.types import Stage
from .modes import NATIVE
from .outcome import CallOutcome, Failure
from .results import ParityReport
from .suite.load import Suite
from .workers import pool
from .workers.pool import WorkItem


def processor() -> str:
    """Return the name of the processor and the number of its cores that this process may use.

    Both can change the order in which a framework adds numbers up, and so the last bits of a norm.
    """
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def repeat(suite: Suite, report: ParityReport, places: Sequence[tuple[str, str]]) -> None:
    """Call the functions of some results once more, each framework in a new process. Set `second_call` of the results.

    places: (framework, case name) of the results.
    """
    cases = {case.name: case for case in suite.cases}
    results = {case.name: case.natives for case in report.cases}
    for framework in dict.fromkeys(framework for framework, _ in places):
        items = [WorkItem(NATIVE, cases[name]) for each, name in places if each == framework]
        worker = pool.command(framework, *suite.worker_arguments(framework))
        again = pool.run(worker, items, suite.timeout, lambda _, outcome: _digests(outcome))
        for (_, name), digests in again.results.items():
            native = results[name][framework]
            if digests is None:
                native.second_call = "failed"
            else:
                native.second_call = "equal" if digests == native.sha256 else "different"


def _digests(outcome: CallOutcome | Failure) -> dict[Stage, str] | None:
    return None if isinstance(outcome, Failure) else dict(outcome.digests)
