"""The parser of every command, and options that several commands share."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from .._kit.display import print_error
from . import statuses

FORMATS = {
    "text": "text",
    "json": "JSON",
    "diff": "a patch",
    "sarif": "SARIF for code scanning",
    "github": "GitHub Actions annotations",
    "gitlab": "a GitLab Code Quality report",
}


def comma_separated(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


class Formatter(argparse.HelpFormatter):
    """Keep line breaks in descriptions, and indent the continuation lines of list items."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_fill(line, width, indent) for line in text.splitlines())


def _fill(line: str, width: int, indent: str) -> str:
    hanging = re.match(r" *(\d+ +)?", line)
    spaces = " " * len(hanging[0]) if hanging else ""
    return textwrap.fill(line, max(width, 20), initial_indent=indent, subsequent_indent=indent + spaces)


UNKNOWN_COMMAND = re.compile("argument (?:COMMAND|init): invalid choice: '(.*?)'")


class Parser(argparse.ArgumentParser):
    def __init__(self, *, extra_words: str = "", **settings: Any) -> None:
        """`extra_words` is a sentence for users who typed words that no argument takes: where the words belong."""
        super().__init__(**{"formatter_class": Formatter, **settings})
        self._extra_words = extra_words

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print_error(self._advice(message), _code(message))
        raise SystemExit(statuses.REJECTED)

    def _advice(self, message: str) -> str:
        """Turn a message of argparse into a sentence, with a suggestion for an unknown name."""
        if unknown := UNKNOWN_COMMAND.match(message):
            group = self.prog.partition(" ")[2]
            names = [name for name, _ in subcommands(self.get_default("root") or self)]
            own = [name for name, _ in subcommands(self) if " " not in name]
            advice = self._extra_words or suggestion(unknown[1], names, f"Choose from {', '.join(own)}.")
            return f"there is no command {f'{group} {unknown[1]}'.strip()!r}. {advice}"
        if unknown := re.match(r"unrecognized arguments: (\S+)", message):
            if self._extra_words and not unknown[1].startswith("-"):
                return f"{message}. {self._extra_words}"
            options = [name for action in self._shown() for name in action.option_strings]
            listing = f"List the arguments: {self.prog} --help"
            return f"{message}. {suggestion(unknown[1].partition('=')[0], options, listing)}"
        return f"{message}." if message[-1].isalnum() else message

    def _shown(self) -> list[argparse.Action]:
        return [action for action in self._actions if action.help != argparse.SUPPRESS]


def suggestion(name: str, known: Sequence[str], otherwise: str) -> str:
    """Suggest the closest name, such as `config import` for `import`, or return `otherwise`."""
    names = {each.rpartition(" ")[2]: each for each in reversed(known)} | {each: each for each in known}
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {names[close[0]]}?" if close else otherwise


def _code(message: str) -> str:
    if ": not allowed with argument" in message:
        return "UC202"
    is_value = message.startswith("argument ") and not re.search(r": (expected |ignored explicit )", message)
    return "UC203" if is_value and not UNKNOWN_COMMAND.match(message) else "UC201"


def add_format(parser: argparse._ActionsContainer, *formats: str, old: Sequence[str] = ()) -> None:
    """Add the option `--format`. For each format in `old`, add a hidden option, such as `--json`."""
    *others, last = (FORMATS[name] for name in formats)
    description = f"print {', '.join(others)} or {last} (default: {formats[0]})"
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--format", choices=formats, default=formats[0], help=description)
    for name in old:
        group.add_argument(
            f"--{name}", dest="format", action="store_const", const=name, default=formats[0], help=argparse.SUPPRESS
        )


def subcommands(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield f"{prefix}{name}", command
                yield from subcommands(command, f"{prefix}{name} ")


def describe_exit_statuses(parser: argparse.ArgumentParser) -> None:
    for name, command in subcommands(parser):
        if meanings := statuses.COMMANDS.get(name):
            paragraph = "\n".join(["exit status:", *statuses.lines(meanings)])
            command.epilog = f"{command.epilog}\n\n{paragraph}" if command.epilog else paragraph
