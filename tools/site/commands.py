"""The page of all commands, from the parser of `unified-clip`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from unified_clip import cli
from unified_clip._command import statuses, subcommands
from unified_clip._kit import markdown

BEGIN = """# Commands

This page has all commands of `unified-clip`, with their options and exit statuses. `unified-clip COMMAND --help`
prints the same texts.
[Command line](cli.md) describes output formats and shell completion."""


def page() -> str:
    commands = list(subcommands(cli._parser()))
    return (
        "\n\n".join([BEGIN, *(section(name, parser) for name, parser in commands if parser.get_default("run"))]) + "\n"
    )


def section(name: str, parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    paragraphs = [f"## unified-clip {name}", *description(parser), f"```text\n{usage}\n```"]
    rows = [[f"`{form}`", text] for form, text in options(parser)]
    paragraphs.append(markdown.table(["argument", "meaning"], rows))
    meanings = statuses.COMMANDS.get(name, {})
    paragraphs.append(markdown.table(["exit status", "meaning"], [[str(key), text] for key, text in meanings.items()]))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def description(parser: argparse.ArgumentParser) -> Iterator[str]:
    for text in (parser.description, (parser.epilog or "").partition("exit status:")[0]):
        for paragraph in filter(None, re.split(r"\n\n", (text or "").strip("\n"))):
            indented = any(line.startswith("  ") for line in paragraph.splitlines())
            yield f"```text\n{paragraph}\n```" if indented else paragraph


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS) or isinstance(action, argparse._HelpAction):
            continue
        value = "" if action.nargs == 0 else parser._get_formatter()._format_args(action, _metavar(action))
        names = ", ".join(action.option_strings)
        yield f"{names} {value}".strip(), (action.help or "") % {**vars(action), "prog": parser.prog}


def _metavar(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return (action.dest.upper() if action.option_strings else action.dest) if action.metavar is None else action.dest
