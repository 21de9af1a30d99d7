"""Look after a worker while it runs: end it where it takes too much memory, and keep the first that it prints."""

from __future__ import annotations

import subprocess
import threading
from typing import IO

from ... import _workers
from ..._limits import size_text
from . import memory

LOOK_EVERY = 0.1
"""Seconds between two looks at a worker."""

KEPT = 1 << 12
"""Bytes of what a worker prints that are kept; the rest is read and dropped, so that it fills neither pipe nor disk."""

SHOWN = 80
"""Characters of it that a note shows."""


class Watch:
    """What is seen of one worker, from `begin` to `end`."""

    def __init__(self, limit: int | None = None) -> None:
        self.used = 0
        """The most bytes that it was seen to use; 0 where there is no limit."""

        self._limit = limit if memory.IS_WATCHED else None
        self._printed = b""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def is_over(self) -> bool:
        """Whether it used more than the limit, and was ended."""
        return self._limit is not None and self.used > self._limit

    @property
    def told(self) -> str:
        """How much it used, in words."""
        return f"used {size_text(self.used)} of the {size_text(self._limit or 0)} given"

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """A worker's stdout has to be a pipe."""
        assert process.stdout
        self._threads = [threading.Thread(target=self._read, args=[process.stdout], daemon=True)]
        if self._limit is not None:
            self._threads.append(threading.Thread(target=self._weigh, args=[process], daemon=True))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """To be called when the worker has ended. What it started, and cannot be ended, may still hold the pipe."""
        self._ended.set()
        for thread in self._threads:
            thread.join(1.0)

    @property
    def printed(self) -> str:
        """The first line of what it printed, escaped and cut; '' for nothing."""
        lines = self._printed.decode(errors="replace").split("\n")
        first = next((line for line in lines if line.strip()), "")
        return repr(first[:SHOWN] + "..." * (len(first) > SHOWN)) if first else ""

    def _read(self, stdout: IO[bytes]) -> None:
        with stdout:
            while chunk := stdout.read1(1 << 16):  # type: ignore[attr-defined]
                self._printed += chunk[: KEPT - len(self._printed)]

    def _weigh(self, process: subprocess.Popen[bytes]) -> None:
        while not self._ended.wait(LOOK_EVERY) and not self.is_over:
            self.used = max(self.used, memory.used(process.pid))
        if self.is_over:
            _workers.stop(process)
