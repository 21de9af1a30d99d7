"""Record a Python process to a file, where unified_clip itself cannot run."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import HOOKS_OF, hooks_of
from .guard import print_instead
from .hooks import HOOKS, OUTPUT, RecordingHook
from .lines import header, write_line

if TYPE_CHECKING:
    from io import FileIO

    from .guard import Hook

PART, NOTES, STARTED = ".part", ".notes", ".started"
"""Suffixes of the files with the recorded lines, the messages for the user, and the description of a process whose
recording started."""

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
    """The recording of a process: a file that begins with its first line. In a directory, each process has its own
    file, also a forked one."""

    gradients_every: int | None = None
    stores_results = False

    def __init__(self, path: Path, norms: bool, version: str, *, in_directory: bool = False) -> None:
        self.path, self.norms, self.in_directory, self._version = path, norms, in_directory, version
        self._file: FileIO | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # guards the file and the step
        self._has_ended = False
        self._step, self._by_calls = 0, True
        self._said: set[str] = set()

    def after_fork(self) -> None:
        self._begin()
        self._close()
        self._has_ended = not self.in_directory  # the parent process owns the only file

    @property
    def stores_next(self) -> bool:
        """Whether the next call stores its gradients."""
        return False

    def _take_step(self) -> int:
        with self._lock:
            self._step = max(self._step + self._by_calls, 1)
            return self._step

    def add_call(self, fields: dict[str, Any], *_: Any) -> None:
        OUTPUT.recorded_calls += 1
        scaled = OUTPUT.scale_fields()
        with self._lock:
            self._write({"step": self._take_step(), **fields, **scaled, "seconds": None})

    def add_line(self, fields: dict[str, Any]) -> None:
        with self._lock:
            self._write({"step": max(self._step, 1), **fields})

    def log(self, **numbers: float) -> None:
        self.add_line({"logged": {name: float(value) for name, value in numbers.items()}})

    def on_warning(self, message: str) -> None:
        with self._lock:
            if message not in self._said:
                self._said.add(message)
                self._write({"step": max(self._step, 1), "warning": message})

    def warn(self, message: str) -> None:
        """`unified-clip record` prints the warnings of all processes when the command has ended."""
        if message in self._said:
            return
        self.on_warning(message)
        try:
            if self.in_directory:
                with (self.path / f"{os.getpid()}{NOTES}").open("a", encoding="utf-8") as notes:
                    notes.write(json.dumps(message) + "\n")
                return
        except OSError:  # the disk is full
            pass
        print_instead(message)

    def on_failure(self, hook: Hook, error: Exception) -> None:
        self.warn(hook.message(error))

    def end(self) -> None:
        with self._lock:
            if self._file is None and not self._has_ended and not self.in_directory:
                what = "no clip and no step ran that docs/recording.md lists"
                self.warn(f"{self.path}: nothing was recorded, because {what}")
            self._end_file()

    def _end_file(self) -> None:
        with self._lock:
            self._has_ended = True
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, *lines: dict[str, Any]) -> None:
        with self._lock:
            if self._has_ended:
                return
            try:
                file = self._file or self._open("xb")
                for line in lines:
                    write_line(file, line)
            except OSError as error:
                self._end_file()
                remedy = "Earlier calls are kept. Free disk space or choose another path, and record again."
                self.warn(
                    f"{self.path}: the recording ends here, because the file cannot be written: {error}. {remedy}"
                )

    def _open(self, mode: str) -> FileIO:
        first, path = header(self._version, norms=self.norms, gradients_every=self.gradients_every), self.path
        if self.in_directory:
            path, first["process"] = path / f"{time.time_ns():020}-{os.getpid()}{PART}", describe_process()
        file: FileIO = path.open(mode, buffering=0)  # type: ignore[assignment]  # of a binary mode
        try:
            write_line(file, first)
        except OSError:
            file.close()
            path.unlink()
            raise
        self._file = file
        return file


def begin_in(directory: Path) -> None:
    """Describe this process, for a run without any line."""
    (directory / f"{os.getpid()}{STARTED}").write_text(json.dumps(describe_process()), encoding="utf-8")


def start_in_directory(directory: str, norms: bool, version: str) -> None:
    """Record this process, which has imported a framework, and the processes that it forks."""
    begin_in(Path(directory))
    start(FileRecording(Path(directory), norms, version, in_directory=True))


def start(recording: FileRecording) -> None:
    HOOKS.installers, OUTPUT.recordings = {name: partial(_install, name) for name in HOOKS_OF}, (recording,)
    HOOKS.switch(True)
    sys.modules[str(__package__)].log = recording.log  # type: ignore[attr-defined]  # for scripts
    atexit.register(RecordingHook("end", "the end of the training").guarded(recording.end))
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=recording.after_fork)


def _install(framework: str) -> None:
    import_module(f".{hooks_of(framework)}", __package__).install()
