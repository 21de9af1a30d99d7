"""Measure all frameworks, one after the other, each in its own process."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import unified_clip

from .. import _workers
from .._coded_error import CodedError
from .._native import KERNELS
from .._scratch import Scratch
from . import cuda
from .lists import DTYPES, GROWTH, LISTS
from .pairs import FRAMEWORKS, THREADS


class OptionsError(CodedError, code="UC203"):
    """An option has an invalid value. The message contains the option and the remedy."""


DEVICES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "cuda": {"frameworks": ["torch"], "lists": list(cuda.LISTS), "growth": False},
}
"""The devices to measure. Each device has its own defaults for some fields of `Options`."""


@dataclass(frozen=True)
class Options:
    """The options of a benchmark. An invalid option raises OptionsError."""

    frameworks: Sequence[str] = tuple(FRAMEWORKS)
    lists: Sequence[str] = tuple(LISTS)
    dtypes: Sequence[str] = DTYPES
    threads: int = 2
    growth: bool = True
    seconds: float = 1.0
    """The number of seconds for the measurement of one pair of functions. A slow pair takes longer, because each pair
    is called at least 7 times."""

    device: str = "cpu"

    def __post_init__(self) -> None:
        for field, known in (("frameworks", FRAMEWORKS), ("lists", LISTS), ("dtypes", DTYPES)):
            if unknown := [name for name in getattr(self, field) if name not in known]:
                raise OptionsError(f"--{field} has {', '.join(map(repr, unknown))}. Choose from {', '.join(known)}.")
        if self.device not in DEVICES:
            raise OptionsError(f"--device is {self.device!r}. Choose from {', '.join(DEVICES)}.")
        if self.device == "cuda" and set(self.frameworks) != {"torch"}:
            raise OptionsError("--device cuda measures torch only. Pass --frameworks torch, or no --frameworks.")
        if not any(map(self.steps, self.frameworks)):
            names, dtypes = ", ".join(self.frameworks), ", ".join(self.dtypes)
            supported = dict.fromkeys(dtype for name in self.frameworks for dtype in FRAMEWORKS[name].dtypes)
            raise OptionsError(f"{names} cannot be measured with {dtypes}. Pass --dtypes {','.join(supported)}.")
        if not 1 <= self.threads <= 1024:
            raise OptionsError(f"--threads is {self.threads}. Pass 1 to 1024.")
        if not 0 <= self.seconds < float("inf"):
            raise OptionsError(f"--seconds is {self.seconds}. Pass a finite number of 0 or more.")

    def steps(self, framework: str) -> int:
        """Return the number of measurements that the worker of a framework prints."""
        dtypes = [dtype for dtype in FRAMEWORKS[framework].dtypes if dtype in self.dtypes]
        return len(self.lists) * len(dtypes) + self.growth * sum(map(len, GROWTH.values()))


def command(framework: str) -> list[str]:
    """Return the command line that starts the worker of a framework. The caller appends the worker's job as JSON."""
    return [sys.executable, "-X", "faulthandler", "-m", "unified_clip.bench.worker", framework]


def run(options: Options, progress: Callable[[str, int], Any] = lambda framework, count: None) -> dict[str, Any]:
    """Run all measurements, one framework after the other, and return the content of bench.json.

    docs/performance.md describes bench.json. If a framework fails, "failed" contains the reason.

    progress: A function that gets the name of a framework and the number of its new results.
    """
    data: dict[str, Any] = {
        "threads": options.threads,
        "seconds": options.seconds,
        "machine": {
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "instruction_set": KERNELS and KERNELS.instruction_set,
        },
        "versions": {"python": platform.python_version(), "unified_clip": unified_clip.__version__},
        "compiled_kernels": {},
        "missing": {},
        "failed": {},
        "results": [],
        "limits": [],
        "memory": [],
        "growth": [],
    }
    for framework in options.frameworks:

        def add(result: dict[str, Any], framework: str = framework) -> None:
            for key, value in result.items():
                data[key] = data[key] | value if isinstance(value, dict) else data[key] + value
            progress(framework, int("results" in result or "growth" in result))

        if failure := _work(framework, options, add):
            data["failed"][framework] = failure
    return data


def _work(framework: str, options: Options, add: Callable[[dict[str, Any]], None]) -> str:
    """Run the worker of a framework, and call `add` with each result. Return the worker's error, or '' if there is
    none."""
    environment = dict.fromkeys(THREADS, str(options.threads))
    arguments = [*command(framework), json.dumps(asdict(options))]

    def add_results() -> bool:
        for line in iter(lines.readline, b""):
            if not line.endswith(b"\n"):  # the worker is still writing the line, or has died
                lines.seek(-len(line), os.SEEK_CUR)
                break
            add(json.loads(line))
        return False

    with Scratch("bench") as scratch:
        path = scratch.path / "results.jsonl"
        with (
            path.open("wb") as out,
            path.open("rb") as lines,
            _workers.Worker(arguments, None, out, environment, sees_gpus=options.device != "cpu") as worker,
        ):
            end = worker.wait(math.inf, add_results)
    return str(end) if end.code else ""
