"""Call functions a second time, to find out whether they are deterministic."""

from __future__ import annotations

from collections.abc import Sequence

from .call_outcome import Failure
from .known.entries import SIZED
from .modes import NATIVE
from .results import ParityReport
from .suite.load import Suite
from .workers import run_worker
from .workers.worker_files import WorkItem

NOT_DETERMINISTIC = "A second call returned other bits: the function is random, or depends on earlier calls"


def unexplained_results(report: ParityReport) -> list[tuple[str, str]]:
    """Return (framework, case name) for all failures of users' functions. Leave out functions whose failures all have
    a known cause.
    """
    failed = [
        (name, case.name, native)
        for case in report.cases
        for name, native in case.natives.items()
        if native.is_users and native.problem and native.kind in SIZED
    ]
    functions = {(name, native.function) for name, _, native in failed if not native.cause}
    return [(name, case) for name, case, native in failed if (name, native.function) in functions]


def call_again(suite: Suite, report: ParityReport, places: Sequence[tuple[str, str]]) -> None:
    """Call functions again, and store in the report whether both calls returned the same bits.

    places: (framework, case name) for each call.
    """
    cases = {case.name: case for case in suite.cases}
    results = {case.name: case.natives for case in report.cases}
    places = [place for place in places if not results[place[1]][place[0]].second_call]
    for framework in dict.fromkeys(framework for framework, _ in places):
        items = [WorkItem(NATIVE, cases[name]) for each, name in places if each == framework]
        worker = run_worker.command(*suite.worker_arguments(framework))
        again = run_worker.run_worker(
            worker, items, suite.timeout, lambda _, outcome: None if isinstance(outcome, Failure) else outcome.digests
        )
        for (_, name), digests in again.by_case.items():
            native = results[name][framework]
            if digests is None:
                native.second_call = "failed"
            elif digests == native.sha256:
                native.second_call = "equal"
            else:
                native.second_call = "different"
                native.problem += f". {NOT_DETERMINISTIC}" if native.problem else ""
