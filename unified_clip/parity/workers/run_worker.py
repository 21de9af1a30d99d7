"""Run a framework's worker process, and return a result or a failure for every work item.

If a worker crashes or hangs, the current item fails, and a new worker runs the remaining items. The new worker runs the
cases of the failed function at the end. After MAX_FAILURES failures of a function, its remaining cases do not run.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ... import _workers
from ..._scratch import Scratch
from ...tensors.files import memmap
from ...tensors.types import densify
from ..outcome import CallOutcome, Failure
from ..suite.cases import Case

MAX_FAILURES = 4
"""After this number of failures in one mode, the remaining cases of a function do not run.

If this number of functions fail in a row, the run of the framework ends.
"""

FAILURE_WEIGHTS = {"timed out": 2}
"""{kind of failure: weight}. All other kinds have the weight 1."""

KEPT_BYTES = 1 << 12

SHOWN_CHARACTERS = 80

OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|ResourceExhausted|RESOURCE_EXHAUSTED|n[o']t allocate memory"
)
"""Matches error messages of Python, C++ and the frameworks about missing memory."""

RETRY_ADVICE = "Try again. If it fails again, install this version of unified_clip for the worker's Python, too"

STOP = threading.Event()
"""While this event is set, running workers are ended, and no worker starts."""


class WorkItem(NamedTuple):
    mode: str
    case: Case


OnResult = Callable[[WorkItem, CallOutcome | Failure], Any]


@dataclass(eq=False)
class WorkerResults:
    by_case: dict[tuple[str, str], Any] = field(default_factory=dict)
    """{(mode, case name): return value of `on_result`}."""

    versions: dict[str, str] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    """The first line of unexpected output after each start of the worker."""


def command(
    framework: str,
    python: str = sys.executable,
    functions: Mapping[str, str] | None = None,
    root: Path = Path(),
    returns: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command line of a worker, without the directories JOB and OUT.

    functions: {public name: function of the user, as FILE.py:FUNCTION}.
    root: The directory that contains the files of the user's functions.
    returns: {public name: "gradients" or "nothing"} for functions that return no norm.
    """
    options = ["--functions", json.dumps(dict(functions)), "--root", str(root.absolute())] if functions else []
    options += ["--returns", json.dumps(dict(returns))] if returns else []
    return [python, "-X", "faulthandler", "-m", "unified_clip.parity.workers.worker", *options, framework]


NO_RESULT = "the process ended with status 0 and without a result for this case, for example by os._exit(0)"


def run_worker(
    worker: Sequence[str],
    items: Sequence[WorkItem],
    timeout: float,
    on_result: OnResult = lambda item, outcome: outcome,
    progress: Callable[[int], Any] = lambda count: None,
) -> WorkerResults:
    """Run all items on one framework, and start the worker again after a crash.

    timeout: If there is no new result for this number of seconds, the worker is ended.
    on_result: A function that gets each item and its outcome. The return values are stored.
    """
    run = _Run(dict(enumerate(items)), on_result, progress)
    while run.remaining:
        count = len(run.remaining)
        with Scratch("parity") as scratch:
            job, out = scratch.path / "job", scratch.path / "out"
            job.mkdir()
            out.mkdir()
            write_job(job, run.remaining)
            arguments = [*worker, str(job), str(out)]
            failure = _run_once(arguments, scratch, timeout, partial(run.collect, out), run.results)
            run.collect(out)
            had_results = len(run.remaining) < count
            start_failure = _read_start(out, run.results)
            has_started = (out / "worker.json").exists() and not start_failure
            current = _read_current(out)
        failure = start_failure or failure
        if failure and not has_started and "ModuleNotFoundError" in failure.detail:
            failure = dataclasses.replace(
                failure, detail=f"{failure.detail}. Install unified_clip[cli] for {worker[0]}"
            )
        if run.remaining:
            failure = failure or Failure("unreadable", NO_RESULT)
            run.fail_current(failure, current, had_results=had_results) if has_started else run.fail_all(failure)
        elif failure:
            detail = f"after the last case, and perhaps because of an earlier case: {failure.detail}"
            run.keep(items[-1], dataclasses.replace(failure, detail=detail))
    return run.results


class _Run:
    def __init__(self, remaining: dict[int, WorkItem], on_result: OnResult, progress: Callable[[int], Any]) -> None:
        self.remaining, self._on_result, self._progress = remaining, on_result, progress
        self.results = WorkerResults()
        self._failures = _WorkerFailures()

    def keep(self, item: WorkItem, outcome: CallOutcome | Failure) -> None:
        self.results.by_case[item.mode, item.case.name] = self._on_result(item, outcome)

    def collect(self, out: Path) -> bool:
        """Read new results, and delete the files. Return whether there were new results."""
        names: set[str] = set()
        with suppress(FileNotFoundError):  # the system has removed the directory, as cleaners of /tmp do
            names = {path.name for path in out.iterdir()}
        numbers = [number for number in self.remaining if f"{number}.json" in names]
        for number in numbers:
            self.keep(self.remaining.pop(number), _read_result(out, number))
            for suffix in ("json", memmap.TENSORS):
                (out / f"{number}.{suffix}").unlink(missing_ok=True)
        self._progress(len(numbers))
        return bool(numbers)

    def fail_all(self, failure: Failure) -> None:
        for number in list(self.remaining):
            self.keep(self.remaining.pop(number), failure)

    def fail_current(self, failure: Failure, current: Sequence[int], *, had_results: bool) -> None:
        """Record the failure of the current item. Then skip the items that should not run after this failure."""
        number = next((number for number in current if number in self.remaining), next(iter(self.remaining)))
        failed = self.remaining.pop(number)
        self._failures.add(failed, failure, had_results=had_results)
        self.keep(failed, failure)
        for number, item in list(self.remaining.items()):
            if reason := self._failures.why_not_run(item):
                self.keep(self.remaining.pop(number), Failure("not run", reason))
        self.remaining = self._failures.in_order(self.remaining)


class _WorkerFailures:
    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._last: dict[tuple[str, str], str] = {}
        self._in_a_row: dict[tuple[str, str], str] = {}

    def add(self, item: WorkItem, failure: Failure, *, had_results: bool) -> None:
        function, reason = _function(item), f"{failure.kind}, {failure.detail}"
        self._counts[function] += FAILURE_WEIGHTS.get(failure.kind, 1)
        self._last[function] = reason
        if had_results:
            self._in_a_row.clear()
        self._in_a_row.pop(function, None)
        self._in_a_row[function] = f"{item.case.call_name}: {reason}"

    def why_not_run(self, item: WorkItem) -> str:
        function = _function(item)
        if self._counts[function] >= MAX_FAILURES:
            return f"because earlier cases of this function failed, the last one as follows: {self._last[function]}"
        if len(self._in_a_row) >= MAX_FAILURES:
            *_, last = self._in_a_row.values()
            return f"because {MAX_FAILURES} functions failed one after the other, the last one as follows: {last}"
        return ""

    def in_order(self, items: Mapping[int, WorkItem]) -> dict[int, WorkItem]:
        """Sort the items by mode. In each mode, items of functions that have failed come last."""
        modes = list(dict.fromkeys(item.mode for item in items.values()))
        numbers = sorted(items, key=lambda n: (modes.index(items[n].mode), self._counts[_function(items[n])] > 0, n))
        return {number: items[number] for number in numbers}


def _function(item: WorkItem) -> tuple[str, str]:
    return item.mode, item.case.call_name


def write_job(job: Path, items: Mapping[int, WorkItem]) -> None:
    cases = {item.case.name: item.case for item in items.values()}
    lists = {case.gradients_name: case.gradients for case in cases.values()}
    with (job / memmap.TENSORS).open("wb") as file:
        entries = {name: [memmap.append(file, each) for each in gradients] for name, gradients in lists.items()}
    described = {
        name: {
            "call": case.call_name,
            "arguments": case.arguments,
            "call_form": case.call_form.model_dump(),
            "gradients": case.gradients_name,
            **case.options.model_dump(),
        }
        for name, case in cases.items()
    }
    runs = [{"number": number, "mode": item.mode, "case": item.case.name} for number, item in items.items()]
    text = json.dumps({"runs": runs, "cases": described, "gradients": entries})
    (job / "job.json").write_text(text, encoding="utf-8")


def _run_once(
    arguments: Sequence[str], scratch: Scratch, timeout: float, collect: Callable[[], bool], results: WorkerResults
) -> Failure | None:
    """Start a worker, and wait until the worker ends, or until there is no new result for `timeout` seconds.

    Return None if the exit status is 0. Otherwise, return the failure, such as "crashed".
    """

    def poll() -> bool:
        has_results = collect()
        if STOP.is_set():
            raise KeyboardInterrupt
        return has_results

    printed = bytearray()
    try:
        started = _workers.Worker(arguments, scratch, subprocess.PIPE)
    except OSError as error:
        return Failure("missing", f"{arguments[0]} cannot be started: {error.strerror}")
    with started as worker:
        reader = threading.Thread(target=_read_output, args=[worker.process.stdout, printed], daemon=True)
        reader.start()
        end = worker.wait(timeout, poll)
    reader.join(1.0)  # a process that the worker started may keep the pipe open
    if line := next((line for line in printed.decode(errors="replace").split("\n") if line.strip()), ""):
        results.printed.append(repr(line[:SHOWN_CHARACTERS] + "..." * (len(line) > SHOWN_CHARACTERS)))
    if end.code is None:
        return Failure("timed out", f"no new result in {timeout:g} seconds (choose the number by --timeout); {end}")
    if end.code == 0:
        return None
    out_of_memory = [line for line in end.stderr if OUT_OF_MEMORY.search(line)]
    if out_of_memory:
        return Failure("out of memory", f"{out_of_memory[-1].strip()}; {end}")
    return Failure("crashed", str(end))


def _read_output(stdout: IO[bytes], printed: bytearray) -> None:
    """Read all output of a worker, because the worker would wait if the pipe were full."""
    with stdout:
        while chunk := stdout.read1(1 << 16):  # type: ignore[attr-defined]
            printed += chunk[: KEPT_BYTES - len(printed)]


def _read_start(out: Path, results: WorkerResults) -> Failure | None:
    """Store the versions from worker.json in `results`. If the file contains a failure, return the failure."""
    path = out / "worker.json"
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if "missing" in data:
            return Failure("missing", str(data["missing"]))
        results.versions.update(data["versions"])
    except (ValueError, TypeError, KeyError) as error:
        return Failure("unreadable", f"the worker's file {path.name} cannot be read: {error}. {RETRY_ADVICE}")
    return None


def _read_current(out: Path) -> list[int]:
    """Return the numbers of the items that the worker was running, or [] if the numbers are unknown."""
    with suppress(FileNotFoundError, ValueError):
        *_, last = (out / "current.jsonl").read_text(encoding="utf-8").splitlines()
        numbers: list[int] = json.loads(last)
        return numbers
    return []


def _read_result(out: Path, number: int) -> CallOutcome | Failure:
    try:
        data = json.loads((out / f"{number}.json").read_text(encoding="utf-8"))
        if "missing" in data:
            return Failure("missing", str(data["missing"]))
        if "unreadable" in data:
            message = str(data["unreadable"])
            return Failure("out of memory" if OUT_OF_MEMORY.search(message) else "unreadable", message)
        raw = memmap.read_or_map(out / f"{number}.{memmap.TENSORS}")
        parts = {
            part: [densify(memmap.at(raw, entry)) for entry in data.pop(part)]
            for part in ("norm", "gradients", "update")
            if part in data
        }
        outcome = CallOutcome(parts.get("norm", [None])[0], parts.get("gradients"), parts.get("update"), **data)
        if not isinstance(outcome.raised, list):
            raise TypeError("`raised` is not a list")
        return Failure("out of memory", outcome.message) if OUT_OF_MEMORY.search(outcome.message) else outcome
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        return Failure("unreadable", f"the worker's result cannot be read: {reason}. {RETRY_ADVICE}")
