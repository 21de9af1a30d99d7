"""The command line: `unified-clip parity` and `unified-clip bench`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeAlias

REFUSED = 2
NOT_WHOLE = 3
INTERRUPTED = 130

CLI = ("ml_dtypes", "packaging", "pydantic", "rich", "safetensors")
EXTRAS = {"parity": ("cli", CLI), "bench": ("bench", (*CLI, "matplotlib"))}
"""By command, the extra that has all it needs, and the modules, which are named like their distributions."""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    options = _parser().parse_args(arguments)
    extra, modules = EXTRAS[options.command]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        return _refuse(f"{' and '.join(missing)} not installed; install the extra: pip install 'unified_clip[{extra}]'")
    signal.signal(signal.SIGTERM, _interrupt)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unified-clip", description="Gradient clipping, the same on every framework.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _parity_parser(commands)
    _bench_parser(commands)
    return parser


def _parity_parser(commands: Commands) -> None:
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
    parity.set_defaults(run=_parity)


def _bench_parser(commands: Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="compare the time that ours and the frameworks' own functions take",
        description="Measure ours and the natives in turns, one process for each framework, and write bench.json, "
        "ratios.svg and growth.svg. Exit status: 0 all was measured; 2 the command is wrong; 3 a framework crashed, "
        "one that was named is missing, or nothing was measured.",
    )
    for name in ("frameworks", "lists", "dtypes"):
        bench.add_argument(f"--{name}", type=_names, help="comma-separated (default: all)")
    bench.add_argument("--threads", type=int, help="for ours and the natives (default: 2)")
    bench.add_argument("--seconds", type=float, help="to spend on each pair, at least 7 repeats (default: 1)")
    bench.add_argument(
        "--growth",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure how the time grows with the elements and the tensors",
    )
    bench.add_argument("--out", type=Path, default=Path("report/bench"), help="where to write (default: report/bench)")
    bench.set_defaults(run=_bench)


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
    if problem := _unwritable(options.out, "parity.json"):
        return _refuse(problem)
    try:
        with _progress({name: len(engine.runs(found, name)) for name in found.frameworks}) as advance:
            run = engine.run(found, advance)
    except KeyboardInterrupt:
        return _interrupted()
    report.write(run, options.out)
    report.show(run, options.out)
    return run.exit_code


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(text.split(",")))


def _bench(options: argparse.Namespace) -> int:
    from .bench import report, run

    names = ("frameworks", "lists", "dtypes", "threads", "seconds", "growth")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    try:
        chosen = run.Options(**given)
    except run.OptionsError as error:
        return _refuse(str(error))
    if problem := _unwritable(options.out, "bench.json"):
        return _refuse(problem)
    try:
        with _progress({name: chosen.steps(name) for name in chosen.frameworks}) as advance:
            data = run.run(chosen, advance)
    except KeyboardInterrupt:
        return _interrupted()
    report.write(data, options.out)
    report.show(data, options.out)
    missed = options.frameworks and data["missing"]
    return NOT_WHOLE if data["failed"] or missed or not (data["results"] or data["growth"]) else 0


def _unwritable(out: Path, name: str) -> str:
    """Make a directory, and find out before all the work whether a file can be written there; '' if so."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).touch()
    except OSError as error:
        return f"{out} cannot be written: {error.strerror}; name another directory with --out"
    return ""


def _interrupted() -> int:
    print("unified-clip: interrupted; the workers were ended and no report was written", file=sys.stderr)
    return INTERRUPTED


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
    return REFUSED
