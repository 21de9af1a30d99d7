"""The command `unified-clip config check`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
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


def run(options: argparse.Namespace) -> int:
    from . import output
    from .rules import accepted

    outcome = "No report was written."
    try:
        files = _files(options)
        report = _checked(options, files)
        if options.accept:
            file = accepted.write(options.clip, [*report.accepted, *report.findings], files)
            report = _checked(options, files)
            report.notes.append(f"{file} lists {counted(len(report.accepted), 'clip')} of unknown effect.")
        text = output.WRITERS[options.format](report)
        if options.out:
            atomic_files.write(options.out, text)
            outcome = f"The report is in {options.out}."
        is_text = bool(options.out) or options.format == "text"
        print(output.as_text(report, printed=True) if is_text else text, end="")
    except KeyboardInterrupt:
        complain(f"interrupted. {outcome}")
        return INTERRUPTED
    return DIFFERENT if report.findings else SUCCESS


def _files(options: argparse.Namespace) -> list[Path]:
    from . import files_to_check

    rules = _loaded(options.clip, options.paths).check
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


def _loaded(clip: Path, paths: Sequence[Path]) -> ClipConfig:
    from ..config.clip_config import ClipConfig
    from ..errors import ConfigError

    try:
        return ClipConfig.load(clip)
    except ConfigError as error:
        for path in filter(Path.is_file, paths):
            with suppress(ConfigError):
                ClipConfig.load(path)
                others = [clip, *(each for each in paths if each != path)]
                command = shlex.join(["unified-clip", "config", "check", *map(str, (path, *others))])
                swap = f"If {path} is the clip configuration, swap the arguments: {command}"
                raise UsageError(f"{error}\n{swap}") from None
        raise
