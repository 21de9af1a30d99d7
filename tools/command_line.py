"""Write docs/errors.md, and the table of exit statuses in docs/cli.md."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from unified_clip._command import codes, statuses
from unified_clip._kit import markdown

BEGIN = "<!-- statuses: `python tools/command_line.py` writes this -->"
END = "<!-- end of statuses -->"

ERRORS = """<!-- `python tools/command_line.py` writes this page from unified_clip/_command/errors.toml -->

# Errors

Every error of `unified-clip` has a code, and its message names the file, the line and the remedy. This page has the
most likely remedy for each code. `unified-clip help UC101` prints all remedies, an explanation and an example. In
Python, a `ConfigError` has the attribute `code`."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    options = parser.parse_args(arguments)
    pages = {"cli.md": with_statuses((options.docs / "cli.md").read_text(encoding="utf-8")), "errors.md": errors()}
    for name, text in pages.items():
        path = options.docs / name
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale; run python tools/command_line.py", file=sys.stderr)
            return 1
    return 0


def with_statuses(text: str) -> str:
    table = markdown.table(["exit status", "meaning"], [[str(key), text] for key, text in statuses.GENERAL.items()])
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


def errors() -> str:
    groups = itertools.groupby(codes.read().values(), key=lambda code: code.group)
    return "\n\n".join([ERRORS, *(section(group, list(entries)) for group, entries in groups)]) + "\n"


def section(group: str, entries: Sequence[codes.ErrorCode]) -> str:
    items = "\n".join(f"- **{code.code}: {code.title}** {code.remedies[0]}" for code in entries)
    return f"## {group}\n\n" + re.sub(r"docs/((?:\w+/)*[\w-]+\.md)", r"[\1](\1)", items)


if __name__ == "__main__":
    raise SystemExit(main())
