"""Print norms, thresholds and clipped steps while a command runs: `unified-clip record --watch`."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._kit import atomic_files
from ..._kit.display import flush_or_discard, safe
from ...recorder.process import PART

INTERVAL = 30.0  # seconds

RECENT = 100

MOST_PROCESSES = 8

FIELDS = ("rank", "step", "norm", "threshold", "clipped", f"last {RECENT}", "loss", "learning rate")


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
        with atomic_files.reading(self.path) as file:
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

    def values(self) -> list[str]:
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


def lines_of(processes: Sequence[WatchedProcess]) -> list[str]:
    lines = []
    for each in processes[:MOST_PROCESSES]:
        named = zip(FIELDS, each.values(), strict=True)
        lines.append(safe("unified-clip: " + ", ".join(f"{name} {text}" for name, text in named if text != "-")))
    if len(processes) > MOST_PROCESSES:
        lines.append(f"unified-clip: {len(processes) - MOST_PROCESSES} more processes")
    return lines


@contextmanager
def watching(directory: Path) -> Iterator[None]:
    if sys.stderr is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_print_until, args=(ended, Watcher(directory)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _print_until(ended: threading.Event, watcher: Watcher) -> None:
    before: list[str] = []
    while not ended.wait(INTERVAL):
        if (lines := lines_of(watcher.read())) != before:
            _print(lines)
        before = lines
    _print(lines_of(watcher.read()))


def _print(lines: Sequence[str]) -> None:
    try:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
    except OSError:
        flush_or_discard()
