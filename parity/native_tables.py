"""The tables of native differences in README.md and docs/native_differences.md, from a run's report.

`python parity/native_tables.py report/parity.json` writes them; with `--check` it exits with 1 if they are stale. The
sizes are those of known.toml, which the run has compared with what it measured, so that every machine writes the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unified_clip.parity.natives import share

ROOT = Path(__file__).parents[1]
WORDS = {"raises": "raises", "returns": "accepted", "silent": "silent", "form": "yes"}
"""What a table says of a difference that has no size."""

BEGIN, END = "<!-- natives: `make readme` writes this from report/parity.json -->", "<!-- end of natives -->"

Entry = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is stale")
    options = parser.parse_args()
    report = json.loads(options.report.read_text(encoding="utf-8"))
    named = tomllib.loads((ROOT / "parity/suite.toml").read_text(encoding="utf-8"))["frameworks"]
    if set(named) - set(report["frameworks"]):
        print(f"{options.report} is of {', '.join(report['frameworks'])} only; run all of the suite", file=sys.stderr)
        return 2
    stale = []
    for path, table in ((ROOT / "README.md", summary(report)), (ROOT / "docs/native_differences.md", details(report))):
        text = path.read_text(encoding="utf-8")
        new = replaced(text, table)
        if new != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(new, encoding="utf-8")
    if stale and options.check:
        print(f"the table of natives is stale in {' and '.join(stale)}; run `make readme`", file=sys.stderr)
    return int(bool(stale) and options.check)


def replaced(text: str, table: str) -> str:
    """A document with what stands between the marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def summary(report: Mapping[str, Any]) -> str:
    """A row for every kind of difference that has a size on some framework."""
    titles = dict.fromkeys(entry["title"] for entry in report["known"] if entry["listed_size"] is not None)
    differing = {entry["framework"] for entry in report["known"]}
    columns = [framework for framework in report["frameworks"] if framework in differing]
    rows = []
    for title in titles:
        entries = [entry for entry in report["known"] if entry["title"] == title]
        cells = [
            ", ".join(dict.fromkeys(said(entry) for entry in entries if entry["framework"] == framework))
            for framework in columns
        ]
        rows.append([title, *cells])
    return markdown(["", *(report["titles"][framework] for framework in columns)], rows)


def details(report: Mapping[str, Any]) -> str:
    """A row for every difference, in the order of the titles."""
    titles = dict.fromkeys(entry["title"] for entry in report["known"])
    entries = [entry for title in titles for entry in report["known"] if entry["title"] == title]
    rows = [
        [e["title"], report["titles"][e["framework"]], f"`{e['function']}`", said(e), str(len(e["cases"])), why(e)]
        for e in entries
    ]
    return markdown(["what differs", "framework", "function", "by", "cases", "why"], rows)


def why(entry: Entry) -> str:
    """The reason, and the versions that it is about if not all are."""
    return f"{entry['reason']} ({entry['versions']})" if entry["versions"] else str(entry["reason"])


def said(entry: Entry) -> str:
    """The size of a difference, or a word."""
    if entry["listed_size"] is None:
        return WORDS[entry["kind"]]
    return share(float(entry["listed_size"]))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


if __name__ == "__main__":
    sys.exit(main())
