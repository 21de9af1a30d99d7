"""Write the tables of docs/performance.md and benchmarks/results/*.md, from the measurements in benchmarks/results."""

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
VARIANTS = {"CUDA kernels": "with the CUDA kernels", "operations": "without the kernels"}
COLUMNS = [(dtype, threshold) for dtype in ("float32", "bfloat16") for threshold in ("not clipped", "clipped")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with benchmarks/ and docs/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the tables are stale")
    options = parser.parse_args(arguments)
    stale = []
    for document, names in DOCUMENTS.items():
        path = options.root / document
        text = new = path.read_text(encoding="utf-8")
        for name, (results, made) in names.items():
            written = made(json.loads((options.root / "benchmarks/results" / results).read_text(encoding="utf-8")))
            place = re.compile(rf"(<!-- {name}: [^>]*-->\n\n).*(\n\n<!-- end of {name} -->)", re.DOTALL)
            parts = place.split(new)
            if len(parts) != 4:
                print(f"{document} has no place for the tables: {place.pattern}", file=sys.stderr)
                return 2
            before, begin, end, after = parts
            new = before + begin + written + end + after
        if new != text:
            stale.append(document)
        if new != text and not options.check:
            path.write_text(new, encoding="utf-8")
    if options.check and stale:
        print(f"stale tables: {', '.join(stale)}; run benchmarks/tables.py", file=sys.stderr)
    return int(options.check and bool(stale))


def summary(data: Mapping[str, Any]) -> str:
    """Return the smallest and the largest ratio of each function over all lists."""
    ranges: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in data["results"]:
        kind = row["what"].partition(", in a graph")[0]
        if row["ratio"] and kind != "norm alone":
            ranges.setdefault(row["native"], {}).setdefault((row["dtype"], kind), []).append(row["ratio"][1])
    table = markdown.table(*_of_ranges("native / unified_clip", ranges))
    return f"{_measured_on(data)}\n\n{table}\n\nA {report.NOTHING} means not measured."


def gpu_summary(data: Mapping[str, Any]) -> str:
    ranges: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in data["results"]:
        kind, graph, _ = row["what"].partition(", in a graph")
        if kind != "norm alone":
            name = f"{'CUDA graphs' if graph else 'eager calls'} {VARIANTS[row['native'].split(', ')[1]]}"
            ranges.setdefault(name, {}).setdefault((row["dtype"], kind), []).append(row["ratio"][1])
    return "\n\n".join([_measured_on_gpu(data), markdown.table(*_of_ranges("PyTorch / unified_clip", ranges))])


def _of_ranges(title: str, ranges: Mapping[str, Mapping[tuple[str, str], Sequence[float]]]) -> report.Table:
    def text(ratios: Sequence[float]) -> str:
        ends = dict.fromkeys(report.middle([0.0, ratio, 0.0]) for ratio in (min(ratios), max(ratios)))
        return " to ".join(ends)

    rows = [
        [name, *(text(cells[column]) if column in cells else report.NOTHING for column in COLUMNS)]
        for name, cells in ranges.items()
    ]
    return [title, *map(", ".join, COLUMNS)], rows


def tables(data: Mapping[str, Any]) -> str:
    """Return the tables of ratios, with the machine and the versions."""
    paragraphs = [_measured_on(data)]
    titled = [("In graphs", graphs_table(data))]
    titled += [(f"On {name}", outside_graphs(report.pairs_table(data, name))) for name in data["compiled_kernels"]]
    for title, (header, rows) in titled:
        if rows:
            paragraphs += [f"### {title}", markdown.table(header, rows)]
    return "\n\n".join(paragraphs)


def _measured_on(data: Mapping[str, Any]) -> str:
    machine = f"{data['machine']['architecture']}, {data['machine']['cpus']} processors, {data['threads']} threads"
    if instruction_set := data["machine"]["instruction_set"]:
        machine += f", kernels for {instruction_set}"
    problems = [f"Not whole: {line}" for line in report.problems(data)]
    return "\n\n".join([f"Measured on {machine}, with {versions(data)}.", *problems])


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
    paragraphs = [_measured_on_gpu(data)]
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


def _measured_on_gpu(data: Mapping[str, Any]) -> str:
    machine = data["machine"]
    return f"Measured on one {machine['device']} with CUDA {machine['cuda']} and {versions(data)}."


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


DOCUMENTS = {
    "docs/performance.md": {"bench": ("bench.json", summary), "gpu": ("gpu.json", gpu_summary)},
    "benchmarks/results/cpu.md": {"bench": ("bench.json", tables)},
    "benchmarks/results/gpu.md": {"gpu": ("gpu.json", gpu_tables)},
}
"""{document: {name of a place in it: (measurements, what writes them)}}."""

if __name__ == "__main__":
    sys.exit(main())
