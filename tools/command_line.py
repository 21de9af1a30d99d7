"""Write the tables of exit statuses in docs/cli.md.

`python tools/command_line.py` writes them. With `--check` it exits with 1 if they are stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from unified_clip import _markdown
from unified_clip._command import statuses

BEGIN = "<!-- {}: `python tools/command_line.py` writes this -->"
END = "<!-- end of {} -->"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    options = parser.parse_args(arguments)
    path = options.docs / "cli.md"
    text = path.read_text(encoding="utf-8")
    new = text
    for name, part in (("statuses", all_statuses()), ("commands", by_command())):
        before, rest = new.split(BEGIN.format(name))
        new = f"{before}{BEGIN.format(name)}\n\n{part}\n\n{END.format(name)}{rest.split(END.format(name))[1]}"
    if options.check and new != text:
        print(f"{path} is stale; run python tools/command_line.py", file=sys.stderr)
        return 1
    path.write_text(new, encoding="utf-8")
    return 0


def all_statuses() -> str:
    """Return a row for each exit status."""
    return _markdown.table(["exit status", "meaning"], [[str(key), text] for key, text in statuses.GENERAL.items()])


def by_command() -> str:
    """Return a row for each command, with what its own exit statuses mean."""
    columns = [statuses.SUCCESS, statuses.DIFFERENT, statuses.REFUSED, statuses.INCOMPLETE]
    rows = [
        [f"`{command}`", *(meanings.get(status, "") for status in columns)]
        for command, meanings in statuses.COMMANDS.items()
    ]
    return _markdown.table(["command", *map(str, columns)], rows)


if __name__ == "__main__":
    raise SystemExit(main())
