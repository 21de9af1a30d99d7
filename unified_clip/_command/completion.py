"""The command `unified-clip completion SHELL`. The package shtab writes the completion scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import statuses
from .parser import subcommands

SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/unified-clip",
    "zsh": '"${fpath[1]}/_unified-clip"',
    "fish": "~/.config/fish/completions/unified-clip.fish",
    "tcsh": "~/.unified-clip.completion.tcsh, and source it in ~/.tcshrc",
}
"""For each shell, the path at which to save the completion script."""

FORMATS = ("--from", "--from-b", "--to")
"""The values of these options are names of configuration formats, such as lightning."""


def add_parser(
    commands: Any, root: Callable[[], argparse.ArgumentParser], formats: Callable[[], Iterable[str]]
) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description="Print a completion script for a shell. Write it to the file that the shell reads:",
        epilog="\n".join(f"  {shell}:  unified-clip completion {shell} > {file}" for shell, file in SHELLS.items()),
    )
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=partial(run, root, formats))


def run(
    root: Callable[[], argparse.ArgumentParser], formats: Callable[[], Iterable[str]], options: argparse.Namespace
) -> int:
    import shtab

    parser, names = root(), tuple(formats())
    for _, command in subcommands(parser):
        for action in command._actions:
            _describe(action, names)
    print(shtab.complete(parser, options.shell))
    return statuses.SUCCESS


def _describe(action: argparse.Action, formats: Sequence[str]) -> None:
    import shtab

    if action.type is Path or action.dest in ("old", "new", "gradients"):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.choices is None and set(action.option_strings) & set(FORMATS):
        action.choices = formats
