"""Run a framework's worker process, and return a result or a failure for every work item.

If a worker crashes or hangs, the current item fails, and a new worker runs the remaining items. In each mode, the items
of functions that have failed run last. After MAX_FAILURES failures in a mode, its remaining items do not run.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..._kit import workers
from ..._kit.scratch import Scratch
from ...tensors.files import memmap
from ..call_outcome import OUT_OF_MEMORY, CallOutcome, Failure
from .worker_files import WorkItem, read_current, read_result, read_start, write_job

FOR_OTHERS = Path(__file__).parents[1] / "old_releases" / "worker.py"
"""What other interpreters run, because they can be too old for unified_clip."""

MAX_FAILURES = 4

STOP = threading.Event()
"""While this event is set, running workers are ended, and no new worker starts."""

OnResult = Callable[[WorkItem, CallOutcome | Failure], Any]


@dataclass(eq=False)
class WorkerResults:
    by_case: dict[tuple[str, str], Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def command(
    framework: str,
    python: str = sys.executable,
    functions: Mapping[str, str] | None = None,
    root: Path = Path(),
    returns: Mapping[str, str] | None = None,
    table: str = "",
    graph: bool = False,
) -> list[str]:
    """Return the command line of a worker. `run_worker` appends the input directory and the output directory.

    functions: {public function: the corresponding function of the user, as FILE.py:FUNCTION}.
    root: The directory that contains the files of the user's functions.
    returns: {public function: "gradients" or "nothing"} for functions that return no norm.
    table: The name of the framework's table in the suite.
    graph: Whether an old release calls its functions in a graph.
    """
    options = ["--functions", json.dumps(dict(functions)), "--root", str(root.absolute())] if functions else []
    options += ["--returns", json.dumps(dict(returns))] if returns else []
    options += ["--table", table] if table else []
    options += ["--graph"] if graph else []
    is_other = graph or python != sys.executable
    start = [str(FOR_OTHERS)] if is_other else ["-m", "unified_clip.parity.workers.worker"]
    return [python, "-X", "faulthandler", *start, *options, framework]


NO_RESULT = "the process ended with status 0 and without a result for this case, for example by os._exit(0)"


def run_worker(
    worker: Sequence[str],
    items: Sequence[WorkItem],
    timeout: float,
    on_result: OnResult = lambda item, outcome: outcome,
    progress: Callable[[int], Any] = lambda count: None,
) -> WorkerResults:
    """Run all items on one framework. After a crash, start the worker again for the remaining items.

    timeout: End a worker after this number of seconds without a new result.
    on_result: Called with each item and its outcome. The return values are stored in `WorkerResults.by_case`.
    """
    run = _Run(dict(enumerate(items)), on_result, progress)
    while run.remaining:
        with Scratch("parity") as scratch:
            job, out = scratch.path / "job", scratch.path / "out"
            job.mkdir()
            out.mkdir()
            write_job(job, run.remaining)
            arguments = [*worker, str(job), str(out)]
            failure = _run_once(arguments, scratch, timeout, partial(run.collect, out))
            run.collect(out)
            start_failure = read_start(out, run.results.versions)
            has_started = (out / "worker.json").exists() and not start_failure
            current = read_current(out)
        failure = start_failure or failure
        if failure and not has_started and "ModuleNotFoundError" in failure.detail:
            failure = dataclasses.replace(
                failure, detail=f"{failure.detail}. Install unified_clip[cli] for {worker[0]}"
            )
        if run.remaining:
            failure = failure or Failure("unreadable", NO_RESULT)
            run.fail_current(failure, current) if has_started else run.fail_all(failure)
        elif failure:
            detail = f"the worker failed after the last case, perhaps because of an earlier case: {failure.detail}"
            run.keep(items[-1], dataclasses.replace(failure, detail=detail))
    return run.results


class _Run:
    def __init__(self, remaining: dict[int, WorkItem], on_result: OnResult, progress: Callable[[int], Any]) -> None:
        self.remaining, self._on_result, self._progress = remaining, on_result, progress
        self.results = WorkerResults()
        self._failures: Counter[str] = Counter()
        self._failed_functions: set[tuple[str, str]] = set()

    def keep(self, item: WorkItem, outcome: CallOutcome | Failure) -> None:
        self.results.by_case[item.mode, item.case.name] = self._on_result(item, outcome)

    def collect(self, out: Path) -> bool:
        names: set[str] = set()
        with suppress(FileNotFoundError):  # the system has removed the directory, as cleaners of /tmp do
            names = {path.name for path in out.iterdir()}
        numbers = [number for number in self.remaining if f"{number}.json" in names]
        for number in numbers:
            self.keep(self.remaining.pop(number), read_result(out, number))
            for suffix in ("json", memmap.TENSORS):
                (out / f"{number}.{suffix}").unlink(missing_ok=True)
        self._progress(len(numbers))
        return bool(numbers)

    def fail_all(self, failure: Failure) -> None:
        for number in list(self.remaining):
            self.keep(self.remaining.pop(number), failure)

    def fail_current(self, failure: Failure, current: Sequence[int]) -> None:
        number = next((number for number in current if number in self.remaining), next(iter(self.remaining)))
        failed = self.remaining.pop(number)
        self.keep(failed, failure)
        self._failures[failed.mode] += 1
        self._failed_functions.add(_function(failed))
        if self._failures[failed.mode] >= MAX_FAILURES:
            why = f"because {MAX_FAILURES} cases failed. The last failure: {failure.kind}, {failure.detail}"
            for number in [number for number, item in self.remaining.items() if item.mode == failed.mode]:
                self.keep(self.remaining.pop(number), Failure("not run", why))
        modes = list(dict.fromkeys(item.mode for item in self.remaining.values()))
        self.remaining = dict(
            sorted(
                self.remaining.items(),
                key=lambda entry: (modes.index(entry[1].mode), _function(entry[1]) in self._failed_functions, entry[0]),
            )
        )


def _function(item: WorkItem) -> tuple[str, str]:
    return item.mode, item.case.call_name


def _run_once(
    arguments: Sequence[str], scratch: Scratch, timeout: float, collect: Callable[[], bool]
) -> Failure | None:
    """Run a worker, and end the worker if there is no new result for `timeout` seconds.

    Return None if the exit status is 0. Otherwise, return the failure.
    """

    def poll() -> bool:
        has_results = collect()
        if STOP.is_set():
            raise KeyboardInterrupt
        return has_results

    try:
        started = workers.Worker(arguments, scratch)
    except OSError as error:
        return Failure("missing", f"{arguments[0]} cannot be started: {error.strerror}")
    with started as worker:
        return _failure_of(worker.wait(timeout, poll), timeout)


def _failure_of(end: workers.Exit, timeout: float) -> Failure | None:
    if end.code is None:
        return Failure("timed out", f"no new result in {timeout:g} seconds (set by --timeout); {end}")
    if end.code == 0:
        return None
    out_of_memory = [line for line in end.stderr if OUT_OF_MEMORY.search(line)]
    if out_of_memory:
        return Failure("out of memory", f"{out_of_memory[-1].strip()}; {end}")
    return Failure("crashed", str(end))
