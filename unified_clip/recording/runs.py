"""Read the recordings that `unified-clip record` and `unified_clip.record` write."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .._kit import atomic_files
from .._kit.atomic_files import LARGEST_REPORT, FileError
from .._kit.coded_error import CodedError
from .lines import READABLE
from .recorded_run import (
    Header,
    LoggedNumbers,
    OptimizerStep,
    Parameter,
    RecordedCall,
    RecordedProcess,
    RecordedRun,
    RecordedWarning,
)  # fmt: skip

__all__ = [
    "Header", "LoggedNumbers", "OptimizerStep", "Parameter", "RecordedCall", "RecordedProcess", "RecordedRun",
    "RunError", "read",
]  # fmt: skip


class RunError(CodedError, code="UC501"):
    """A recording is invalid, or two recordings cannot be compared. The message contains the reason and the remedy."""


PASS = (
    "Pass a file from the command `unified-clip record` or the Python function unified_clip.record. To record a run, "
    "type `unified-clip record run.jsonl -- python train.py`."
)
AGAIN = "Record the run again."
UNKNOWN = "Correct the name of the field, or use the release of unified_clip that the first line of the file names."

CHUNK = 1 << 20  # characters


def read(
    path: str | Path, name: str | None = None, advance: Callable[[int], None] = lambda chunks: None
) -> RecordedRun:
    """Read a recording. An incomplete last line is ignored.

    Args:
        path: The file from `unified_clip.record` or `unified-clip record`.
        name: The name of the run in printed sentences. The default is the name of the file.
        advance: A function for a progress bar. `read` calls `advance(1)` after each part of the file.

    Returns:
        The recording, with the clip calls, optimizer steps and logged numbers of the first process. The field `others`
        contains the clip calls of the other processes.

    Raises:
        RunError: The file cannot be read, or is not a valid recording.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import unified_clip
        >>> from unified_clip.recording import runs
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory, "run.jsonl")
        ...     with unified_clip.record(path):
        ...         _ = unified_clip.clip_by_norm(np.array([3.0, 4.0], np.float32), 1.0)
        ...     recorded = runs.read(path)
        >>> [(line.call, line.threshold) for line in recorded.lines]
        [('clip_by_norm', 1.0)]
    """
    path = Path(path)
    (top, *lines), rest = _complete_lines(path)
    header = _read_header(path, top)
    by_process: dict[int, list[RecordedCall]] = {number: [] for number in range(max(1, len(header.processes)))}
    steps: list[OptimizerStep] = []
    logged: list[LoggedNumbers] = []
    warnings: dict[str, None] = {}
    done = 0
    for number, line in enumerate(lines, start=2):
        done += len(line)
        if done >= CHUNK:
            done -= CHUNK
            advance(1)
        data = _json(path, number, line)
        fields = {*data} if isinstance(data, dict) else set()
        if "warning" in fields:
            warnings[_validated(path, number, data, RecordedWarning).warning] = None
        elif "logged" in fields:
            logged.append(_validated(path, number, data, LoggedNumbers))
        elif "optimizer" in fields:
            step = _validated(path, number, data, OptimizerStep)
            calls = len(by_process.setdefault(step.process, []))
            if step.clips is not None:
                calls = (steps[-1].calls if steps else 0) + step.clips
            steps += [step.model_copy(update={"calls": calls})] * (step.process == 0)
        else:
            call = _validated(path, number, data, RecordedCall)
            if missing := call.missing_field():
                raise RunError(f"{path}, line {number}, {missing}: the field is missing. {AGAIN}")
            by_process.setdefault(call.process, []).append(call)
    first, *others = by_process.values()
    return RecordedRun(
        path=path,
        header=header,
        lines=first,
        incomplete_line=bool(rest) or any(process.incomplete_line for process in header.processes[:1]),
        name=name or path.name,
        recorded=len(first),
        others=tuple(map(tuple, others)),
        optimizer_steps=tuple(steps),
        logged=tuple(each for each in logged if each.process == 0),
        warnings=tuple(warnings),
    )


def _complete_lines(path: Path) -> tuple[list[str], str]:
    try:
        text = atomic_files.read_text(path, LARGEST_REPORT)
    except FileError as error:
        if error.errno == errno.EILSEQ:  # such as an .npz file
            raise RunError(f"{path} cannot be read: {error.strerror}, so it is not a recording. {PASS}") from None
        raise RunError(f"{error} {PASS}") from None
    whole, end, rest = text.rpartition("\n")
    if not end:
        raise RunError(
            f"{path} has no complete line. If a run still writes the file, wait until the run has ended. Otherwise, "
            "record again, or pass another file."
        )
    return whole.split("\n"), rest


def _read_header(path: Path, line: str) -> Header:
    data = _json(path, 1, line)
    if not isinstance(data, dict):
        raise RunError(f"{path}, line 1 is not the header of a recording. {PASS}")
    schema = data.get("schema")
    data = data if "unified_clip" in data else {}  # then the other fields do not matter
    if isinstance(schema, int) and schema not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise RunError(
            f"{path} has the format version (schema) {schema}, and this release reads {readable}. To read the "
            f"file, install unified_clip {data.get('unified_clip')} or a later release."
        )
    header: Header = _validated(path, 1, data, Header)
    return header


def _json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise RunError(f"{path}, line {number} is not JSON: {problem}. {PASS if number == 1 else AGAIN}") from None


def _validated(path: Path, number: int, data: Any, model: Any) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")  # explains a missing field, too
        place = "".join(f", {key}" for key in first["loc"] if key != "[key]")
        problem, remedy = first["msg"].removeprefix("Value error, "), PASS if number == 1 else AGAIN
        if first["type"] == "extra_forbidden":
            problem, remedy = "unknown field", UNKNOWN
        raise RunError(f"{path}, line {number}{place}: {problem}. {remedy}") from None
