"""Run a command, record its Python processes, and merge their parts into one recording."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from .._command import UsageError, reject
from .._command.statuses import NOT_EXECUTABLE, NOT_FOUND
from .._kit import atomic_files
from .._kit.atomic_files import LARGEST_REPORT, FileError
from .._kit.display import complain, flush_or_discard
from ..recorder.lines import header
from ..recorder.process import NOTES, PART, STARTED
from ..recorder.startup import sitecustomize
from .lines import without_calls

VERSION = sys.modules["unified_clip"].__version__

FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def record_command(file: Path, command: Sequence[str], *, norms: bool, force: bool = False) -> int:
    """If a signal ended the command, the same signal ends this process."""
    print(end="", flush=True)  # lines of this process come before the command's lines
    parts = file.with_name(f"{file.name}.parts")
    is_new = _create(file, parts, force=force)
    status = _run(command, _environment(parts, norms))
    if isinstance(status, OSError):
        shutil.rmtree(parts)
        if is_new:
            file.unlink()
        problem = f"{command[0]} cannot be started: {status.strerror}"
        reject(
            UsageError(
                f"{problem}. Correct the command, for example: unified-clip record run.jsonl -- python train.py",
                "UC504",
            )
        )
        return NOT_FOUND if isinstance(status, FileNotFoundError) else NOT_EXECUTABLE
    try:
        notes = merge(parts, file, header(VERSION, norms=norms), status)
    except FileError:
        if is_new:
            file.unlink()
        raise
    shutil.rmtree(parts, ignore_errors=True)
    try:
        for note in notes:
            complain(note)
    except OSError:  # nobody reads stderr any more, as in `2>&1 >/dev/null | head -1`
        flush_or_discard()
    if status < 0:
        _end_by_signal(-status)
    return status


def _create(file: Path, parts: Path, *, force: bool) -> bool:
    """Return whether the file is new. A file that exists is replaced only when the command has ended."""
    is_new = not os.path.lexists(file)  # also a link to a missing file
    if not is_new and not (force and file.is_file()):
        removal = ", or replace this one with --force" if file.is_file() else ""
        raise UsageError(f"{file} exists. Pass another file{removal}.", "UC206")
    if os.path.lexists(parts):
        problem = f"{parts} exists. Another run writes to this directory, or a killed run left it behind"
        raise UsageError(
            f"{problem}. Remove the directory if no run writes to it. Otherwise, pass another file.", "UC206"
        )
    try:
        parts.mkdir()
        try:
            file.touch(exist_ok=not is_new)
        except OSError:
            parts.rmdir()
            raise
    except OSError as error:
        raise atomic_files.unwritable(file, error) from None
    return is_new


def _environment(parts: Path, norms: bool) -> Mapping[str, str]:
    module = "unified_clip.recording.recorder"
    values = {"directory": str(parts.absolute()), "norms": norms, "version": VERSION, "module": module}
    path = os.pathsep.join(filter(None, [str(sitecustomize.HERE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, sitecustomize.VARIABLE: json.dumps(values)}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int | OSError:
    """Return the exit status, or -N for signal N, or the error if the command cannot be started."""
    with _forwarding() as processes:
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            return error
        processes.append(process)
        return process.wait()


@contextmanager
def _forwarding() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Pass signals on to the processes in the yielded list. Do not pass on Ctrl-C from a
    terminal, because the terminal itself sends Ctrl-C to all its processes."""
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for process in processes:
            if number != signal.SIGINT or not _has_terminal():
                process.send_signal(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", *FORWARDED) if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # nohup sets SIG_IGN
                signal.signal(number, forward)
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _end_by_signal(number: int) -> None:
    flush_or_discard()
    with suppress(OSError):  # SIGKILL and SIGSTOP have no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# -- the parts


@dataclass(frozen=True)
class RecordingPart:
    header: dict[str, Any]
    lines: Sequence[str]
    incomplete_line: bool

    @property
    def order(self) -> tuple[float, str]:
        rank = self.header["process"]["rank"]
        return (float("inf") if rank is None else rank), self.header["started"]

    @property
    def has_events(self) -> bool:
        return any('"warning": ' not in line for line in self.lines)


def merge(directory: Path, file: Path, header: dict[str, Any], status: int) -> list[str]:
    """Merge the recordings of all processes. Return messages for the user."""
    parts = sorted(filter(None, map(_read_part, sorted(directory.glob(f"*{PART}")))), key=lambda part: part.order)
    # Processes without an event are listed only if no process has one: often they only start the others.
    parts = [part for part in parts if part.has_events] or parts
    merged = dict(parts[0].header if parts else header)
    merged.pop("process", None)
    merged["exit_status"] = status
    merged["processes"] = [{**part.header["process"], "incomplete_line": part.incomplete_line} for part in parts] or [
        json.loads(atomic_files.read_text(path)) for path in sorted(directory.glob(f"*{STARTED}"))
    ]
    lines = [json.dumps(merged)]
    for number, part in enumerate(parts):
        mark = f'{{"process": {number}, ' if len(parts) > 1 else "{"
        lines += [f"{mark}{line[1:]}" for line in part.lines]
    text, notes = "\n".join([*lines, ""]), _notes(directory)
    try:
        atomic_files.write(file, text)
    except FileError:  # often the disk is full: the parts take the space, and are in memory
        shutil.rmtree(directory)
        atomic_files.write(file, text)
    if not any('"call": ' in line for part in parts for line in part.lines):
        notes.append(f"{file}: {without_calls(status, merged['processes'])}")
    return notes


def _read_part(path: Path) -> RecordingPart | None:
    whole, _, rest = atomic_files.read_text(path, LARGEST_REPORT, errors="replace").rpartition("\n")
    if not whole:
        return None
    first, *lines = whole.split("\n")
    return RecordingPart(json.loads(first), lines, bool(rest))


def _notes(directory: Path) -> list[str]:
    notes = [
        json.loads(line)
        for path in sorted(directory.glob(f"*{NOTES}"))
        for line in atomic_files.read_text(path, LARGEST_REPORT, errors="replace").splitlines()
    ]
    return list(dict.fromkeys(notes))
