"""Record a Python process to a file, where unified_clip itself cannot run."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import HOOKS_OF, hooks_of
from .guard import print_instead
from .hooks import HOOKS, OUTPUT, RecordingHook
from .lines import header, write_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    from .guard import Hook

PART, NOTES, FAILED, STARTED = ".part", ".notes", ".failed", ".started"
"""Suffixes of the files with the recorded lines, the warnings, the reason why a process was not recorded, and the
description of a process whose recording started."""

RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def describe_process() -> dict[str, Any]:
    rank, size = _rank()
    arguments = getattr(sys, "orig_argv", [sys.executable, *sys.argv])[1:]  # since Python 3.10
    return {"rank": rank, "ranks": size, "pid": os.getpid(), "arguments": arguments}


def _rank() -> tuple[int | None, int | None]:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for names in RANKS:
        values = [os.environ.get(name, "") for name in names]
        if all(map(str.isdecimal, values)):
            return int(values[0]), int(values[1])
    return None, None


class FileRecording:
    """The recording of one process. A forked process begins its own file."""

    gradients_every, stores_results, stores_next = None, False, False

    def __init__(self, path: Path, norms: bool, version: str) -> None:
        """path: A directory, or a file for a single process."""
        self._path, self.norms, self._version = path, norms, version
        self.loss_scale: Callable[[], float | None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._file: FileIO | None = None
        self._has_ended, self._calls = False, 0
        self._said: set[str] = set()

    def after_fork(self) -> None:
        self._begin()
        self._has_ended = not self._path.is_dir()  # the parent process owns the only file

    def add_call(self, fields: dict[str, Any], *_: Any) -> None:
        OUTPUT.recorded_calls += 1
        scale = None if self.loss_scale is None else self.loss_scale()
        with self._lock:
            self._calls += 1
            scaled = {} if scale is None else {"loss_scale": scale}
            self._write({"step": self._calls, **fields, **scaled, "seconds": None})

    def add_line(self, fields: dict[str, Any]) -> None:
        with self._lock:
            self._write({"step": max(self._calls, 1), **fields})

    def log(self, **numbers: float) -> None:
        self.add_line({"logged": {name: float(value) for name, value in numbers.items()}})

    def warn(self, message: str) -> None:
        """`unified-clip record` prints all warnings when the command has ended."""
        with self._lock:
            if message in self._said:
                return
            self._said.add(message)
            self.add_line({"warning": message})
            if not self._path.is_dir():
                with suppress(Exception):  # such as a closed stderr
                    print(f"unified_clip: {message}", file=sys.stderr)
                return
            with (self._path / f"{os.getpid()}{NOTES}").open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(message) + "\n")

    def end(self) -> None:
        with self._lock:
            if self._file is None and not self._has_ended and not self._path.is_dir():
                what = "no clip and no step ran that docs/recording.md lists"
                self.warn(f"{self._path}: nothing was recorded, because {what}")
            self._has_ended = True
            if self._file is not None:
                self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self._has_ended:
            return
        try:
            if self._file is None:
                first, path = header(self._version, norms=self.norms), self._path
                if path.is_dir():
                    path, first["process"] = path / f"{time.time_ns():020}-{os.getpid()}{PART}", describe_process()
                self._file = path.open("xb", buffering=0)
                write_line(self._file, first)
            write_line(self._file, line)
        except OSError as error:  # the disk is full
            self._has_ended = True
            self.end()
            print_instead(f"the recording ends here, because the file cannot be written: {error}", error)


def start_in_directory(directory: str, norms: bool, version: str) -> None:
    """Record this process, which has imported a framework, and the processes that it forks."""
    Path(directory, f"{os.getpid()}{STARTED}").write_text(json.dumps(describe_process()), encoding="utf-8")
    start(FileRecording(Path(directory), norms, version))


def start(recording: FileRecording) -> None:
    def on_failure(hook: Hook, error: Exception) -> bool:
        recording.warn(hook.message(error))
        return True

    HOOKS.on_failure, HOOKS.installers = on_failure, {name: partial(_install, name) for name in HOOKS_OF}
    OUTPUT.recordings, OUTPUT.norms = (recording,), recording.norms
    HOOKS.switch(True)
    sys.modules[str(__package__)].log = recording.log  # type: ignore[attr-defined]  # for scripts
    atexit.register(RecordingHook("end", "the end of the training").guarded(recording.end))
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=recording.after_fork)


def _install(framework: str) -> None:
    import_module(f".{hooks_of(framework)}", __package__).install_alone()
