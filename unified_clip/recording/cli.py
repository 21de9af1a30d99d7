"""The command `unified-clip record FILE -- COMMAND`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._command import UsageError

NAME = "record"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    record: argparse.ArgumentParser = commands.add_parser(
        NAME,
        help="run a training command, and record its clip calls",
        description="Run a command, and record the clip calls of all its Python processes to FILE. The script needs no "
        "change. Compare two recordings with `unified-clip compare`.",
        extra_words="Put -- before the command, for example: unified-clip record run.jsonl -- python train.py",
        epilog="Example: unified-clip record run.jsonl -- torchrun --nproc-per-node 2 train.py --epochs 1",
    )
    record.add_argument("file", metavar="FILE", type=Path, nargs="?", help="the file to write")
    record.add_argument("--force", action="store_true", help="replace FILE if it exists, when the command has ended")
    record.add_argument("--norms", action="store_true", help="record the exact norm of each gradient and weight")
    record.usage = "unified-clip record [FILE] [--check CLIP] [--norms] [--force] -- COMMAND ..."
    record.set_defaults(run=run)
    return record


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    arguments = list(arguments)
    if arguments[:1] != [NAME] or "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def run(options: argparse.Namespace) -> int:
    from .command import record_command

    if not options.command_line:
        file = shlex.quote(str(options.file))
        raise UsageError(f"no command given. Type: unified-clip record {file} -- python train.py", "UC201")
    return record_command(options.file, options.command_line, norms=options.norms, force=options.force)
