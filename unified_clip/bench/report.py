"""Write and print the results of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._kit import atomic_files
from .._kit.display import cell

NOTHING = "-"
LABELS = ("framework", "list", "dtype")

SLACK = 0.5
"""The machine is busy if the load exceeds the number of processors by more than SLACK."""

BUSY = (
    "The machine was busy, so the times and ratios are unreliable. Bench used {threads} of {cpus} processors, and "
    "other processes had a load average of {load:g}. Run bench again on an idle machine, or pass fewer --threads."
)

Table = tuple[Sequence[str], list[list[str]]]


def write(data: Mapping[str, Any], out: Path) -> None:
    atomic_files.write(out / "bench.json", as_json(data))


def as_json(data: Mapping[str, Any]) -> str:
    parts = []
    for key, value in data.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if value else "[]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def pairs_table(data: Mapping[str, Any], framework: str) -> Table:
    header = ["list", "dtype", "", "native", "unified_clip, ms", "native, ms", "native / unified_clip"]
    rows = [row for row in data["results"] if row["framework"] == framework]
    floors = [[number(row["floor_ms"])] if "floor_ms" in row else [] for row in rows]
    return header + ["memory floor, ms"] * any(floors), [
        [row["list"], row["dtype"], row["what"], row["native"] or NOTHING]
        + [middle(row["ours_ms"]), middle(row["native_ms"]), spread(row["ratio"]), *floor]
        for row, floor in zip(rows, floors, strict=True)
    ]


def limits_table(data: Mapping[str, Any]) -> Table:
    header = [*LABELS, "bytes", "NumPy read, ms", "NumPy read and write, ms"]
    header += ["norm time / NumPy read time", "clip time / sum of both NumPy times"]
    rows = []
    for row in data["limits"]:
        read, both = row["read_ms"][1], row["read_write_ms"][1]
        norm, clipped = (_fastest(data, row, kind) for kind in ("norm alone", "clipped"))
        numbers = map(number, (read, both, norm / read, clipped / (read + both)))
        rows.append([*_labels(row), f"{row['bytes']:,}", *numbers])
    return header, rows


def _fastest(data: Mapping[str, Any], like: Mapping[str, Any], kind: str) -> float:
    alike = [row for row in data["results"] if _labels(row) == _labels(like)]
    return min(float(row["ours_ms"][1]) for row in alike if row["what"] == kind)


def memory_table(data: Mapping[str, Any]) -> Table:
    header = [*LABELS, "native", "unified_clip, MiB", "native, MiB"]
    return header, [
        [*_labels(row), row["native"] or NOTHING, _mebibytes(row["ours_bytes"]), _mebibytes(row["native_bytes"])]
        for row in data["memory"]
    ]


def _labels(row: Mapping[str, Any]) -> list[str]:
    return [row[key] for key in LABELS]


def _mebibytes(count: int | None) -> str:
    return NOTHING if count is None else f"{count / 2**20:.1f}"


def middle(quartiles: Sequence[float] | None) -> str:
    return NOTHING if quartiles is None else number(quartiles[1])


def spread(quartiles: Sequence[float] | None) -> str:
    if quartiles is None:
        return NOTHING
    low, median, high = map(number, quartiles)
    return f"{median} ({low} to {high})"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def problems(data: Mapping[str, Any]) -> list[str]:
    missing = [f"{name} was not measured: {why}" for name, why in data["missing"].items()]
    failed = [f"{name}: the benchmark process ended: {why}" for name, why in data["failed"].items()]
    slow = [name for name, compiled in data["compiled_kernels"].items() if not compiled]
    remedy = (
        "Install unified_clip with a C++ compiler, unset UNIFIED_CLIP_NATIVE, and run outside unified_clip's source "
        "directory."
    )
    problem = f"unified_clip ran without its compiled kernels for {', '.join(slow)}. {remedy}"
    load, cpus = data["machine"].get("other_load", 0), data["machine"]["cpus"]
    busy = BUSY.format(load=load, cpus=cpus, threads=data["threads"])
    is_busy = load + data["threads"] > cpus + SLACK
    return missing + failed + [problem] * bool(slow) + [busy] * is_busy


def show(data: Mapping[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    tables = [(name, pairs_table(data, name)) for name in data["compiled_kernels"]]
    tables += [("the machine's limits", limits_table(data)), ("temporary memory", memory_table(data))]
    for title, (header, rows) in tables:
        if rows:
            table = RichTable(*header, title=title, title_justify="left")
            for row in rows:
                table.add_row(*map(cell, row))
            console.print(table)
    for line in [*problems(data), f"Results: {out / 'bench.json'}."]:
        console.print(cell(line), soft_wrap=True)
