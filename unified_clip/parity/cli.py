"""The commands `unified-clip parity` and `unified-clip parity init`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import UsageError, interrupted, reject
from .._command.mode_options import check_modes
from .._command.parser import FORMATS, comma_separated
from .._command.progress import busy, progress
from .._kit import atomic_files
from .._kit.display import as_started, safe

if TYPE_CHECKING:
    from .known.entries import KnownDifference
    from .results import ParityReport
    from .suite.load import Suite


OUT = Path("report")
SUITE = Path("parity")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above 0. Pass a number of seconds, such as 60")


RUN_OPTIONS: dict[str, dict[str, Any]] = {
    "--case": {
        "action": "append",
        "metavar": "NAME",
        "help": "run this case only, print its results and write no report. In NAME, * matches any text. Repeat the "
        "option for several cases",
    },
    "--out": {"type": Path, "metavar": "DIR", "help": f"directory for the report (default: {OUT})"},
    "--frameworks": {
        "metavar": "NAMES",
        "help": "frameworks to run, separated by commas (default: all that the suite lists)",
    },
    "--without": {
        "metavar": "MODES",
        "help": "modes to leave out, separated by commas: host, device, native, graph, compiled, static, processes_2 "
        "or processes_4. jax:device leaves out device for JAX only",
    },
    "--timeout": {
        "type": _seconds,
        "metavar": "SECONDS",
        "help": "seconds to wait for the next result of a framework's process (default: `timeout` of the suite, or "
        "120)",
    },
    "--accept": {
        "action": "store_true",
        "help": "update the suite's list of known differences, such as known.toml, to match this run",
    },
    "--format": {
        "choices": ("text", "github"),
        "help": f"print {FORMATS['text']} or {FORMATS['github']} (default: text)",
    },
}
"""The default of each option is None or False."""

RUN_ONLY = tuple(option for option in RUN_OPTIONS if option != "--frameworks")

WHOLE_RUN = ("out", "accept", "format")
"""`--case` rejects these options, because they need the results of all cases."""


def add_parser(commands: Any) -> None:
    parity = commands.add_parser(
        "parity",
        help="check the results of unified_clip and of each framework against exact results",
        description="Run a suite of cases on every framework, and compare each result with the exact result bit "
        "for bit. Each framework runs in its own process.",
        extra_words="To run a suite, pass its path to --suite. To write a suite: unified-clip parity init",
    )
    parity.add_argument(
        "--suite",
        type=Path,
        metavar="DIR",
        default=SUITE,
        help=f"directory with suite.toml, or the path of a .toml file (default: {SUITE})",
    )
    for option, settings in RUN_OPTIONS.items():
        parity.add_argument(option, **settings)
    parity.set_defaults(run=run)
    init = parity.add_subparsers(metavar="init").add_parser("init", help="write a small suite into this repository")
    init.add_argument(
        "gradients",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="files of gradients (default: each .npz and .safetensors file in this directory)",
    )
    init.add_argument(
        "--suite",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,  # a default would overwrite `--suite X` before `init`
        help=f"directory for suite.toml, or the path of a .toml file (default: {SUITE})",
    )
    init.add_argument(
        "--frameworks",
        metavar="NAMES",
        default=argparse.SUPPRESS,
        help="frameworks of the suite, separated by commas (default: all installed frameworks)",
    )
    for option in RUN_ONLY:
        init.add_argument(option, **{**RUN_OPTIONS[option], "default": argparse.SUPPRESS, "help": argparse.SUPPRESS})
    init.set_defaults(run=run_init)


def run_init(options: argparse.Namespace) -> int:
    from .suite import new_suite

    names = [option.removeprefix("--").replace("-", "_") for option in RUN_ONLY]
    check_modes(options, {"unified-clip parity without init": names}, "init")
    with busy("reading the gradients"):
        files = new_suite.chosen_files(options.gradients)
        path, norms = new_suite.write(
            options.suite, files, () if options.frameworks is None else comma_separated(options.frameworks)
        )
    where = "" if options.suite == SUITE else f" --suite {shlex.quote(str(path))}"
    print(safe(as_started(f"Wrote {path}. Now run: unified-clip parity{where}")))
    for note in new_suite.notes(norms):
        print(safe(note))
    left_out = [] if options.gradients else new_suite.files_to_pass()
    if not files:
        print("The suite contains a worked example, because you passed no file of gradients.")
    if left_out or not files:
        chosen = f" --frameworks {options.frameworks}" if options.frameworks else ""
        again = shlex.join(map(str, [*files, *left_out])) or "gradients.npz"
        advice = f"To test your own gradients, delete {path} and run: unified-clip parity init{where}{chosen} {again}"
        print(safe(as_started(advice)))
    return 0


def run(options: argparse.Namespace) -> int:
    from .report import write

    whole = "unified-clip parity without --case"
    check_modes(options, {whole: WHOLE_RUN}, "--case" if options.case else whole)
    out = OUT if options.out is None else options.out
    try:
        if not options.case:
            write.remove(out)
        with busy("reading the suite"):
            suite = _suite(options)
        return _run_cases(suite) if options.case else _run_suite(suite, options, out)
    except KeyboardInterrupt:
        return interrupted()


def _run_cases(suite: Suite) -> int:
    from .report import terminal

    report = _run(suite)
    for line in terminal.case_lines(report):
        print(safe(line))
    return report.exit_code


def _run(suite: Suite) -> ParityReport:
    from . import run_suite

    with progress({name: len(run_suite.work_items(suite, name)) for name in suite.frameworks}) as advance:
        return run_suite.run(suite, advance)


def _run_suite(suite: Suite, options: argparse.Namespace, out: Path) -> int:
    """Run a suite, write its report, print a summary, and return the exit status."""
    from .report import github, terminal, write

    atomic_files.make_directory(out)
    atomic_files.check_writable(out / "parity.json")
    report = _run(suite)
    write.write(report, out)
    with suppress(SystemExit):  # rich exits with 1 if nobody reads its output
        annotations = [*github.lines(report, suite.root)] if options.format == "github" else None
        terminal.show(report, out, annotations, accepting=options.accept and not _why_not(report))
    if options.accept and suite.known_file:
        return _accept(report, suite.known_file, suite.known or [])
    return report.exit_code


def _suite(options: argparse.Namespace) -> Suite:
    from .suite import load, select
    from .suite.schema import SuiteError

    suite = whole = load.read(options.suite, accepting=options.accept)
    if options.accept and not suite.known_file:
        advice = load.known_list_advice(load.file_of(options.suite))
        raise SuiteError(
            f"--accept needs a file for the known differences, but the suite names no such file. {advice}.", "UC303"
        )
    if options.accept and options.without:
        raise UsageError("--accept needs the results of every mode. Remove --without.")
    if options.frameworks:
        suite = select.only_frameworks(suite, comma_separated(options.frameworks))
    if options.without:
        suite = select.without(suite, comma_separated(options.without))
    if options.case:
        suite = select.only_cases(suite, options.case, whole)
    return suite if options.timeout is None else dataclasses.replace(suite, timeout=options.timeout)


def _why_not(report: ParityReport) -> str:
    """Return why --accept does not write the list, or ''."""
    from .report import build

    if build.unified_clip_is_different(report):
        return "results of unified_clip are wrong"
    return "results are missing, or nothing is tested" if build.is_incomplete(report) else ""


def _accept(report: ParityReport, path: Path, known: Sequence[KnownDifference]) -> int:
    from .known import entries
    from .known.accept import accept_differences

    if why := _why_not(report):
        message = f"{path} was not changed, because {why}"
        remedy = "Correct the problems that the report lists in parity.md. Then run the command with --accept again."
        reject(UsageError(f"{message}. {remedy}", "UC303"))
        return report.exit_code
    changes = accept_differences(path, known, report)
    counts = ", ".join(f"{count} {name}" for name, count in changes._asdict().items())
    print(safe(f"{path}: {counts}. Read the file before you commit it."))
    if lacking := [entry.place for entry in entries.read(path) if not entry.reason]:
        more = f", and {len(lacking) - 1} more" if lacking[1:] else ""
        print(safe(f"Write why you accept the difference into `reason`: {lacking[0]}{more}. Until then, a run fails."))
    elif report.exit_code:
        print(
            "ACCEPTED: the list of known differences now matches this run. A run with the same results passes. The "
            "report of this run still contains the accepted failures."
        )
    return 0
