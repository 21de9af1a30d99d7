"""The command line: `unified-clip parity`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

SUITE_IS_WRONG = 2

EXTRA = {"ml_dtypes": "ml_dtypes", "rich": "rich", "safetensors": "safetensors"}
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
        "bit. Exit status: 0 all agree; 1 a difference between ours, or from exact arithmetic; 2 the suite or the "
        "command is wrong; 3 a framework crashed, hung or is missing.",
    )
    parity.add_argument(
        "--suite", type=Path, default=Path("parity"), help="directory with cases.toml (default: parity)"
    )
    parity.add_argument("--out", type=Path, default=Path("report"), help="where to write the report (default: report)")
    parity.add_argument("--frameworks", help="comma-separated (default: all five)")
    parity.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for each start of a worker (default: 600)"
    )
    return parser


def _parity(options: argparse.Namespace) -> int:
    from .parity import cases, engine, report

    chosen = list(dict.fromkeys(options.frameworks.split(","))) if options.frameworks else engine.FRAMEWORKS
    unknown = [name for name in chosen if name not in engine.FRAMEWORKS]
    if unknown:
        return _refuse(f"unknown frameworks: {', '.join(map(repr, unknown))}; there are {', '.join(engine.FRAMEWORKS)}")
    try:
        suite = cases.read(options.suite)
    except cases.SuiteError as error:
        return _refuse(str(error))
    run = engine.run(suite, chosen, options.timeout)
    report.write(run, options.out)
    report.show(run, options.out)
    return run.exit_code


def _refuse(message: str) -> int:
    print(f"unified-clip: {message}", file=sys.stderr)
    return SUITE_IS_WRONG
