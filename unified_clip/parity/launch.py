"""Start a framework's worker, and bring back an outcome for every case, whatever becomes of the process.

Frameworks live apart: importing TensorFlow before Paddle in one process is a segmentation fault. A worker that dies,
hangs or leaves something unreadable is a verdict on the case it was at; it is started again for the cases after it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from . import tensors
from .cases import Case
from .tensors import Dense, UnreadableError, densify

HOST, DEVICE, NATIVE = "host", "device", "native"
"""What a worker runs: ours on either path, or the framework's own functions."""

STARTS = 4
"""How often a worker is started before the remaining cases share the verdict of the last one."""

ENVIRONMENT = {
    HOST: {"UNIFIED_CLIP_PATH": ""},
    DEVICE: {"UNIFIED_CLIP_PATH": "framework"},
    NATIVE: {},
}
ROOT = str(Path(__file__).parents[2])
"""Where this package is: the worker imports the same one, and not one that happens to lie in the working directory."""

CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Both paths are compared on the CPU: only there is a tensor on the host path on every framework."""


@dataclass(frozen=True)
class Failure:
    """No result, and why."""

    kind: Literal["crashed", "timed out", "missing", "unreadable"]
    detail: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a function returned, as dense tensors."""

    norm: Dense | None = None
    gradients: list[Dense | None] | None = None

    name: str = ""
    """The framework's own function; '' where it has none like it."""


@dataclass(eq=False)
class Found:
    """What came of one worker."""

    results: dict[str, Outcome | Failure] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def command(framework: str) -> list[str]:
    """The worker's command line, but for its two directories."""
    return [sys.executable, "-X", "faulthandler", "-m", "unified_clip.parity.worker", framework]


def run(worker: Sequence[str], cases: Sequence[Case], mode: str, timeout: float) -> Found:
    """All cases on one framework; `timeout` seconds for each start of the worker."""
    found = Found()
    remaining = dict(enumerate(cases))
    starts = 0
    while remaining:
        starts += 1
        failure, started = _start(worker, cases, remaining, mode, timeout, found)
        if remaining:
            failure = failure or Failure("unreadable", "the worker ended without a result for this case")
            hopeless = starts == STARTS or not started
            for number in list(remaining) if hopeless else [min(remaining)]:
                found.results[remaining.pop(number).name] = failure
        elif failure:
            late = f"after the last case: {failure.detail}"
            found.results[cases[-1].name] = dataclasses.replace(failure, detail=late)
    return found


def _start(
    worker: Sequence[str], cases: Sequence[Case], remaining: dict[int, Case], mode: str, timeout: float, found: Found
) -> tuple[Failure | None, bool]:
    """Start a worker once; move what it finished from `remaining` to `found`. How it failed; whether it got going."""
    with tempfile.TemporaryDirectory(prefix="unified_clip_parity_") as directory:
        job, out = Path(directory, "job"), Path(directory, "out")
        job.mkdir()
        out.mkdir()
        write_job(job, remaining, mode)
        failure = _run_once([*worker, str(job), str(out)], mode, timeout)
        start_failure = _read_start(out, found)
        for number in [number for number in remaining if (out / f"{number}.json").exists()]:
            found.results[cases[number].name] = _read_result(out, number)
            del remaining[number]
        return start_failure or failure, (out / "worker.json").exists() and not start_failure


def write_job(job: Path, cases: Mapping[int, Case], mode: str) -> None:
    """What the worker reads: cases by their numbers; a list of gradients that several cases share is stored once."""
    stored: dict[str, Dense] = {}
    listings: dict[str, Any] = {}
    for case in cases.values():
        if case.gradients_name not in listings:
            packed, listings[case.gradients_name] = tensors.pack(case.gradients_name, case.gradients)
            stored |= packed
    described = [
        {"number": number, "call": case.call_name, "arguments": case.arguments, "gradients": case.gradients_name}
        for number, case in cases.items()
    ]
    tensors.save(job / "gradients.safetensors", stored)
    text = json.dumps({"cases": described, "gradients": listings, "mode": mode})
    (job / "job.json").write_text(text, encoding="utf-8")


def _run_once(arguments: Sequence[str], mode: str, timeout: float) -> Failure | None:
    search = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | CPU_ONLY | ENVIRONMENT[mode] | {"PYTHONPATH": search, "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        return Failure("timed out", f"no end after {timeout:g} seconds; {_last_lines(errors)}")
    if process.returncode == 0:
        return None
    return Failure("crashed", f"{_how_it_ended(process.returncode)}; {_last_lines(errors)}")


def _how_it_ended(code: int) -> str:
    if code > 0:
        return f"exit status {code}"
    return f"signal {-code} ({signal.Signals(-code).name})"


def _last_lines(errors: bytes, count: int = 6) -> str:
    """The end of what a worker wrote to stderr; of faulthandler's report the beginning, where the innermost call is."""
    lines = [line[:300] for line in errors.decode(errors="replace").splitlines() if line.strip()]
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    chosen = lines[fatal[-1] :][:count] if fatal else lines[-count:]
    return "its last lines: " + " | ".join(chosen) if chosen else "it wrote nothing to stderr"


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
        return Failure("unreadable", f"{path.name}: {error}")
    return None


def _read_result(out: Path, number: int) -> Outcome | Failure:
    try:
        data = json.loads((out / f"{number}.json").read_text(encoding="utf-8"))
        if "error" in data:
            return Failure("crashed", str(data["error"]))
        stored = tensors.load(out / f"{number}.safetensors")
        parts = {
            part: [densify(gradient) for gradient in tensors.unpack(part, stored, data[part])]
            for part in ("norm", "gradients")
            if part in data
        }
        return Outcome(parts.get("norm", [None])[0], parts.get("gradients"), str(data.get("name", "")))
    except (UnreadableError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        return Failure("unreadable", f"{type(error).__name__}: {error}")
