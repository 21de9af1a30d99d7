"""Measure each framework in its own process."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import unified_clip

from .._kit import workers
from .._kit.scratch import Scratch
from .._native import KERNELS
from .options import Options

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads", "PJRT_NPROC")


def command(framework: str) -> list[str]:
    return [sys.executable, "-X", "faulthandler", "-m", "unified_clip.bench.worker", framework]


def run(options: Options, progress: Callable[[str, int], Any] = lambda framework, count: None) -> dict[str, Any]:
    """`progress` gets the name of a framework and the number of its new results."""
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
    }
    load = other_load()
    for framework in options.frameworks:

        def add(result: dict[str, Any], framework: str = framework) -> None:
            for key, value in result.items():
                data[key] = data[key] | value if isinstance(value, dict) else data[key] + value
            progress(framework, int("results" in result))

        if failure := _work(framework, options, add):
            data["failed"][framework] = failure
    data["machine"]["other_load"] = round(max(load, other_load() - options.threads), 2)
    return data


def other_load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _work(framework: str, options: Options, add: Callable[[dict[str, Any]], None]) -> str:
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
            workers.Worker(arguments, None, out, environment, sees_gpus=options.device != "cpu") as worker,
        ):
            end = worker.wait(math.inf, add_results)
    return str(end) if end.code else ""
