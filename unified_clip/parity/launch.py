"""Start a framework's worker, and bring back an outcome for every run, whatever becomes of the process.

A worker that dies, hangs or leaves something unreadable is a verdict on the case it was at; it is started again for the
cases after it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from .. import _workers
from .._workers import PACKAGE
from . import tensors
from .cases import Case
from .memory import OUT_OF_MEMORY
from .tensors import Dense, UnreadableError, densify
from .watch import LOOK_EVERY, Watch

HOST, DEVICE, NATIVE = "host", "device", "native"
"""What a worker runs: ours on either path, eagerly, or the framework's own functions."""

GRAPH, COMPILED, STATIC = "graph", "compiled", "static"
"""Ours inside a graph that the framework traces and runs, compiles, or is handed as a static program."""

IN_GRAPHS = (GRAPH, COMPILED, STATIC)

OURS = {
    HOST: "host path",
    DEVICE: "device path",
    GRAPH: "inside graphs",
    COMPILED: "compiled",
    STATIC: "static programs",
}
"""What is run of ours, and what reports call it."""

STARTS = 4
"""How often a worker is started before the remaining cases share the verdict of the last one."""

STOP = threading.Event()
"""Set to end all workers, and not start them again."""


@dataclass(frozen=True)
class Failure:
    """No result, and why."""

    kind: Literal["crashed", "timed out", "out of memory", "missing", "unreadable"]
    detail: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a call, tensors as dense ones."""

    norm: Dense | None = None
    gradients: list[Dense | None] | None = None
    update: list[Dense | None] | None = None
    """Parameters of ones after a step with these gradients: see `adapter.sgd`."""

    name: str = ""
    """The framework's own function; '' where it has none like it."""

    structure: str = ""
    warned: bool = False
    raised: Sequence[str] = ()
    """The exception's class and its bases."""

    message: str = ""
    fault: str = ""
    """What the call did to tensors that it should not have."""

    same_objects: Sequence[bool] = ()
    """Of a class: for each gradient whether the given object came back."""


class Run(NamedTuple):
    """One case in one mode."""

    mode: str
    case: Case


@dataclass(eq=False)
class Found:
    """What came of one worker."""

    results: dict[tuple[str, str], Outcome | Failure] = field(default_factory=dict)
    """By mode and case."""

    versions: dict[str, str] = field(default_factory=dict)

    printed: list[str] = field(default_factory=list)
    """The first line that the worker printed, each time that it was started and printed any."""


def command(framework: str, python: str = sys.executable) -> list[str]:
    """The worker's command line, but for its two directories."""
    return [python, "-X", "faulthandler", "-m", "unified_clip.parity.worker", framework]


def run(
    worker: Sequence[str],
    runs: Sequence[Run],
    timeout: float,
    progress: Callable[[int], None] = lambda count: None,
    memory: int | None = None,
) -> Found:
    """All runs on one framework. `timeout`: seconds without a new result; `progress` is told of each batch of them;
    `memory`: bytes that the worker may take."""
    found = Found()
    remaining = dict(enumerate(runs))
    starts = 0
    while remaining:
        starts += 1
        failure, started = _start(worker, runs, remaining, timeout, progress, Watch(memory), found)
        if remaining:
            failure = failure or Failure("unreadable", "the worker ended without a result for this case")
            hopeless = starts == STARTS or not started
            for number in list(remaining) if hopeless else [min(remaining)]:
                mode, case = remaining.pop(number)
                found.results[mode, case.name] = failure
        elif failure:
            mode, case = runs[-1]
            found.results[mode, case.name] = dataclasses.replace(
                failure, detail=f"after the last case: {failure.detail}"
            )
    return found


def _start(
    worker: Sequence[str],
    runs: Sequence[Run],
    remaining: dict[int, Run],
    timeout: float,
    progress: Callable[[int], None],
    watch: Watch,
    found: Found,
) -> tuple[Failure | None, bool]:
    """Start a worker once; move what it finished from `remaining` to `found`. How it failed; whether it got going."""
    with tempfile.TemporaryDirectory(prefix="unified_clip_parity_") as directory:
        job, out, package = Path(directory, "job"), Path(directory, "out"), Path(directory, "package")
        job.mkdir()
        out.mkdir()
        write_job(job, remaining)
        search = _search_path(worker[0], package)
        failure = _run_once([*worker, str(job), str(out)], search, out, timeout, progress, watch)
        found.printed += filter(None, [watch.printed])
        start_failure = _read_start(out, found)
        for number in [number for number in remaining if (out / f"{number}.json").exists()]:
            found.results[runs[number].mode, runs[number].case.name] = _read_result(out, number)
            del remaining[number]
        return start_failure or failure, (out / "worker.json").exists() and not start_failure


def write_job(job: Path, runs: Mapping[int, Run]) -> None:
    """What the worker reads: runs by their numbers; cases and lists of gradients that they share are stored once."""
    stored: dict[str, Dense] = {}
    listings: dict[str, Any] = {}
    cases: dict[str, Any] = {}
    for case in {run.case.name: run.case for run in runs.values()}.values():
        if case.gradients_name not in listings:
            packed, listings[case.gradients_name] = tensors.pack(case.gradients_name, case.gradients)
            stored |= packed
        cases[case.name] = {
            "call": case.call_name,
            "arguments": case.arguments,
            "manner": dataclasses.asdict(case.manner),
            "update": case.update,
            "raises": bool(case.raises),
            "gradients": case.gradients_name,
        }
    described = [{"number": number, "mode": run.mode, "case": run.case.name} for number, run in runs.items()]
    tensors.save(job / "gradients.safetensors", stored)
    text = json.dumps({"runs": described, "cases": cases, "gradients": listings})
    (job / "job.json").write_text(text, encoding="utf-8")


def _search_path(python: str, directory: Path) -> str:
    """Where the worker finds this package, and not one that happens to lie in the working directory.

    Another interpreter must not find what else is installed beside it: it gets a directory with nothing else in it.
    """
    if python == sys.executable:
        return str(PACKAGE.parent)
    shutil.copytree(PACKAGE, directory / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return str(directory)


def _run_once(
    arguments: Sequence[str],
    search: str,
    out: Path,
    timeout: float,
    progress: Callable[[int], None],
    watch: Watch,
) -> Failure | None:
    with tempfile.TemporaryFile() as errors:
        try:
            process = _workers.start(arguments, search, errors, subprocess.PIPE)
        except OSError as error:
            return Failure("missing", f"{arguments[0]} cannot be started: {error.strerror}")
        where = ""
        try:
            watch.begin(process)
            code = _wait(process, out, timeout, progress)
            if code is None:
                where = _workers.where_it_is(process, errors)
        finally:
            _workers.end(process)
            watch.end()
        if watch.is_over:
            return Failure("out of memory", watch.told)
        if code is None:
            return Failure("timed out", f"no new result in {timeout:g} seconds; {where or _workers.last_lines(errors)}")
        return None if code == 0 else _crashed(code, errors)


def _crashed(code: int, errors: IO[bytes]) -> Failure:
    said = [line for line in _workers.lines_at_end(errors) if OUT_OF_MEMORY.search(line)]
    ended = _workers.how_it_ended(code, errors)
    return Failure("out of memory", f"{said[-1].strip()}; {ended}") if said else Failure("crashed", ended)


def _wait(process: subprocess.Popen[bytes], out: Path, timeout: float, progress: Callable[[int], None]) -> int | None:
    """The exit status; None if there was no new result for too long."""
    done, since = 0, time.monotonic()
    while True:
        try:
            code: int | None = process.wait(LOOK_EVERY)
        except subprocess.TimeoutExpired:
            code = None
        count = sum(entry.name[0].isdigit() and entry.name.endswith(".json") for entry in os.scandir(out))
        if count > done:
            progress(count - done)
            done, since = count, time.monotonic()
        if STOP.is_set():
            raise KeyboardInterrupt
        if code is not None or time.monotonic() - since > timeout:
            return code


def _read_start(out: Path, found: Found) -> Failure | None:
    """Take the versions; a failure if the framework is missing."""
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


def _read_result(out: Path, number: int) -> Outcome | Failure:
    try:
        data = json.loads((out / f"{number}.json").read_text(encoding="utf-8"))
        if "unreadable" in data:
            said = str(data["unreadable"])
            return Failure("out of memory" if OUT_OF_MEMORY.search(said) else "unreadable", said)
        stored = tensors.load(out / f"{number}.safetensors")
        parts = {
            part: [densify(gradient) for gradient in tensors.unpack(part, stored, data.pop(part))]
            for part in ("norm", "gradients", "update")
            if part in data
        }
        outcome = Outcome(parts.get("norm", [None])[0], parts.get("gradients"), parts.get("update"), **data)
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
