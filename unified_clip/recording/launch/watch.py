"""Show norms, thresholds and clipped steps while a command runs: `unified-clip record --watch`.

The view occupies the last lines of the terminal. The command's output scrolls above the view.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ..._display import flush_or_discard, safe
from .process import PART

INTERVAL = 0.5
"""Seconds between two drawings on a terminal."""

PLAIN_INTERVAL = 30.0
"""Seconds between two lines if stderr is not a terminal."""

RECENT = 100

MOST_ROWS = 8

SHARE = 3
"""The view needs a terminal with at least SHARE times as many lines."""

COLUMNS = ("rank", "step", "norm", "threshold", "clipped", f"last {RECENT}", "loss", "learning rate")


@dataclass
class WatchedProcess:
    path: Path
    offset: int = 0
    rank: int | None = None
    step: int = 0
    optimizer_steps: int = 0
    norm: str = "-"
    threshold: str = "-"
    calls: int = 0
    clipped: int = 0
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    loss: str = "-"
    learning_rate: str = "-"

    def read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the merged file will be checked when it is read
                self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        if "process" in line:
            self.rank = line["process"]["rank"]
        elif "logged" in line:
            self.loss = ", ".join(f"{_number(value)} ({name})" for name, value in line["logged"].items())
            self.loss = _number(line["logged"]["loss"]) if "loss" in line["logged"] else self.loss
        elif "optimizer" in line:
            self.optimizer_steps += 1
            self.learning_rate = _number(line["settings"].get("lr"))
            self.loss = _number(line["losses"][-1]) if line.get("losses") else self.loss
        elif "rule" in line:
            self._take_call(line)

    def _take_call(self, line: dict[str, Any]) -> None:
        self.step = line["step"]
        limits = line["threshold"] if isinstance(line["threshold"], list) else [line["threshold"]]
        self.norm, self.threshold = _number(line["norm"]), " to ".join(map(_number, limits))
        if line["clipped"] is not None:
            self.calls += 1
            self.clipped += bool(line["clipped"])
            self.recent.append(bool(line["clipped"]))

    def cells(self) -> list[str]:
        recent = f"{sum(self.recent) / len(self.recent):.0%}" if self.recent else "-"
        share = f"{self.clipped / self.calls:.0%} of {self.calls}" if self.calls else "-"
        rank, step = "-" if self.rank is None else f"{self.rank}", f"{self.optimizer_steps or self.step}"
        return [rank, step, self.norm, self.threshold, share, recent, self.loss, self.learning_rate]


def _number(value: Any) -> str:
    if isinstance(value, list):
        finite = [each for each in value if not isinstance(each, str)]
        return f"{_number(max(finite, default=None))} (largest of {len(value)})"
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


class Watcher:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[Path, WatchedProcess] = {}

    def read(self) -> list[WatchedProcess]:
        for path in sorted(self._directory.glob(f"*{PART}")):
            with suppress(OSError):
                self._processes.setdefault(path, WatchedProcess(path)).read_on()
        return sorted(self._processes.values(), key=lambda each: (each.rank is None, each.rank or 0))


def plain_lines(processes: Sequence[WatchedProcess]) -> list[str]:
    lines = []
    for each in processes[:MOST_ROWS]:
        named = zip(COLUMNS, each.cells(), strict=True)
        lines.append(safe("unified-clip: " + ", ".join(f"{name} {text}" for name, text in named if text != "-")))
    if len(processes) > MOST_ROWS:
        lines.append(f"unified-clip: {len(processes) - MOST_ROWS} more processes")
    return lines


def table_lines(processes: Sequence[WatchedProcess], size: os.terminal_size) -> list[str]:
    """An empty list means that the terminal is too small."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, no_wrap=True)
    most = size.lines // SHARE - 1  # the table has a line of titles
    shown = len(processes) if len(processes) <= min(most, MOST_ROWS) else min(most - 1, MOST_ROWS)
    if most < 1 or (processes and shown < 1):
        return []
    for each in processes[:shown]:
        table.add_row(*map(safe, each.cells()))
    console = Console(stderr=True, width=size.columns, highlight=False)
    with console.capture() as capture:
        console.print(table)
    others = len(processes) - shown
    more = [f"{others} more process{'es' if others > 1 else ''}"] if others else []
    waiting = [] if processes else ["waiting for the first clip call"]
    return [*capture.get().splitlines(), *more, *waiting]


class Terminal:
    """The last lines of a terminal. The output of the command scrolls in the region above these lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines, self._size = 0, os.terminal_size((0, 0))

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines at the bottom of the terminal. If the terminal is too small, only erase the previous lines.

        OSError: The stream is not a terminal, or was closed.
        """
        size = os.get_terminal_size(self._stream.fileno())
        height = size.lines
        if not lines or height < SHARE * len(lines):
            self.release()
            return
        if (len(lines), size) != (self._lines, self._size):
            self.release()
            self._reserve(len(lines), height)
            self._lines, self._size = len(lines), size
        rows = (f"\x1b[{height - len(lines) + 1 + row};1H\x1b[2K{line}" for row, line in enumerate(lines))
        self._write(f"\x1b7{''.join(rows)}\x1b8")

    def _reserve(self, count: int, height: int) -> None:
        newlines = "\n" * count
        self._write(f"{newlines}\x1b7\x1b[1;{height - count}r\x1b8\x1b[{count}A")

    def release(self) -> None:
        if self._lines:
            height = self._size.lines
            self._write(f"\x1b7\x1b[r\x1b[{height - self._lines + 1};1H\x1b[J\x1b8")
            self._lines = 0

    def _write(self, text: str) -> None:
        self._stream.flush()
        os.write(self._stream.fileno(), text.encode())


def has_live_view() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextmanager
def watching(directory: Path) -> Iterator[None]:
    if sys.stderr is None:
        yield
        return
    watcher, ended = Watcher(directory), threading.Event()
    thread = threading.Thread(target=_show, args=(watcher, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            for line in plain_lines(watcher.read()):
                print(line, file=sys.stderr, flush=True)
        except OSError:
            flush_or_discard()


def _show(watcher: Watcher, ended: threading.Event) -> None:
    if not has_live_view():
        _print_lines(watcher, ended)
        return
    terminal = Terminal(sys.stderr)
    try:
        while not ended.wait(INTERVAL):
            terminal.draw(table_lines(watcher.read(), os.get_terminal_size(sys.stderr.fileno())))
    except OSError:  # the terminal was closed
        return
    finally:
        with suppress(OSError):
            terminal.release()


def _print_lines(watcher: Watcher, ended: threading.Event) -> None:
    before: list[str] = []
    until = time.monotonic() + PLAIN_INTERVAL
    while not ended.wait(max(0.0, until - time.monotonic())):
        until += PLAIN_INTERVAL
        lines = plain_lines(watcher.read())
        if lines != before:
            with suppress(OSError):
                print("\n".join(lines), file=sys.stderr, flush=True)
        before = lines
