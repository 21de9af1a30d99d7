"""The command line: `unified-clip parity`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

SUITE_IS_WRONG = 2
INTERRUPTED = 130

EXTRA = {"ml_dtypes": "ml_dtypes", "pydantic": "pydantic", "rich": "rich", "safetensors": "safetensors"}
"""The modules of the extra `cli`, and the distributions they come from."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    options = _parser().parse_args(arguments)
    missing = [name for module, name in EXTRA.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _refuse(f"{' and '.join(missing)} not installed; install the extra: pip install 'unified_clip[cli]'")
    return _parity(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unified-clip", description="Gradient clipping, the same on every framework.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    parity = commands.add_parser(
        "parity",
        help="compare the frameworks with each other, with exact arithmetic and with their own functions",
        description="Run a suite of cases on every framework, one process for each, and compare the results bit for "
        "bit. Exit status: 0 all as it should be; 1 a difference between ours or from exact arithmetic, or a list of "
        "known differences that is not true; 2 the suite or the command is wrong; 3 a framework crashed, hung or is "
        "missing.",
    )
    parity.add_argument(
        "--suite", type=Path, default=Path("parity"), help="directory with suite.toml (default: parity)"
    )
    parity.add_argument("--out", type=Path, default=Path("report"), help="where to write the report (default: report)")
    parity.add_argument("--frameworks", help="comma-separated (default: all that the suite names)")
    parity.add_argument(
        "--timeout", type=float, help="seconds that a worker may take for one result (default: what the suite says)"
    )
    return parser


def _parity(options: argparse.Namespace) -> int:
    from .parity import engine, report, schema, suite

    try:
        found = suite.read(options.suite)
        if options.frameworks:
            found = suite.only(found, options.frameworks.split(","))
    except schema.SuiteError as error:
        return _refuse(str(error))
    if options.timeout is not None:
        found = dataclasses.replace(found, timeout=options.timeout)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "parity.json").touch()
    except OSError as error:
        return _refuse(f"{options.out} cannot be written: {error.strerror}; name another directory with --out")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _progress({name: len(engine.runs(found, name)) for name in found.frameworks}) as advance:
            run = engine.run(found, advance)
    except KeyboardInterrupt:
        print("unified-clip: interrupted; the workers were ended and no report was written", file=sys.stderr)
        return INTERRUPTED
    report.write(run, options.out)
    report.show(run, options.out)
    return run.exit_code


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _progress(totals: Mapping[str, int]) -> Iterator[Callable[[str, int], None]]:
    """A bar for each framework on a terminal's standard error, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, count: bars.advance(tasks[name], count)


def _refuse(message: str) -> int:
    print(f"unified-clip: {message}", file=sys.stderr)
    return SUITE_IS_WRONG
