"""Run every case of a suite on every framework in every mode, and compare the results."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

from .. import __version__
from .._kit import atomic_files
from .._kit.display import counted
from .._kit.workers import POLL_SECONDS
from ..tensors.types import Gradient, densify
from .judge import oracle
from .judge.judged_result import ExpectedResults, choose_causes, judge_result, worst_elements
from .judge.oracle import Expected
from .known import match
from .known.match import Place
from .modes import COMPILED, IN_GRAPHS, NATIVE, PROCESSES
from .report import build
from .results import CaseResult, FrameworkResult, KnownDifferenceResult, NativeResult, ParityReport, differing_stages
from .suite import own_functions
from .suite.case import Case
from .suite.load import Suite
from .workers import run_worker
from .workers.run_worker import WorkerResults
from .workers.worker_files import WorkItem

AT_ONCE = 2

SLOW = (COMPILED, *PROCESSES)

Progress = Callable[[str, int], Any]


def run(suite: Suite, progress: Progress = lambda framework, count: None) -> ParityReport:
    """If the run is interrupted, all workers are ended."""
    expected = ExpectedResults()

    def work(name: str, items: Sequence[WorkItem]) -> WorkerResults:
        framework = suite.frameworks[name]
        # with --case, the cause of every difference is printed
        listed = [] if suite.chosen_cases else suite.known or []
        known = [entry for entry in listed if entry.framework == name]
        return run_worker.run_worker(
            run_worker.command(*suite.worker_arguments(name)),
            items,
            suite.timeout,
            lambda item, outcome: judge_result(item, expected(item.case), outcome, framework, known),
            lambda count: progress(name, count),
        )

    started = datetime.now(timezone.utc)
    results = _run_workers(suite, expected, work)
    notes = _notes_on_run(suite, results)
    by_case = {name: each.by_case for name, each in results.items()}
    choose_causes(suite.cases, expected, by_case, suite.known or [])
    known = _judge_natives(suite, results)
    cases = [_case_result(suite, case, expected(case), results) for case in suite.cases]
    return build.build_report(
        list(suite.frameworks),
        cases,
        known,
        processor=_processor(),
        versions={"unified_clip": __version__} | _versions({name: each.versions for name, each in results.items()}),
        may_be_missing=[name for name, framework in suite.frameworks.items() if framework.missing],
        suite=suite.directory,
        chosen_frameworks=list(suite.chosen_frameworks),
        chosen_cases=suite.chosen_cases,
        started=started,
        notes=notes,
        untested=_untested(suite, expected),
    )


def _run_workers(
    suite: Suite, expected: ExpectedResults, work: Callable[[str, Sequence[WorkItem]], WorkerResults]
) -> dict[str, WorkerResults]:
    jobs = worker_jobs(suite)
    run_worker.STOP.clear()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            pending = [(name, threads.submit(work, name, items)) for name, items in jobs]
            for case in suite.cases:
                expected(case)
            results = {name: WorkerResults() for name in suite.frameworks}
            for name, future in pending:
                while not future.done():  # a wait without a timeout misses a signal that arrived just before it
                    wait([future], POLL_SECONDS)
                part = future.result()
                results[name].by_case |= part.by_case
                results[name].versions |= part.versions
        except BaseException:
            run_worker.STOP.set()  # and do not clear it: an interrupted submit leaves an unknown thread
            threads.shutdown(cancel_futures=True)
            raise
    return results


def _notes_on_run(suite: Suite, results: Mapping[str, WorkerResults]) -> list[str]:
    notes = [f"Not run, because of --without: {', '.join(suite.without)}."] if suite.without else []
    notes += suite.notes
    for name, each in results.items():
        lacking = Counter(judged.result.detail for judged in each.by_case.values() if judged.lacks)
        whats = [f"{what} ({counted(count, 'result')})" for what, count in lacking.items()]
        notes += [f"Not available on {name}: {', '.join(whats)}."] if whats else []
    return notes


def _processor() -> str:
    """Return the processor's name and the number of cores that this process can use.

    Both determine the order of a sum, and therefore the last bits of a norm.
    """
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = atomic_files.read_text(Path("/proc/cpuinfo"), errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def _versions(by_framework: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return {package: version}. If frameworks use different versions of a package, the keys are names such as
    "numpy (torch)".
    """
    by_package = dict[str, dict[str, str]]()
    for framework, versions in by_framework.items():
        for package, version in versions.items():
            by_package.setdefault(package, {})[framework] = version
    merged = dict[str, str]()
    for package, versions in by_package.items():
        is_same = len({*versions.values()}) == 1
        merged |= {package if is_same else f"{package} ({name})": version for name, version in versions.items()}
    return dict(sorted(merged.items()))


def work_items(suite: Suite, framework: str) -> list[WorkItem]:
    cases = [case for case in suite.cases if case.is_for_framework(framework)]
    table = suite.frameworks[framework]
    return [
        WorkItem(mode, case)
        for mode in table.modes
        for case in cases
        if not case.options.modes or mode in case.options.modes
        if mode != NATIVE or not suite.runs_elsewhere(framework, case)
        if mode not in PROCESSES or case.is_for_processes(table.leaves_out(mode))
        if mode not in IN_GRAPHS or case.is_for_graphs(table.leaves_out(mode))
    ]


def worker_jobs(suite: Suite) -> list[tuple[str, list[WorkItem]]]:
    """Return a job for each mode of each framework. Jobs in slow modes come first."""
    jobs = [
        (name, list(items))
        for name in list(suite.frameworks)[::-1]
        for _, items in groupby(work_items(suite, name), lambda item: item.mode)
    ]
    return sorted(jobs, key=lambda job: job[1][0].mode not in SLOW)


def _untested(suite: Suite, expected: ExpectedResults) -> list[str]:
    if suite.chosen_cases:
        return []
    if not any(case.options.raises or oracle.has_effect(case, expected(case)) for case in suite.cases):
        return ["unified_clip"]
    used, not_zero = set[str](), set[str]()
    for case in suite.cases:
        dtypes = {gradient.dtype for gradient in case.gradients if gradient is not None}
        names = {case.gradients_name, *(case.gradients_name.removesuffix(f" as {dtype}") for dtype in dtypes)}
        used |= names
        not_zero |= names if any(map(_has_number, case.gradients)) else set()
    return [f"the gradients {name!r}" for name in suite.saved if name in used - not_zero] + [
        f"{text} ({framework})"
        for framework, table in suite.frameworks.items()
        if NATIVE in table.modes
        for call, text in table.functions.items()
        if not any(
            own_functions.uses_function(case, call, framework)
            and not case.options.raises
            and oracle.has_effect(case, expected(case))
            for case in suite.cases
        )
    ]


def _has_number(gradient: Gradient) -> bool:
    dense = densify(gradient)
    return dense is not None and bool(dense.values().any())


def _judge_natives(suite: Suite, results: Mapping[str, WorkerResults]) -> list[KnownDifferenceResult]:
    """Compare the results of the frameworks' functions with the list of known differences.

    If a framework failed in a case, all its entries are left out, because their differences may occur in this case.
    """
    natives: dict[Place, NativeResult] = {}
    complete = set(results)
    for framework, each in results.items():
        for (_, name), judged in each.by_case.items():
            if judged.result and judged.result.is_failure and judged.result.verdict != "not available":
                complete.discard(framework)
            if judged.native:
                natives[framework, name] = judged.native
    compared = {name for name, framework in suite.frameworks.items() if NATIVE in framework.modes}
    known = None if suite.known is None else [entry for entry in suite.known if entry.framework in compared]
    judgements, entries = match.match_deviations(known, natives, [case.name for case in suite.cases])
    for place, (verdict, problem) in judgements.items():
        natives[place].verdict, natives[place].problem = verdict, problem
    if suite.chosen_cases:  # a case that does not run may show the difference
        entries = [entry.model_copy(update={"problem": ""}) for entry in entries]
    return [entry for entry in entries if entry.framework in complete]


def _case_result(suite: Suite, case: Case, expected: Expected, results: Mapping[str, WorkerResults]) -> CaseResult:
    frameworks = {}
    for framework, each in results.items():
        judged = {mode: result for (mode, name), result in each.by_case.items() if name == case.name}
        by_mode = {mode: each.result for mode, each in judged.items() if each.result}
        for mode, element in worst_elements(case, expected, judged, suite.frameworks[framework].tolerance).items():
            by_mode[mode].details = element
        for result in by_mode.values():
            if result.verdict not in ("equal", "no norm", "close", "missing", "not available"):
                result.reproduce = build.command(suite.directory, "--case", case.name, "--frameworks", framework)
        if judged:
            frameworks[framework] = FrameworkResult.model_validate(by_mode)
    return CaseResult(
        name=case.name,
        call=case.call_name,
        gradients=case.gradients_name,
        elements=case.elements,
        sha256=expected.digests,
        differing_stages=differing_stages(frameworks),
        frameworks=frameworks,
    )
