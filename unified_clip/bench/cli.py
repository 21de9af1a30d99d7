"""The command `unified-clip bench`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .._command import INCOMPLETE, check_writable, interrupted
from .._command.parser import comma_separated

NAMES = {
    "frameworks": "torch,tensorflow,paddle,jax,numpy",
    "lists": "10x10,1000x100,ResNet-50,GPT-2,Llama-7B-layer",
    "dtypes": "float32,bfloat16",
}
"""The default of each option as text. This module does not import the lists from `run`, because `run` imports NumPy."""


def add_parser(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="compare the speed of unified_clip and the frameworks' own functions",
        description="Measure unified_clip and the frameworks' own functions in turns, one process for each framework. "
        "Write bench.json, ratios.svg and growth.svg.",
    )
    for name, names in NAMES.items():
        option = bench.add_argument(f"--{name}", metavar="NAMES", help=f"comma-separated (default: {names})")
        option.type = lambda text: list(dict.fromkeys(comma_separated(text)))
    bench.add_argument("--threads", type=int, metavar="N", help="threads of every function (default: 2)")
    bench.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="seconds for each measurement, which has at least 7 repeats (default: 1)",
    )
    bench.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, or cuda to measure PyTorch on a GPU. With cuda, the default of --lists is "
        "ResNet-50,GPT-2,Llama-7B-layer (default: cpu)",
    )
    growth = "also measure how the time grows with elements and tensors (default: yes on the CPU, no on a GPU)"
    bench.add_argument("--growth", action=argparse.BooleanOptionalAction, help=growth)
    bench.add_argument(
        "--out", type=Path, default=Path("report/bench"), metavar="DIR", help="output directory (default: report/bench)"
    )
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from .._progress import progress
    from . import report
    from . import run as engine

    names = ("frameworks", "lists", "dtypes", "threads", "seconds", "growth", "device")
    passed = {name: value for name in names if (value := getattr(options, name)) is not None}
    chosen = engine.Options(**engine.DEVICES.get(options.device, {}) | passed)
    check_writable(options.out, "bench.json")
    try:
        with progress({name: chosen.steps(name) for name in chosen.frameworks}) as advance:
            data = engine.run(chosen, advance)
    except KeyboardInterrupt:
        return interrupted()
    report.write(data, options.out)
    report.show(data, options.out)
    missed = options.frameworks and data["missing"]
    return INCOMPLETE if data["failed"] or missed or not (data["results"] or data["growth"]) else 0
