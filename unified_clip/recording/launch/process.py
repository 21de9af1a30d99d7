"""Record each process of a command to a separate file."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from io import FileIO
from pathlib import Path
from typing import Any

from ..._kit import atomic_files
from ..._kit.display import complain
from ..dispatcher import DISPATCHER
from ..lines import write_line
from ..recorder import Recording

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


def start(directory: str, norms: bool) -> None:
    atomic_files.write(Path(directory, f"{os.getpid()}{STARTED}"), json.dumps(_process()))
    recording = ProcessRecording(Path(directory), norms)
    DISPATCHER.add(recording)
    atexit.register(recording.end)


class ProcessRecording(Recording):
    """Each forked process writes its own file."""

    records_forks = True

    def after_fork(self) -> None:
        super().after_fork()
        self._step, self._by_calls = 0, True
        self._stored.clear()
        self._warnings.clear()

    def _opened(self) -> FileIO | None:
        if self._file is None and not self._has_ended:
            path = self.path / f"{time.time_ns():020}-{os.getpid()}{PART}"
            self._file = self._open(path, {"process": _process()})
            for message in self._warnings:
                write_line(self._file, {"step": 1, "warning": message})
        return self._file

    def _warn(self, message: str) -> None:
        """Write the warning to a file. `unified-clip record` prints all warnings when the command has ended."""
        if message not in self._warnings:
            self.on_warning(message)
            try:
                with (self.path / f"{os.getpid()}{NOTES}").open("a", encoding="utf-8") as notes:
                    notes.write(json.dumps(message) + "\n")
            except OSError:  # the disk is full
                complain(message)


def _process() -> dict[str, Any]:
    rank, size = _rank()
    return {"rank": rank, "ranks": size, "pid": os.getpid(), "arguments": sys.orig_argv[1:]}


def _rank() -> tuple[int | None, int | None]:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for names in RANKS:
        values = [os.environ.get(name, "") for name in names]
        if all(map(str.isdecimal, values)):
            return int(values[0]), int(values[1])
    return None, None
