"""Write the table of docs/native_differences.md from the lists of known differences.

`unified-clip parity` checks the lists against the functions of new releases, and tests/docs/test_old_environment.py
against those of old releases.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from unified_clip._kit import markdown
from unified_clip.parity.known.entries import KnownDifference, size_in_words
from unified_clip.parity.known.entries import read as entries_of

ROOT = Path(__file__).parents[1]
SUITES = ("parity", "parity/old")
WORDS = {"raises": "raises", "returns": "accepted", "silent": "silent", "form": "yes", "elements": "yes"}
"""{kind of a difference without a size: word in a table}."""

PAGE = ROOT / "docs/native_differences.md"
BEGIN, END = "<!-- `make native-tables` writes this from parity/known.toml -->", "<!-- end of the table -->"
IN_GRAPHS = (" in static programs", " in sessions")


class Difference(NamedTuple):
    what: str
    framework: str
    """PyTorch, for example."""

    release: str
    """An old release, such as "1.8.1" or "1.15.5 in sessions", or "" for the newest tested one."""

    function: str
    size: str
    number: float
    """The size, or 0 if no number differs."""

    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is stale")
    options = parser.parse_args()
    differences = [difference for suite in SUITES for difference in read(ROOT / suite)]
    text = PAGE.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    new = f"{text[:start]}\n\n{details(differences)}\n\n{text[stop:]}"
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        print(f"the table in {PAGE.relative_to(ROOT)} is stale. Type: make native-tables", file=sys.stderr)
        return 1
    return 0


def read(suite: Path) -> Iterator[Difference]:
    tables = tomllib.loads((suite / "suite.toml").read_text(encoding="utf-8"))["frameworks"]
    for entry in entries_of(suite / "known.toml"):
        what, _, why = entry.reason.partition(": ")
        table = tables[entry.framework]
        framework, release = table["title"].split(" ", 1) if "framework" in table else (table["title"], "")
        yield Difference(what, framework, release, f"`{entry.function}`", describe(entry), entry.parts[1], why)


def describe(entry: KnownDifference) -> str:
    kind, number = entry.parts
    return size_in_words(number) if number else WORDS[kind.partition(" ")[0]]


def details(differences: Iterable[Difference]) -> str:
    """Return a table of all differences. Those that differ only in their size and release share a row."""
    rows: dict[str, dict[tuple[str, str, str], list[Difference]]] = {}
    for each in differences:
        rows.setdefault(each.what, {}).setdefault((each.framework, each.function, each.why), []).append(each)
    lines = [
        [what if index == 0 else "", releases(same), function, joined(each.size for each in same), why]
        for what, group in rows.items()
        for index, ((_, function, why), same) in enumerate(group.items())
    ]
    return markdown.table(["what differs", "framework", "function", "by", "why"], lines)


def releases(same: Sequence[Difference]) -> str:
    """Return the framework and its releases: PyTorch; PyTorch, also 1.8.1; PyTorch 1.8.1."""
    found = list(dict.fromkeys(each.release for each in same))
    (framework,) = {each.framework for each in same}
    old = [
        release for release in found if release and not (release.endswith(IN_GRAPHS) and release.split()[0] in found)
    ]
    return f"{framework}{', also' if '' in found and old else ''} {', '.join(old)}".rstrip()


def joined(sizes: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(sizes))


if __name__ == "__main__":
    sys.exit(main())
