"""The command `unified-clip compare A B`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .._command import UsageError, add_format
from .._command.progress import progress
from .._kit import atomic_files
from .._kit.display import cell, safe


def add_parser(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="find the first difference of two recorded runs, and explain it",
        description="Pair the clip calls of two recordings by step and order, and compare the steps of their "
        "optimizers. Report the first step and parameter at which the runs differ, and why. To write a recording, use "
        "the command `unified-clip record` or the Python function unified_clip.record.",
    )
    for name in ("a", "b"):
        compare.add_argument(name, metavar=name.upper(), type=Path, help="a recording, such as run.jsonl")
    compare.add_argument(
        "--map", type=Path, metavar="FILE", help='TOML file with a line "name in A" = "name in B" for each parameter'
    )
    add_format(compare, "text", "json", old=["json"])
    compare.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a self-contained page with plots of both runs"
    )
    limits = compare.add_mutually_exclusive_group()
    limits.add_argument("--exact", action="store_true", help="report every difference, also of a single bit")
    limits.add_argument(
        "--max-ulp",
        type=float,
        metavar="N",
        help="ignore differences of up to N units in the last place (default: what rounding explains)",
    )
    compare.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from . import compare, runs
    from .pairs.parameters import read_names
    from .report import model, page

    max_ulp = 0.0 if options.exact else options.max_ulp
    if max_ulp is not None and not max_ulp >= 0:
        raise UsageError(f"--max-ulp is {options.max_ulp}. Pass 0 or more.", "UC203")
    if options.html:
        _check_page(options)
    names = read_names(options.map) if options.map else None
    chunks = sum(path.stat().st_size // runs.CHUNK for path in (options.a, options.b) if path.is_file())
    with progress({"read": chunks, "compare": compare.PHASES}) as advance:
        comparison = compare.compare(options.a, options.b, names=names, max_ulp=max_ulp, advance=advance)
    report = model.build(comparison)
    if options.format == "json":
        print(json.dumps(report.as_json(), indent=1, allow_nan=False))
    else:
        from rich.console import Console

        console = Console(highlight=False)
        for line in report.sentences:
            console.print(cell(line), soft_wrap=True)
    if options.html:
        atomic_files.write(options.html, page.render(report))
        if options.format == "text":
            print(safe(f"Page: {options.html}"))
    return comparison.exit_code


def _check_page(options: argparse.Namespace) -> None:
    for path in (options.a, options.b):
        if path.exists() and options.html.exists() and options.html.samefile(path):
            message = f"--html would overwrite the recording {options.html}. Pass another file to --html."
            raise UsageError(message, "UC206")
    atomic_files.check_writable(options.html)
