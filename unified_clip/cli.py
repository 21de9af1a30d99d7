"""The command line: `unified-clip parity`, `compare`, `bench`, `explain`, `config`, `port` and `verify`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from . import _install
from ._display import complain, safe
from ._modes import misplaced
from ._progress import progress
from .config import cli as config_commands
from .config.explain import cli as explain_command
from .port import cli as port_command
from .verify import cli as verify_command

if TYPE_CHECKING:
    from .parity import engine

REFUSED = 2
NOT_WHOLE = 3
BROKEN = 70
INTERRUPTED = 130
UNREAD = 141
"""128 + SIGPIPE: what a shell reports of a program whose output nobody reads."""

CLI = ("jinja2", "ml_dtypes", "packaging", "pydantic", "rich", "tomlkit", "yaml")
EXTRAS = {
    "parity": ("cli", CLI),
    "compare": ("cli", CLI),
    "bench": ("bench", (*CLI, "matplotlib")),
    "explain": ("cli", CLI),
    "port": ("port", (*CLI, "libcst")),
    "verify": ("cli", CLI),
    "config": ("config", ("packaging", "pydantic", "tomlkit", "yaml")),
}
"""By command, the extra that has all it needs, and the modules, most of which are named like their distributions."""

WITHOUT_INIT = ("out", "frameworks", "without", "timeout", "accept", "baseline", "recorded", "ported")
"""Options of `unified-clip parity` that `init` does not take."""

OUT = Path("report")

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            _flush()
    except KeyboardInterrupt:
        print("unified-clip: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return _end_unread()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich exits with 1, which is the status of a difference
            return _end_unread()
        raise
    except OutputError as error:
        _discard_unread()
        return _refuse(f"standard output cannot be written: {error}")
    except Exception:  # whose own exit status would be 1, as of a difference
        traceback.print_exc()
        print("unified-clip: a fault of unified-clip itself; please report it with these lines", file=sys.stderr)
        return BROKEN


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    if lacking := not_installed(options.command):
        return _refuse(lacking)
    _end_in_order()
    status: int = options.run(options)
    return status


class OutputError(Exception):
    """Standard output cannot be written, for another reason than a closed pipe."""


def _flush() -> None:
    """Write what is buffered: Python does it when it exits, where nothing can handle an error."""
    try:
        if sys.stdout is not None:  # None where the shell closed it
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from None


def _end_unread() -> int:
    """End because nobody reads the output any more, as `| head` does. Return the status that shells give."""
    _discard_unread()
    return UNREAD


def _discard_unread() -> None:
    """Connect the streams that cannot be written to the null device: Python flushes them when it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with open(os.devnull, "wb") as null:  # noqa: PTH123
                os.dup2(null.fileno(), stream.fileno())


def not_installed(command: str) -> str:
    """What a command needs and lacks, and what to do; '' if nothing."""
    extra, modules = EXTRAS[command]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return (
        f"not installed: {', '.join(missing)}. Install the extra `{extra}`: {_install.command(extra)}"
        if missing
        else ""
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unified-clip", description="Gradient clipping, the same on every framework.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _parity_parser(commands)
    _compare_parser(commands)
    _bench_parser(commands)
    explain_command.add_parser(commands)
    config_commands.add_parsers(commands)
    port_command.add_parser(commands)
    verify_command.add_parser(commands)
    return parser


def _parity_parser(commands: Commands) -> None:
    parity = commands.add_parser(
        "parity",
        help="compare the frameworks with each other, with exact arithmetic and with their own functions",
        description="Run a suite of cases on every framework, one process for each, and compare the results bit for "
        "bit. Exit status: 0 all as it should be; 1 a difference between ours or from exact arithmetic, or a list of "
        "known differences that is not true; 2 the suite or the command is wrong, or the report cannot be "
        "written; 3 a framework is missing, crashed, hung or ran out of memory. With a baseline 1 is for a difference "
        "that is not in it, or larger.",
    )
    parity.add_argument(
        "--suite", type=Path, default=Path("parity"), help="directory with suite.toml (default: parity)"
    )
    parity.add_argument("--out", type=Path, help="where to write the report (default: report)")
    parity.add_argument("--frameworks", help="comma-separated (default: all that the suite names)")
    parity.add_argument(
        "--without", metavar="MODES", help="leave out these modes of the suite, comma-separated; the report names them"
    )
    parity.add_argument(
        "--timeout", type=_seconds, help="seconds that a worker may take for one result (default: what the suite says)"
    )
    parity.add_argument(
        "--accept",
        action="store_true",
        help="take the differences that the frameworks' own functions show into the suite's list of known ones",
    )
    parity.add_argument(
        "--baseline",
        type=Path,
        help="parity.json of an earlier run: show what changed, and excuse what was wrong there",
    )
    parity.add_argument("--recorded", type=Path, help="a run that unified_clip.record wrote, to be plotted in the page")
    parity.add_argument(
        "--ported", type=Path, help="the JSON report of `unified-clip port`, to be shown in the page as a section"
    )
    parity.set_defaults(run=_parity)
    init = parity.add_subparsers(metavar="").add_parser("init", help="write a small suite into this repository")
    init.add_argument("gradients", type=Path, nargs="*", help="files of gradients (default: those in this directory)")
    init.add_argument(
        "--suite",
        type=Path,
        default=argparse.SUPPRESS,  # or else it would hide one that stands before `init`
        help="where to write suite.toml (default: parity)",
    )
    init.set_defaults(run=_init)


def _compare_parser(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="find where two recorded training runs part, and why",
        description="Line up two files that unified_clip.record has written, by step and call, and name the first "
        "step and the first parameter where they part. Exit status: 0 they are the same; 1 they part; 2 a file or the "
        "command is wrong.",
    )
    for name in ("a", "b"):
        compare.add_argument(name, type=Path, help="a recorded run")
    compare.add_argument("--map", type=Path, help='a TOML file of "name in one run" = "name in the other"')
    compare.add_argument("--json", action="store_true", help="print JSON instead of text")
    compare.add_argument(
        "--max-ulp", type=float, default=0.0, help="up to so many units in the last place are the same (default: 0)"
    )
    compare.set_defaults(run=_compare)


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


def _init(options: argparse.Namespace) -> int:
    from .parity.suite import scaffold, schema
    from .tensors import types

    if problem := misplaced(options, {"unified-clip parity without init": WITHOUT_INIT}, "init"):
        return _refuse(problem)
    try:
        path = scaffold.write(options.suite, options.gradients)
    except (schema.SuiteError, types.UnreadableError) as error:
        return _refuse(str(error))
    where = "" if str(options.suite) == "parity" else f" --suite {shlex.quote(str(path))}"
    print(safe(f"Wrote {path}. Now run: unified-clip parity{where}"))
    return 0


def _parity(options: argparse.Namespace) -> int:
    from .parity import engine
    from .parity.report import baseline, build
    from .parity.suite import load, schema
    from .port.report import build as port_report
    from .recording import runs

    earlier, recorded, ported = None, [], None
    out = OUT if options.out is None else options.out
    try:
        found = load.read(options.suite, accepting=options.accept)
        if options.accept and not found.known_file:
            raise schema.SuiteError(f'{options.suite} names no list to write: give it known = "known.toml"')
        if options.accept and options.without:
            raise schema.SuiteError("--accept writes the list from a whole run; leave out --without")
        if options.frameworks:
            found = load.only(found, options.frameworks.split(","))
        if options.without:
            found = load.without(found, options.without.split(","))
        if options.baseline:
            earlier = baseline.read(options.baseline, {case.name for case in found.cases}, list(found.frameworks))
        if options.recorded:
            recorded = _to_plot(options.recorded)
        if options.ported:
            ported = port_report.read(options.ported)
    except (schema.SuiteError, runs.RunError, port_report.ReportError) as error:
        return _refuse(str(error))
    if options.timeout is not None:
        found = dataclasses.replace(found, timeout=options.timeout)
    if problem := _unwritable(out, "parity.json"):
        return _refuse(problem)
    try:
        with progress({name: len(engine.runs(found, name)) for name in found.frameworks}) as advance:
            run = engine.run(found, advance)
    except KeyboardInterrupt:
        return _interrupted()
    if earlier is not None:
        run = dataclasses.replace(run, changes=baseline.changes(earlier, build.as_data(run)))
    try:
        build.write(run, out, recorded, ported)
    except OSError as error:
        return _refuse(_cannot_be_written(out, error))
    with suppress(SystemExit):  # of rich, with 1, where nobody reads on
        build.show(run, out)
    if options.accept and found.known_file:
        return _accept(run, found.known_file)
    return run.exit_code


def _to_plot(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a recording. RunError: it has no norm that can be plotted."""
    from .parity.report import recorded_plot
    from .recording import runs

    run = runs.read(path)
    runs.check_clipped(run)
    lines = [line.model_dump() for line in run.lines]
    if recorded_plot.record(lines) is None:
        raise runs.RunError(f"{path}: No norm above 0 to plot. Clips by value have no total norm. Remove --recorded.")
    return lines


def _accept(run: engine.Run, path: Path) -> int:
    from .parity.known import update

    if run.ours_differ or run.incomplete:
        complain(f"nothing was accepted: something else is wrong than {path} is about")
        return run.exit_code or 1  # which a baseline may excuse, and this does not
    changes = update.write(path, run)
    counts = f"{changes.kept} kept, {changes.dropped} dropped, {changes.added} added"
    print(safe(f"{path}: {counts}; read it before you commit it."))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from .recording import compare, report, runs

    if not options.max_ulp >= 0:
        return _refuse(f"--max-ulp is {options.max_ulp}; it must be 0 or more")
    try:
        names = compare.read_names(options.map) if options.map else None
        found = compare.compare(options.a, options.b, names=names, max_ulp=options.max_ulp)
    except runs.RunError as error:
        return _refuse(str(error))
    if options.json:
        print(json.dumps(report.as_data(found), indent=1, allow_nan=False))
    else:
        report.show(found)
    return found.exit_code


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


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
        with progress({name: chosen.steps(name) for name in chosen.frameworks}) as advance:
            data = run.run(chosen, advance)
    except KeyboardInterrupt:
        return _interrupted()
    report.write(data, options.out)
    report.show(data, options.out)
    missed = options.frameworks and data["missing"]
    return NOT_WHOLE if data["failed"] or missed or not (data["results"] or data["growth"]) else 0


def _unwritable(out: Path, name: str) -> str:
    """Make a directory, and find out before all the work whether a file can be written there; '' if so.

    Nothing is left of a file that was not there: an empty one is no report if the work is interrupted.
    """
    path = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        was_there = path.exists()
        path.touch()
        if not was_there:
            path.unlink()
    except OSError as error:
        return _cannot_be_written(out, error)
    return ""


def _cannot_be_written(out: Path, error: OSError) -> str:
    return f"{out} cannot be written: {error.strerror}; name another directory with --out"


def _interrupted() -> int:
    print("unified-clip: interrupted; the workers were ended and no report was written", file=sys.stderr)
    return INTERRUPTED


def _end_in_order() -> None:
    """Ended by a signal, or by a terminal that is closed, this leaves no worker and no scratch space behind."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _refuse(message: str) -> int:
    complain(message)
    return REFUSED
