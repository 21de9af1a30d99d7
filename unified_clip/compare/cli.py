"""The command `unified-clip compare A B`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import UsageError, add_format
from .._command.progress import progress
from .._kit import atomic_files
from .._kit.display import cell, safe
from ..recipes.finding import value_text

if TYPE_CHECKING:
    from .report.model import ComparisonReport


WIDTH = 120
"""The width of the table in a file or a pipe."""


def add_parser(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="find how two recorded runs differ: in weights, gradients, clips or optimizers",
        description="Identify what each of two recorded runs does: the weights and gradients that it begins with, its "
        "clips, and the rule of its optimizer. Report all differences, and how to mend them. To write a recording, use "
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
    compare.add_argument(
        "--max-ulp",
        type=float,
        metavar="N",
        help="tolerate differences of the gradients of up to N units in the last place of their total norm (default: "
        "what rounding explains)",
    )
    compare.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ..recording import runs
    from . import recordings
    from .parameter_names import read_names
    from .report import model, page

    max_ulp = options.max_ulp
    if max_ulp is not None and not max_ulp >= 0:
        raise UsageError(f"--max-ulp is {max_ulp}. Pass 0 or more.", "UC203")
    if options.html:
        _check_page(options)
    names = read_names(options.map) if options.map else None
    chunks = sum(path.stat().st_size // runs.CHUNK for path in (options.a, options.b) if path.is_file())
    with progress({"read": chunks, "compare": recordings.PHASES}) as advance:
        comparison = recordings.compare(options.a, options.b, names=names, max_ulp=max_ulp, advance=advance)
    report = model.build(comparison)
    if options.format == "json":
        print(json.dumps(report.as_json(), indent=1, allow_nan=False))
    else:
        _show(report)
    if options.html:
        atomic_files.write(options.html, page.render(report))
        if options.format == "text":
            print(safe(f"Page: {options.html}"))
    return comparison.exit_code


def _show(report: ComparisonReport) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    begin, rest = report.sentences[:3], report.sentences[3:]
    for line in begin:
        console.print(cell(line), soft_wrap=True)
    if report.findings:
        table = Table("step", "what differs", box=None)
        for path in (report.a, report.b):
            table.add_column(cell(Path(path).name))
        for each in report.findings:
            table.add_row(str(each.step), each.field, *(cell(value_text(value)) for value in (each.a, each.b)))
        console.print(table)
    for line in rest:
        console.print(cell(line), soft_wrap=True)


def _check_page(options: argparse.Namespace) -> None:
    for path in (options.a, options.b):
        if path.exists() and options.html.exists() and options.html.samefile(path):
            message = f"--html would overwrite the recording {options.html}. Pass another file to --html."
            raise UsageError(message, "UC206")
    atomic_files.check_writable(options.html)
