"""Write the tables of docs/native_differences.md from parity/known.toml, which `unified-clip parity` checks."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from unified_clip._kit import markdown
from unified_clip.parity.known import entries
from unified_clip.parity.known.entries import size_in_words

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "parity"
WORDS = {"raises": "raises", "returns": "accepted", "silent": "", "form": "", "elements": ""}
"""{kind of a difference without a size: word in the table of sizes, if the kind occurs there}."""

PAGE = ROOT / "docs/native_differences.md"
BEGIN, END = "<!-- `make native-tables` writes this from parity/known.toml -->", "<!-- end of the tables -->"


class Difference(NamedTuple):
    what: str
    framework: str
    """PyTorch, for example."""

    function: str
    number: float
    """The size, or 0 if no number differs."""

    by: str
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the tables are stale")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    new = f"{text[:start]}\n\n{tables(read())}\n\n{text[stop:]}"
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        print(f"the tables in {PAGE.relative_to(ROOT)} are stale. Type: make native-tables", file=sys.stderr)
        return 1
    return 0


def read() -> Iterator[Difference]:
    frameworks = tomllib.loads((SUITE / "suite.toml").read_text(encoding="utf-8"))["frameworks"]
    for entry in entries.read(SUITE / "known.toml"):
        what, _, why = entry.reason.partition(": ")
        kind, number = entry.parts
        by = size_in_words(number) if number else WORDS[kind.partition(" ")[0]]
        yield Difference(what, frameworks[entry.framework]["title"], f"`{entry.function}`", number, by, why)


def tables(differences: Iterable[Difference]) -> str:
    """Return a table of the differences that have sizes, and one of the others."""
    groups: dict[str, list[Difference]] = {}
    for each in differences:
        groups.setdefault(each.what, []).append(each)
    sized = [row for what, group in groups.items() if any(each.number for each in group) for row in rows(what, group)]
    others = [
        [what, ", ".join(dict.fromkeys(each.framework for each in group))]
        for what, group in groups.items()
        if not any(each.number for each in group)
    ]
    return "\n\n".join([
        markdown.table(["what differs", "framework", "function", "by", "why"], sized),
        "## Input, warnings and shapes",
        markdown.table(["what differs", "frameworks"], others),
    ])  # fmt: skip


def rows(what: str, group: Iterable[Difference]) -> list[list[str]]:
    """Return the rows of what differs. Differences that have only other sizes share a row, and so do frameworks whose
    functions differ by the same sizes for the same reason."""
    sizes: dict[tuple[str, str, str], list[str]] = {}
    for each in group:
        sizes.setdefault((each.framework, each.function, each.why), []).append(each.by)
    shared: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (framework, function, why), by in sizes.items():
        shared.setdefault((", ".join(dict.fromkeys(by)), why), []).append((framework, function))
    return [
        ["" if index else what, *(", ".join(dict.fromkeys(names)) for names in zip(*owners, strict=True)), by, why]
        for index, ((by, why), owners) in enumerate(shared.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
