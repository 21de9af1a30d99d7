"""The command `unified-clip port`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import DIFFERENT, INTERRUPTED, SUCCESS, UsageError, add_format
from .._kit.display import complain, safe

if TYPE_CHECKING:
    from .ported_clip import PortedFile, Target
    from .report.model import Report


def add_parser(commands: Any) -> None:
    port = commands.add_parser(
        "port",
        help="rewrite gradient clipping in Python source",
        description="Find the gradient clips in Python source code, and report the effect of each clip. Rewrite each "
        "clip that can be replaced safely. Leave a clip unchanged if it does not need to be ported. Flag all other "
        "clips, which you must port by hand. For many flagged clips, the report suggests the new code. Source files "
        "change only with --write.",
    )
    port.add_argument(
        "paths", type=Path, nargs="*", metavar="PATH", help="a file, or a directory, which is searched recursively"
    )
    port.add_argument(
        "--to",
        choices=("torch", "drop-in"),
        help="torch: port to PyTorch (default without --check). drop-in: keep the framework, and use "
        "unified_clip's functions (default with --check)",
    )
    port.add_argument("--native", action="store_true", help=argparse.SUPPRESS)  # was an option until 1.0
    add_format(port, "text", "json", "diff", old=["json", "diff"])
    port.add_argument("--write", action="store_true", help="change the files in place")
    port.add_argument(
        "--check",
        action="store_true",
        help="for code that has been ported: exit with 1 if a clip is left to port, or a file cannot be read",
    )
    port.add_argument(
        "--force", action="store_true", help="with --write: also change files that are not committed in git"
    )
    port.add_argument("--report", help=argparse.SUPPRESS)  # was an option until 1.0
    port.set_defaults(run=run)


def _check_options(options: argparse.Namespace) -> None:
    if options.format == "diff" and options.write:
        raise UsageError("--format diff does not apply to --write. Remove --format diff, or remove --write.")
    if options.check and options.write:
        raise UsageError("--check changes no file. Remove --check, or remove --write.")
    if not options.paths:
        remedy = "Pass the files or directories to port. To compare two steps, run `unified-clip verify OLD NEW`."
        raise UsageError(f"No PATH given. {remedy}", "UC201")
    if options.native:
        advice = "The new code calls unified_clip.torch, which clips by PyTorch's rule. To call PyTorch's own functions"
        raise UsageError(f"--native is removed. {advice}, replace these calls by hand. Remove --native.")
    if options.report:
        raise UsageError("--report is removed. Write standard output to a file: --format json > port.json")
    if options.force and not options.write:
        raise UsageError("--force applies to --write only. Remove --force, or add --write.")


def _target(options: argparse.Namespace) -> Target:
    return options.to or ("drop-in" if options.check else "torch")


def run(options: argparse.Namespace) -> int:
    from .._command.progress import progress
    from . import port_files
    from .report import build

    _check_options(options)
    target = _target(options)
    paths = port_files.sources(*options.paths)
    ported: list[PortedFile] = []
    try:
        with progress({"files": len(paths)}) as advance:
            ported, unreadable = port_files.port_all(paths, target, partial(advance, "files"))
            unreadable += port_files.imported_clips(paths)
        if options.write:
            if not options.force:
                port_files.check_clean([file.path for file in ported if file.is_changed])
            port_files.write(ported)
        report = build.build_report(ported, unreadable, target, written=options.write)
        _print(options, report, ported)
    except KeyboardInterrupt:
        written = sum(map(port_files.is_written, ported)) if options.write else 0
        complain(f"interrupted. Files changed: {written}." if written else "interrupted. No file was changed.")
        return INTERRUPTED
    left = report.summary.flagged + report.summary.unread + (report.summary.rewritten if options.check else 0)
    return DIFFERENT if left else SUCCESS


def _print(options: argparse.Namespace, report: Report, ported: Sequence[PortedFile]) -> None:
    from .report import build, terminal

    if options.format == "json":
        print(build.as_json(report), end="")
    elif options.format == "diff":
        lines = (line for file in ported for line in _diff(file))
        sys.stdout.writelines(safe(line, keep="\t\n") if sys.stdout.isatty() else line for line in lines)
        if report.summary.flagged or report.summary.unread:
            advice = "To see flagged clips and unread files, omit --format diff."
            complain(f"{report.headline} The diff contains only the rewritten clips. {advice}")
    else:
        terminal.show(report)


def _diff(ported: PortedFile) -> list[str]:
    name = os.path.relpath(ported.path.resolve()).replace(os.sep, "/")
    if name.startswith(".."):
        name = ported.path.resolve().as_posix().lstrip("/")
    before, after = (text.decode("utf-8", "surrogateescape").splitlines(True) for text in (ported.before, ported.after))
    lines = list(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
