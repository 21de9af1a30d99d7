"""Write the tables in docs/performance.md, from benchmarks/results/bench.json.

`python benchmarks/tables.py` writes them; with `--check` it exits with 1 if they are stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unified_clip import _markdown
from unified_clip.bench import report

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- bench: [^>]*-->\n\n).*(\n\n<!-- end of bench -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/bench.json")
    parser.add_argument("--document", type=Path, default=ROOT / "docs/performance.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the tables are stale")
    options = parser.parse_args(arguments)
    data = json.loads(options.results.read_text(encoding="utf-8"))
    text = options.document.read_text(encoding="utf-8")
    new, places = MARKED.subn(lambda match: match[1] + tables(data) + match[2], text)
    if places != 1:
        print(f"{options.document.name} has no place for the tables: {MARKED.pattern}", file=sys.stderr)
        return 2
    if options.check:
        if new != text:
            print(f"the tables in {options.document.name} are stale; run benchmarks/tables.py", file=sys.stderr)
        return int(new != text)
    options.document.write_text(new, encoding="utf-8")
    return 0


def tables(data: Mapping[str, Any]) -> str:
    """Return all tables, with the machine and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    machine = f"{data['machine']['architecture']}, {data['machine']['cpus']} processors, {data['threads']} threads"
    if instruction_set := data["machine"]["instruction_set"]:
        machine += f", kernels for {instruction_set}"
    paragraphs = [f"Measured on {machine}, with {versions}.", *(f"Not whole: {line}" for line in report.problems(data))]
    titled = [("In graphs", graphs_table(data))]
    titled += [(f"On {name}", compared(report.pairs_table(data, name))) for name in data["compiled_kernels"]]
    titled += [("The machine's limits", report.limits_table(data)), ("Memory", compared(report.memory_table(data)))]
    for title, (header, rows) in titled:
        if rows:
            paragraphs += [f"### {title}", _markdown.table(header, rows)]
    return "\n\n".join(paragraphs)


def compared(table: report.Table) -> report.Table:
    """Return a table without the rows that have no number of a framework's function."""
    header, rows = table
    return header, [row for row in rows if row[-1] != report.NOTHING]


def graphs_table(data: Mapping[str, Any]) -> report.Table:
    """Return the table of the median ratios in graphs: a row for each kind of graph and list."""
    columns = [(dtype, threshold) for dtype in ("float32", "bfloat16") for threshold in ("not clipped", "clipped")]
    ratios: dict[str, dict[str, dict[tuple[str, str], str]]] = {}
    for row in data["results"]:
        kind, in_graph, _ = row["what"].partition(", in a graph")
        graph = re.search(r"\((.*)\)", row["native"] or "")
        if in_graph and graph:
            name = graph[1].removeprefix("in ").removeprefix("both in ")
            cells = ratios.setdefault(name, {}).setdefault(row["list"], {})
            cells[row["dtype"], kind] = report.middle(row["ratio"])
    lines = [
        [name, title, *(cells.get(column, report.NOTHING) for column in columns)]
        for name, lists in ratios.items()
        for title, cells in lists.items()
    ]
    return ["native / unified_clip", "list", *map(", ".join, columns)], lines


if __name__ == "__main__":
    sys.exit(main())
