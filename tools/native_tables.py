"""Write the tables of docs/native_differences.md: two from a parity report, and that of old releases from a list.

The sizes come from known.toml, so that every machine writes the same tables. No machine needs the old releases.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unified_clip._kit import markdown
from unified_clip.parity.known.entries import read as entries_of
from unified_clip.parity.known.entries import size_in_words

ROOT = Path(__file__).parents[1]
WORDS = {"raises": "raises", "returns": "accepted", "silent": "silent", "form": "yes", "elements": "yes"}
"""{kind of a difference without a size: word in a table}."""

PAGE = ROOT / "docs/native_differences.md"
BEGIN, END = "<!-- {name}: `make native-tables` writes this from {source} -->", "<!-- end of {name} -->"
REPORT, OLD = "report/parity.json", "parity/old/known.toml"

Entry = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is stale")
    options = parser.parse_args()
    report = json.loads(options.report.read_text(encoding="utf-8"))
    named = tomllib.loads((ROOT / "parity/suite.toml").read_text(encoding="utf-8"))["frameworks"]
    if set(named) - set(report["frameworks"]):
        print(f"{options.report} has only {', '.join(report['frameworks'])}. Run the whole suite.", file=sys.stderr)
        return 2
    text = PAGE.read_text(encoding="utf-8")
    new = replaced(replaced(text, "summary", summary(report)), "details", details(report))
    new = replaced(new, "old releases", old_releases(), OLD)
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        print(f"the tables in {PAGE.relative_to(ROOT)} are stale. Type: make native-tables", file=sys.stderr)
        return 1
    return 0


def replaced(text: str, name: str, table: str, source: str = REPORT) -> str:
    begin, end = BEGIN.format(name=name, source=source), END.format(name=name)
    start, stop = text.index(begin) + len(begin), text.index(end)
    return f"{text[:start]}\n\n{table}\n\n{text[stop:]}"


def summary(report: Mapping[str, Any]) -> str:
    titles = dict.fromkeys(title(entry) for entry in report["known"] if entry["listed_size"] is not None)
    differing = {entry["framework"] for entry in report["known"]}
    columns = [framework for framework in report["frameworks"] if framework in differing]
    rows = []
    for row in titles:
        entries = [entry for entry in report["known"] if title(entry) == row]
        cells = [
            ", ".join(dict.fromkeys(describe(entry) for entry in entries if entry["framework"] == framework))
            for framework in columns
        ]
        rows.append([row, *cells])
    return markdown.table(["", *(report["titles"][framework] for framework in columns)], rows)


def details(report: Mapping[str, Any]) -> str:
    titles = dict.fromkeys(title(entry) for entry in report["known"])
    entries = [entry for row in titles for entry in report["known"] if title(entry) == row]
    rows: dict[tuple[str, ...], list[Entry]] = {}  # entries that differ only in their size and cases share a row
    for e in entries:
        rows.setdefault((title(e), report["titles"][e["framework"]], f"`{e['function']}`", why(e)), []).append(e)
    lines = [
        [
            *words,
            ", ".join(dict.fromkeys(map(describe, grouped))),
            str(len({case for e in grouped for case in e["cases"]})),
            reason,
        ]
        for (*words, reason), grouped in rows.items()
    ]
    return markdown.table(["what differs", "framework", "function", "by", "cases", "why"], lines)


def old_releases() -> str:
    titles = tomllib.loads((ROOT / "parity/old/suite.toml").read_text(encoding="utf-8"))["frameworks"]
    entries = sorted(entries_of(ROOT / OLD), key=lambda entry: list(titles).index(entry.framework))
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}  # entries that differ only in size and release share a row
    for entry in entries:
        what, _, reason = entry.reason.partition(": ")
        row = rows.setdefault((what, f"`{entry.function}`", reason), {"releases": [], "sizes": []})
        row["releases"].append(titles[entry.framework]["title"])
        kind, number = entry.parts
        row["sizes"].append(size_in_words(number) if number else WORDS[kind.partition(" ")[0]])
    lines = [
        [what, ", ".join(dict.fromkeys(row["releases"])), function, ", ".join(dict.fromkeys(row["sizes"])), reason]
        for (what, function, reason), row in sorted(rows.items(), key=lambda item: (item[1]["releases"][0], item[0]))
    ]
    return markdown.table(["what differs", "release", "function", "by", "why"], lines)


def title(entry: Entry) -> str:
    return str(entry["reason"]).partition(": ")[0]


def why(entry: Entry) -> str:
    return str(entry["reason"]).partition(": ")[2]


def describe(entry: Entry) -> str:
    if entry["listed_size"] is None:
        return WORDS[entry["kind"]]
    return size_in_words(float(entry["listed_size"]))


if __name__ == "__main__":
    sys.exit(main())
