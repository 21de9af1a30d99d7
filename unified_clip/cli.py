"""The command line: `unified-clip parity`, `compare`, `bench`, `explain`, `config`, `port` and `verify`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from . import _install
from ._command import INTERRUPTED, interrupted, refuse, unwritable
from ._progress import progress
from .config import cli as config_commands
from .config.explain import cli as explain_command
from .parity import cli as parity_command
from .port import cli as port_command
from .verify import cli as verify_command

NOT_WHOLE = 3
BROKEN = 70
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
        return refuse(f"standard output cannot be written: {error}")
    except Exception:  # whose own exit status would be 1, as of a difference
        traceback.print_exc()
        print("unified-clip: a fault of unified-clip itself; please report it with these lines", file=sys.stderr)
        return BROKEN


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    if lacking := not_installed(options.command):
        return refuse(lacking)
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
    parity_command.add_parser(commands, _read_ported)
    _compare_parser(commands)
    _bench_parser(commands)
    explain_command.add_parser(commands)
    config_commands.add_parsers(commands)
    port_command.add_parser(commands)
    verify_command.add_parser(commands)
    return parser


def _read_ported(path: Path) -> Any:
    """Read a report of `unified-clip port`, for `unified-clip parity --ported`, which must not import it."""
    from .port.report import build

    return build.read(path)


def _compare_parser(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="find the first difference of two recorded training runs, and explain it",
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


def _compare(options: argparse.Namespace) -> int:
    from .recording import compare, pairing, report, runs

    if not options.max_ulp >= 0:
        return refuse(f"--max-ulp is {options.max_ulp}; it must be 0 or more")
    try:
        names = pairing.read_names(options.map) if options.map else None
        found = compare.compare(options.a, options.b, names=names, max_ulp=options.max_ulp)
    except runs.RunError as error:
        return refuse(str(error))
    if options.json:
        print(json.dumps(report.as_data(found), indent=1, allow_nan=False))
    else:
        report.show(found)
    return found.exit_code


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(text.split(",")))


def _bench(options: argparse.Namespace) -> int:
    from .bench import report, run

    names = ("frameworks", "lists", "dtypes", "threads", "seconds", "growth")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    try:
        chosen = run.Options(**given)
    except run.OptionsError as error:
        return refuse(str(error))
    if problem := unwritable(options.out, "bench.json"):
        return refuse(problem)
    try:
        with progress({name: chosen.steps(name) for name in chosen.frameworks}) as advance:
            data = run.run(chosen, advance)
    except KeyboardInterrupt:
        return interrupted()
    report.write(data, options.out)
    report.show(data, options.out)
    missed = options.frameworks and data["missing"]
    return NOT_WHOLE if data["failed"] or missed or not (data["results"] or data["growth"]) else 0


def _end_in_order() -> None:
    """Ended by a signal, or by a terminal that is closed, this leaves no worker and no scratch space behind."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
