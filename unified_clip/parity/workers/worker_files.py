"""The files that the parity suite exchanges with a worker: the work items, and their results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..._kit import atomic_files
from ...tensors.files import memmap
from ...tensors.types import densify
from ..call_outcome import OUT_OF_MEMORY, CallOutcome, Failure
from ..suite.case import Case

RETRY_ADVICE = (
    "Run the suite again. If the error remains, check that the framework's Python has the same version of "
    "unified_clip as the Python of this command"
)


class WorkItem(NamedTuple):
    mode: str
    case: Case


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
            "rule": case.call.described(case.arguments),
            **case.options.model_dump(),
        }
        for name, case in cases.items()
    }
    runs = [{"number": number, "mode": item.mode, "case": item.case.name} for number, item in items.items()]
    text = json.dumps({"runs": runs, "cases": described, "gradients": entries})
    atomic_files.write(job / "job.json", text)


def read_start(out: Path, versions: dict[str, str]) -> Failure | None:
    path = out / "worker.json"
    if not path.exists():
        return None
    try:
        data = json.loads(atomic_files.read_text(path))
        if "missing" in data:
            return Failure("missing", str(data["missing"]))
        versions.update(data["versions"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Failure(
            "unreadable", f"the file {path.name} of the framework's process cannot be read: {error}. {RETRY_ADVICE}"
        )
    return None


def read_current(out: Path) -> list[int]:
    with suppress(OSError, ValueError):
        *_, last = atomic_files.read_text(out / "current.jsonl", None).splitlines()
        numbers: list[int] = json.loads(last)
        return numbers
    return []


def read_result(out: Path, number: int) -> CallOutcome | Failure:
    try:
        data = json.loads(atomic_files.read_text(out / f"{number}.json", None))
        if "missing" in data:
            return Failure("missing", str(data["missing"]))
        if "not available" in data:
            return Failure("not available", str(data["not available"]))
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
        return Failure("unreadable", f"the result of the framework's process cannot be read: {reason}. {RETRY_ADVICE}")
