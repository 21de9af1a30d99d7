"""Read what a worker prints, so that its pipe never fills. Keep the first line, for a note in the report."""

from __future__ import annotations

import subprocess
import threading
from typing import IO

KEPT = 1 << 12
"""Bytes that are kept. The rest is read and dropped."""

SHOWN = 80
"""Characters that a note shows."""


class Printed:
    """Read a worker's standard output in a thread, from `begin` to `end`."""

    def __init__(self) -> None:
        self._output = b""
        self._threads: list[threading.Thread] = []

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Start reading. The standard output of the process must be a pipe."""
        thread = threading.Thread(target=self._read, args=[process.stdout], daemon=True)
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        """Stop waiting for output once the worker has ended. A process that it started may keep the pipe open."""
        for thread in self._threads:
            thread.join(1.0)

    @property
    def first_line(self) -> str:
        """The first line that is not blank, escaped and shortened; '' if there is none."""
        lines = self._output.decode(errors="replace").split("\n")
        first = next((line for line in lines if line.strip()), "")
        return repr(first[:SHOWN] + "..." * (len(first) > SHOWN)) if first else ""

    def _read(self, stdout: IO[bytes]) -> None:
        with stdout:
            while chunk := stdout.read1(1 << 16):  # type: ignore[attr-defined]
                self._output += chunk[: KEPT - len(self._output)]
