"""Start a framework's worker, and bring back an outcome for every run, whatever becomes of the process.

A worker that dies, hangs or leaves something unreadable is a verdict on the case it was at; it is started again for the
cases after it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ... import _workers
from ..._scratch import Scratch
from ...tensors import types
from ...tensors.files import safetensors
from ...tensors.files.memmap import place_of
from ...tensors.types import Dense, UnreadableError, densify
from ..outcome import CallOutcome, Failure
from ..suite.cases import Case
from .printed import Printed

STARTS = 4
"""How often a worker is started before the remaining cases share the verdict of the last one."""

LOOK_EVERY = 0.1
"""Seconds between two looks for new results."""

OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|ResourceExhausted|RESOURCE_EXHAUSTED|n[o']t allocate memory"
)
"""Messages of Python, C++ and the frameworks when memory runs out."""

STOP = threading.Event()
"""Set to end all workers, and not start them again."""


class WorkItem(NamedTuple):
    """One case in one mode."""

    mode: str
    case: Case


OnResult = Callable[[WorkItem, CallOutcome | Failure], Any]
"""Called with each outcome. `WorkerResults` keeps what it returns."""


@dataclass(eq=False)
class WorkerResults:
    """What came of one worker."""

    results: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What was taken of each run, by mode and case."""

    versions: dict[str, str] = field(default_factory=dict)

    printed: list[str] = field(default_factory=list)
    """The first line that the worker printed, each time that it was started and printed any."""


def command(framework: str, python: str = sys.executable) -> list[str]:
    """The worker's command line, but for its two directories."""
    return [python, "-X", "faulthandler", "-m", "unified_clip.parity.workers.worker", framework]


def run(
    worker: Sequence[str],
    runs: Sequence[WorkItem],
    timeout: float,
    take: OnResult = lambda run, outcome: outcome,
    progress: Callable[[int], Any] = lambda count: None,
) -> WorkerResults:
    """All runs on one framework. `timeout`: seconds without a new result; `progress` is told of each batch of them.

    Results are taken, and their files deleted, while the worker goes on: all of them may be more than a disk holds.
    """
    found = WorkerResults()
    remaining = dict(enumerate(runs))
    starts = 0
    while remaining:
        starts += 1
        failure, started = _start(worker, remaining, timeout, take, progress, found)
        if remaining:
            failure = failure or Failure("unreadable", "the worker ended without a result for this case")
            hopeless = starts == STARTS or not started
            for number in list(remaining) if hopeless else [min(remaining)]:
                _keep(found, remaining.pop(number), failure, take)
        elif failure:
            _keep(found, runs[-1], dataclasses.replace(failure, detail=f"after the last case: {failure.detail}"), take)
    return found


def _keep(found: WorkerResults, run: WorkItem, outcome: CallOutcome | Failure, take: OnResult) -> None:
    found.results[run.mode, run.case.name] = take(run, outcome)


def _start(
    worker: Sequence[str],
    remaining: dict[int, WorkItem],
    timeout: float,
    take: OnResult,
    progress: Callable[[int], Any],
    found: WorkerResults,
) -> tuple[Failure | None, bool]:
    """Start a worker once; move what it finished from `remaining` to `found`. How it failed; whether it got going."""
    with Scratch("parity") as scratch:
        job, out = scratch.path / "job", scratch.path / "out"
        job.mkdir()
        out.mkdir()
        write_job(job, remaining)

        def collect() -> bool:
            """OnResult what there is; whether there was anything."""
            names = _names(out)
            numbers = [number for number in remaining if f"{number}.json" in names]
            for number in numbers:
                _keep(found, remaining.pop(number), _read_result(out, number), take)
                for path in out.glob(f"{number}.*"):
                    path.unlink()
            progress(len(numbers))
            return bool(numbers)

        printed = Printed()
        failure = _run_once([*worker, str(job), str(out)], scratch, timeout, collect, printed)
        collect()
        found.printed += filter(None, [printed.first_line])
        start_failure = _read_start(out, found)
        return start_failure or failure, (out / "worker.json").exists() and not start_failure


def _names(directory: Path) -> set[str]:
    """The files in a directory; none where something has cleared it away, as what keeps /tmp small does."""
    try:
        return {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return set()


def write_job(job: Path, runs: Mapping[int, WorkItem]) -> None:
    """What the worker reads: runs by their numbers; cases and lists of gradients that they share are stored once.

    Gradients that lie in a file are not copied: the worker maps them too.
    """
    stored: dict[str, Dense] = {}
    mapped: dict[str, Any] = {}
    listings: dict[str, Any] = {}
    cases: dict[str, Any] = {}
    for case in {run.case.name: run.case for run in runs.values()}.values():
        if case.gradients_name not in listings:
            packed, listings[case.gradients_name] = types.pack(case.gradients_name, case.gradients)
            for name, tensor in packed.items():
                if (place := place_of(tensor)) is not None:
                    mapped[name] = place
                else:
                    stored[name] = tensor
        cases[case.name] = {
            "call": case.call_name,
            "arguments": case.arguments,
            "call_form": dataclasses.asdict(case.call_form),
            "update": case.update,
            "raises": bool(case.raises),
            "gradients": case.gradients_name,
        }
    described = [{"number": number, "mode": run.mode, "case": run.case.name} for number, run in runs.items()]
    safetensors.save(job / "gradients.safetensors", stored)
    text = json.dumps({"runs": described, "cases": cases, "gradients": listings, "mapped": mapped})
    (job / "job.json").write_text(text, encoding="utf-8")


def _run_once(
    arguments: Sequence[str], scratch: Scratch, timeout: float, collect: Callable[[], bool], printed: Printed
) -> Failure | None:
    """Run a worker until it ends, or until `collect` has found no new result for `timeout` seconds."""

    def poll() -> bool:
        has_results = collect()
        if STOP.is_set():
            raise KeyboardInterrupt
        return has_results

    try:
        started = _workers.Worker(arguments, scratch, subprocess.PIPE)
    except OSError as error:
        return Failure("missing", f"{arguments[0]} cannot be started: {error.strerror}")
    try:
        with started as worker:
            printed.begin(worker.process)
            end = worker.wait(timeout, poll)
    finally:
        printed.end()
    if end.code is None:
        return Failure("timed out", f"no new result in {timeout:g} seconds; {end}")
    return None if end.code == 0 else _crashed(end)


def _crashed(end: _workers.Exit) -> Failure:
    out_of_memory = [line for line in end.stderr if OUT_OF_MEMORY.search(line)]
    if out_of_memory:
        return Failure("out of memory", f"{out_of_memory[-1].strip()}; {end}")
    return Failure("crashed", str(end))


def _read_start(out: Path, found: WorkerResults) -> Failure | None:
    """OnResult the versions; a failure if the framework is missing."""
    path = out / "worker.json"
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if "missing" in data:
            return Failure("missing", str(data["missing"]))
        found.versions.update(data["versions"])
    except (ValueError, TypeError, KeyError) as error:
        return Failure("unreadable", f"what it left cannot be read: {path.name}: {error}")
    return None


def _read_result(out: Path, number: int) -> CallOutcome | Failure:
    try:
        data = json.loads((out / f"{number}.json").read_text(encoding="utf-8"))
        if "unreadable" in data:
            said = str(data["unreadable"])
            return Failure("out of memory" if OUT_OF_MEMORY.search(said) else "unreadable", said)
        stored = safetensors.load(out / f"{number}.safetensors")
        parts = {
            part: [densify(gradient) for gradient in types.unpack(part, stored, data.pop(part))]
            for part in ("norm", "gradients", "update")
            if part in data
        }
        outcome = CallOutcome(parts.get("norm", [None])[0], parts.get("gradients"), parts.get("update"), **data)
        if not isinstance(outcome.raised, list):
            raise TypeError("raised is no list")
        return Failure("out of memory", outcome.message) if OUT_OF_MEMORY.search(outcome.message) else outcome
    except (
        UnreadableError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        RecursionError,
    ) as error:
        return Failure("unreadable", f"what it left cannot be read: {type(error).__name__}: {error}")
