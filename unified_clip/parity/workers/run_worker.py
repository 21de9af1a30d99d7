"""Run a framework's worker process, and return a result or a failure for every work item.

If the process crashes or hangs, its current item fails, and a second process runs the remaining items. If the second
process fails, too, the items that remain do not run.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
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

STARTS = 2

STOP = threading.Event()
"""While this event is set, running workers are ended, and no new worker starts."""

NO_RESULT = "the process ended with status 0 and without a result for this case, for example by os._exit(0)"

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


def run_worker(
    worker: Sequence[str],
    items: Sequence[WorkItem],
    timeout: float,
    on_result: OnResult = lambda item, outcome: outcome,
    progress: Callable[[int], Any] = lambda count: None,
) -> WorkerResults:
    """Run all items on one framework.

    timeout: End a worker after this number of seconds without a new result.
    on_result: Called with each item and its outcome. The return values are stored in `WorkerResults.by_case`.
    """
    results, remaining = WorkerResults(), dict(enumerate(items))

    def keep(item: WorkItem, outcome: CallOutcome | Failure) -> None:
        results.by_case[item.mode, item.case.name] = on_result(item, outcome)

    def collect(out: Path) -> bool:
        with suppress(FileNotFoundError):  # the system has removed the directory, as cleaners of /tmp do
            names = {path.name for path in out.iterdir()}
            found = [number for number in remaining if f"{number}.json" in names]
            for number in found:
                keep(remaining.pop(number), read_result(out, number))
                for suffix in ("json", memmap.TENSORS):
                    (out / f"{number}.{suffix}").unlink(missing_ok=True)
            progress(len(found))
            return bool(found)
        return False

    for _ in range(STARTS):
        with Scratch("parity") as scratch:
            job, out = scratch.path / "job", scratch.path / "out"
            job.mkdir()
            out.mkdir()
            write_job(job, remaining)
            end = _run_once([*worker, str(job), str(out)], scratch, timeout, partial(collect, out))
            collect(out)
            start_failure, has_started = read_start(out, results.versions), (out / "worker.json").exists()
            current = read_current(out)
        problem = start_failure or end
        if not remaining:
            if problem:
                detail = f"the worker failed after the last case, perhaps because of an earlier case: {problem.detail}"
                keep(items[-1], dataclasses.replace(problem, detail=detail))
            return results
        failure = problem or Failure("unreadable", NO_RESULT)
        if start_failure or not has_started:
            if "ModuleNotFoundError" in failure.detail:
                detail = f"{failure.detail}. Install unified_clip[cli] for {worker[0]}"
                failure = dataclasses.replace(failure, detail=detail)
            break
        keep(remaining.pop(next((each for each in current if each in remaining), next(iter(remaining)))), failure)
        failure = Failure("not run", f"the process failed {STARTS} times: {failure.kind}, {failure.detail}")
        if not remaining:
            break
    for item in remaining.values():
        keep(item, failure)
    return results


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
