from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._command import INCOMPLETE, interrupted
from .._command.parser import comma_separated
from .._kit import atomic_files
from .lists import LISTS, LISTS_ON_GPU
from .options import DEVICES, Options


def add_parser(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="compare the speed of unified_clip and the frameworks' own functions",
        description="Time unified_clip and the frameworks' own functions alternately. Each framework runs in its own "
        "process. Write bench.json.",
    )
    lists = ". A path selects the tensor shapes in a file, such as model.safetensors or gradients.npz"
    for name, names, more in (
        ("frameworks", Options.frameworks, ""),
        ("lists", Options.lists, lists),
        ("dtypes", Options.dtypes, ""),
    ):
        text = f"comma-separated{more} (default: {','.join(names)})"
        option = bench.add_argument(f"--{name}", metavar="NAMES", help=text)
        option.type = lambda text: list(dict.fromkeys(comma_separated(text)))
    threads = f"number of threads for each function (default: {Options.threads})"
    bench.add_argument("--threads", type=int, metavar="N", help=threads)
    bench.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help=f"seconds for each measurement (default: {Options.seconds:g}). Slow functions take longer: "
        "they run at least 7 times",
    )
    bench.add_argument(
        "--device",
        metavar="NAME",
        help=f"cpu, or cuda to measure PyTorch on a GPU (default: {Options.device}). With cuda, --lists defaults to "
        f"{','.join(LISTS_ON_GPU)}",
    )
    bench.add_argument(
        "--out", type=Path, default=Path("report/bench"), metavar="DIR", help="output directory (default: report/bench)"
    )
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from .._command.progress import busy, progress
    from . import gradients, report
    from . import run as engine

    names = ("frameworks", "lists", "dtypes", "threads", "seconds", "device")
    passed = {name: value for name in names if (value := getattr(options, name)) is not None}
    if titles := _titles(options.lists or ()):
        passed["lists"] = [titles.get(name, name) for name in options.lists]
        with busy("reading the shapes"):
            passed["own_lists"] = {title: gradients.shapes_in(Path(path)) for path, title in titles.items()}
    chosen = Options(**DEVICES.get(options.device, {}) | passed)
    atomic_files.make_directory(options.out)
    atomic_files.check_writable(options.out / "bench.json")
    try:
        with progress({name: len(list(chosen.measurements(name))) for name in chosen.frameworks}) as advance:
            data = engine.run(chosen, advance)
    except KeyboardInterrupt:
        return interrupted()
    report.write(data, options.out)
    report.show(data, options.out)
    missed = options.frameworks and data["missing"]
    return INCOMPLETE if data["failed"] or missed or not data["results"] else 0


def _titles(lists: Sequence[str]) -> dict[str, str]:
    paths = [name for name in lists if name not in LISTS and Path(name).exists()]
    names = [*LISTS, *(Path(path).name for path in paths)]
    return {path: path if names.count(Path(path).name) > 1 else Path(path).name for path in paths}
