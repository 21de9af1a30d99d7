"""Write the tables in docs/performance.md, from bench.json and gpu.json in benchmarks/results."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unified_clip._kit import markdown
from unified_clip.bench import report

ROOT = Path(__file__).parents[1]
MARKED = {
    name: re.compile(rf"(<!-- {name}: [^>]*-->\n\n).*(\n\n<!-- end of {name} -->)", re.DOTALL)
    for name in ("bench", "gpu")
}
VARIANTS = {"CUDA kernels": "with the CUDA kernels", "operations": "without the kernels"}
COLUMNS = [(dtype, threshold) for dtype in ("float32", "bfloat16") for threshold in ("not clipped", "clipped")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/bench.json")
    parser.add_argument("--gpu-results", type=Path, default=ROOT / "benchmarks/results/gpu.json")
    parser.add_argument("--document", type=Path, default=ROOT / "docs/performance.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the tables are stale")
    options = parser.parse_args(arguments)
    text = new = options.document.read_text(encoding="utf-8")
    for name, path, made in (("bench", options.results, tables), ("gpu", options.gpu_results, gpu_tables)):
        written = made(json.loads(path.read_text(encoding="utf-8")))
        new, places = MARKED[name].subn(lambda match, written=written: match[1] + written + match[2], new)
        if places != 1:
            print(f"{options.document.name} has no place for the tables: {MARKED[name].pattern}", file=sys.stderr)
            return 2
    if options.check:
        if new != text:
            print(f"the tables in {options.document.name} are stale; run benchmarks/tables.py", file=sys.stderr)
        return int(new != text)
    options.document.write_text(new, encoding="utf-8")
    return 0


def tables(data: Mapping[str, Any]) -> str:
    """Return the tables of ratios, with the machine and the versions."""
    machine = f"{data['machine']['architecture']}, {data['machine']['cpus']} processors, {data['threads']} threads"
    if instruction_set := data["machine"]["instruction_set"]:
        machine += f", kernels for {instruction_set}"
    paragraphs = [
        f"Measured on {machine}, with {versions(data)}.",
        *(f"Not whole: {line}" for line in report.problems(data)),
    ]
    titled = [("In graphs", graphs_table(data))]
    titled += [(f"On {name}", outside_graphs(report.pairs_table(data, name))) for name in data["compiled_kernels"]]
    for title, (header, rows) in titled:
        if rows:
            paragraphs += [f"### {title}", markdown.table(header, rows)]
    return "\n\n".join(paragraphs)


def outside_graphs(table: report.Table) -> report.Table:
    """Return a table without graphs, and without the rows that have no number of a framework's function."""
    header, rows = table
    return header, [row for row in rows if row[-1] != report.NOTHING and not row[2].endswith(", in a graph")]


def graphs_table(data: Mapping[str, Any]) -> report.Table:
    """Return the table of the median ratios in graphs: a row for each kind of graph and list."""
    ratios: dict[str, dict[str, dict[tuple[str, str], str]]] = {}
    for row in data["results"]:
        kind, in_graph, _ = row["what"].partition(", in a graph")
        graph = re.search(r"\((.*)\)", row["native"] or "")
        if in_graph and graph:
            name = graph[1].removeprefix("in ").removeprefix("both in ")
            cells = ratios.setdefault(name, {}).setdefault(row["list"], {})
            cells[row["dtype"], kind] = report.middle(row["ratio"])
    return _by_column("native / unified_clip", ratios)


def gpu_tables(data: Mapping[str, Any]) -> str:
    """Return the tables of the median ratios on a GPU, in eager calls and in CUDA graphs."""
    machine = data["machine"]
    paragraphs = [f"Measured on one {machine['device']} with CUDA {machine['cuda']} and {versions(data)}."]
    for title, in_graph in (("Eager calls", False), ("CUDA graphs", True)):
        ratios: dict[str, dict[str, dict[tuple[str, str], str]]] = {}
        for row in data["results"]:
            kind, graph, _ = row["what"].partition(", in a graph")
            if bool(graph) == in_graph and kind != "norm alone":
                name = VARIANTS[row["native"].split(", ")[1]]
                ratios.setdefault(name, {}).setdefault(row["list"], {})[row["dtype"], kind] = report.middle(
                    row["ratio"]
                )
        paragraphs += [f"### {title} on a GPU", markdown.table(*_by_column("PyTorch / unified_clip", ratios))]
    return "\n\n".join(paragraphs)


def versions(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in data["versions"].items())


def _by_column(title: str, ratios: Mapping[str, Mapping[str, Mapping[tuple[str, str], str]]]) -> report.Table:
    """Return a table with a row for each name and list."""
    lines = [
        [name, each, *(cells.get(column, report.NOTHING) for column in COLUMNS)]
        for name, lists in ratios.items()
        for each, cells in lists.items()
    ]
    return [title, "list", *map(", ".join, COLUMNS)], lines


if __name__ == "__main__":
    sys.exit(main())
