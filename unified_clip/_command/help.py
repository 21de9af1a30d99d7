"""The command `unified-clip help [TOPIC]`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from .._kit import install
from .._kit.coded_error import UsageError
from .._kit.display import BOLD, paint
from . import codes, statuses
from .parser import subcommands, suggestion

ERRORS, STATUSES = "errors", "exit-status"

WIDEST = 100


def add_parser(commands: Any, root: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "help",
        help="explain an error code, or print the help of a command",
        description="Explain an error code, print the help of a command, or list all error codes or exit statuses.",
    )
    parser.add_argument(
        "topic",
        nargs="*",
        metavar="TOPIC",
        help=f"an error code such as UC101, a command, {ERRORS!r} or {STATUSES!r} (default: the list of commands)",
    )
    parser.set_defaults(run=partial(run, root))


def run(root: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    topic = " ".join(options.topic)
    commands = dict(subcommands(root))
    if not topic or topic in commands:
        print(commands.get(topic, root).format_help(), end="")
    else:
        for line in _page(topic, commands):
            print(line)
    if not topic:
        print(f"\nThe directory docs/, which messages name, is {install.documentation()}")
    return statuses.SUCCESS


def _page(topic: str, commands: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    if topic == ERRORS:
        return codes.listing(width)
    if topic == STATUSES:
        return iter([paint("Exit statuses", BOLD, sys.stdout), *statuses.lines(statuses.GENERAL)])
    known = codes.read()
    if topic.upper() in known:
        return codes.page(known[topic.upper()], width)
    lists = f"List the commands: unified-clip help. List the error codes: unified-clip help {ERRORS}"
    hint = suggestion(topic, [*commands, ERRORS, STATUSES], lists)
    raise UsageError(f"there is no topic {topic!r}. {hint}", "UC203")
