"""The command `unified-clip config check`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import DIFFERENT, INTERRUPTED, SUCCESS, UsageError, add_format
from .._kit import atomic_files
from .._kit.display import complain, counted

if TYPE_CHECKING:
    from ..config.clip_config import ClipConfig
    from .model import CheckReport

FORMATS = ("text", "json", "sarif", "github", "gitlab")


def add_parser(actions: Any) -> None:
    check = actions.add_parser(
        "check",
        help="compare every clip of a code base with one clip configuration",
        description="Compare every trainer's configuration and every clip in Python source with one clip "
        "configuration. Report each clip that differs, and each clip with an unknown effect. To ignore a finding, add "
        "an entry with a reason to the table `check` of the clip configuration.",
    )
    check.add_argument("clip", type=Path, metavar="CLIP", help="the clip configuration")
    check.add_argument(
        "paths", type=Path, metavar="PATH", nargs="+", help="a file, or a directory with all files below it"
    )
    check.add_argument(
        "--nearest",
        action="store_true",
        help="accept clips that differ from the configuration only in family or eps, and print how much they differ",
    )
    check.add_argument(
        "--accept",
        action="store_true",
        help="write the clips of unknown effect to a file beside CLIP, such as clip.accepted.toml. From then on, only "
        "others are findings",
    )
    add_format(check, *FORMATS)
    check.add_argument("--out", type=Path, metavar="FILE", help="write the report to a file, and also print it as text")
    check.set_defaults(run=run)


def add_run_check(record: argparse.ArgumentParser) -> None:
    """Add the option `--check` to the command `record`."""
    group = record.add_argument_group("check the run")
    group.add_argument(
        "--check",
        type=Path,
        metavar="CLIP",
        help="compare the clips and steps of the run with a clip configuration. FILE can be omitted. Without COMMAND, "
        "check the recording FILE",
    )
    group.add_argument("--nearest", action="store_true", help="accept clips that differ only in eps, in all files")
    add_format(group, *FORMATS)
    group.add_argument("--out", type=Path, metavar="REPORT", help="write the report to a file, and also print it")
    record.set_defaults(run=partial(_record, record.get_default("run")))


def _record(record: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    if options.check is None and (options.out or options.nearest or options.format != FORMATS[0]):
        raise UsageError("--format, --nearest and --out are options of --check. Add --check clip.toml.", "UC201")
    if not options.command_line and (options.norms or options.force):
        problem = "--norms and --force need a command"
        raise UsageError(f"{problem}. Type: unified-clip record run.jsonl -- python train.py", "UC201")
    if options.file is None and (options.check is None or not options.command_line):
        raise UsageError("no FILE given. Type: unified-clip record run.jsonl -- python train.py", "UC201")
    if options.check is None:
        return record(options)
    from ..config.clip_config import ClipConfig

    config, status = ClipConfig.load(options.check), SUCCESS
    with tempfile.TemporaryDirectory() if options.file is None else nullcontext("") as directory:
        options.file = options.file or Path(directory, "run.jsonl")
        if options.command_line:
            options.norms |= config.uses_names  # only then, a recording has the names of the clipped gradients
            status = record(options)
        report = _check_recording(options, config)
    return status or (DIFFERENT if report.findings else SUCCESS)


def _check_recording(options: argparse.Namespace, config: ClipConfig) -> CheckReport:
    from ..recording import runs
    from . import run_check

    report = run_check.check(runs.read(options.file), config, options.check, nearest=options.nearest)
    _write(options, report)
    return report


def _write(options: argparse.Namespace, report: CheckReport) -> None:
    from . import output

    text = output.WRITERS[options.format](report)
    if options.out:
        atomic_files.write(options.out, text)
    is_text = bool(options.out) or options.format == "text"
    print(output.as_text(report, printed=True) if is_text else text, end="")


def run(options: argparse.Namespace) -> int:
    from .rules import accepted

    outcome = "No report was written."
    try:
        files = _files(options)
        report = _checked(options, files)
        if options.accept:
            file = accepted.write(options.clip, [*report.accepted, *report.findings], files)
            report = _checked(options, files)
            report.notes.append(f"{file} lists {counted(len(report.accepted), 'clip')} of unknown effect.")
        _write(options, report)
    except KeyboardInterrupt:
        complain(f"interrupted. {outcome}")
        return INTERRUPTED
    return DIFFERENT if report.findings else SUCCESS


def _files(options: argparse.Namespace) -> list[Path]:
    from ..config.clip_config import ClipConfig
    from . import files_to_check

    rules = ClipConfig.load(options.clip).check
    declared = [key.path for key in rules.key] if rules else []
    paths = files_to_check.files(options.paths, options.clip, declared)
    read = {os.path.realpath(path) for path in (options.clip, *paths)}
    if options.out and os.path.realpath(options.out) in read and not files_to_check.is_report(options.out):
        problem = f"--out is {options.out}, which is one of the files that the check reads. Pass another file to --out."
        raise UsageError(problem, "UC205")
    return paths


def _checked(options: argparse.Namespace, files: Sequence[Path]) -> CheckReport:
    from .._command.progress import progress
    from . import check_files

    with progress({"files": len(files)}) as advance:
        done = partial(advance, "files")
        return check_files.check(options.clip, options.paths, files, done, nearest=options.nearest)
