"""Record each process of a command to a separate file."""

from __future__ import annotations

import atexit
import json
import os
import time
from io import FileIO
from pathlib import Path

from ..._kit import atomic_files
from ..._kit.display import complain
from ...recorder.lines import write_line
from ...recorder.process import NOTES, PART, STARTED, describe_process
from ..dispatcher import DISPATCHER
from ..recorder import Recording


def start(directory: str, norms: bool) -> None:
    atomic_files.write(Path(directory, f"{os.getpid()}{STARTED}"), json.dumps(describe_process()))
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
            self._file = self._open(path, {"process": describe_process()})
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
