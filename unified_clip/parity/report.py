"""What came of a run: as JSON, as Markdown, and as a table on the terminal. The same run gives the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .compare import Verdict
from .engine import Cell, Run
from .launch import DEVICE, HOST

NOTHING = "-"

VERDICTS = {
    0: "PASS: every result is exact, or within the contract (close, flushed) on the device path.",
    1: "FAIL: results of ours differ from each other or from exact arithmetic.",
    3: "FAIL: a framework is missing, crashed or gave no result.",
}
"""By exit status."""

LEGEND = (
    "Ours against the exact oracle: `equal` is the same bits, else the verdict and the greatest distance in units in "
    "the last place (ulp). Where the host path and the device path differ: host / device."
)
NATIVE_LEGEND = (
    "The frameworks' own functions: relative distance of the norm from the exact one / greatest difference of a "
    "gradient, relative to the greatest element."
)


def write(run: Run, out: Path) -> None:
    """Write parity.json and parity.md into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "parity.json").write_text(json.dumps(as_data(run), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / "parity.md").write_text(as_markdown(run), encoding="utf-8")


# -- JSON


def as_data(run: Run) -> dict[str, Any]:
    """The run as JSON has it; infinities and NaN are strings."""
    return {
        "versions": run.versions,
        "frameworks": list(run.frameworks),
        "summary": summary(run),
        "cases": [
            {
                "name": row.case.name,
                "sha256": row.digest,
                "frameworks_agree": row.frameworks_agree,
                "frameworks": {framework: _cell_data(cell) for framework, cell in row.cells.items()},
            }
            for row in run.rows
        ],
    }


def summary(run: Run) -> dict[str, Any]:
    """How many cases there are, and on each path and framework how many came out bit for bit, and how else."""
    counts: dict[str, Any] = {}
    for path in (HOST, DEVICE):
        counts[path] = {}
        for framework in run.frameworks:
            kinds = [
                row.cells[framework].verdicts[path].kind for row in run.rows if path in row.cells[framework].verdicts
            ]
            if kinds:
                counts[path][framework] = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    agreeing = sum(row.frameworks_agree for row in run.rows)
    return {"cases": len(run.rows), "cases_where_frameworks_agree": agreeing, **counts}


def _cell_data(cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for path, verdict in cell.verdicts.items():
        data[path] = {"verdict": verdict.kind, "ulps": _number(verdict.ulps), "detail": verdict.detail}
        data[path]["sha256"] = cell.digests.get(path)
    if cell.native:
        native = cell.native
        data["native"] = {"function": native.function, "norm": _number(native.norm), "note": native.note}
        data["native"]["gradients"] = _number(native.gradients)
    return data


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


# -- text


def headline(run: Run) -> list[str]:
    """The result in a few lines."""
    lines = [f"{len(run.rows)} cases on {', '.join(run.frameworks)}."]
    for path, title in ((HOST, "Host path"), (DEVICE, "Device path")):
        shares = summary(run)[path]
        parts = []
        for framework, kinds in shares.items():
            others = "".join(f", {count} {kind}" for kind, count in kinds.items() if kind != "equal")
            parts.append(f"{framework} {kinds.get('equal', 0)}{others}")
        exact, total = (sum(kinds.get("equal", 0) for kinds in shares.values()), sum(map(_total, shares.values())))
        if total:
            lines.append(f"{title}: {exact} of {total} bit-exact ({exact / total:.1%}): {'; '.join(parts)}.")
    apart = [row.case.name for row in run.rows if not row.frameworks_agree]
    if apart:
        lines.append(f"Frameworks differ from each other on the host path in: {'; '.join(apart)}.")
    if run.exit_code == 0 and len(run.frameworks) > 1:
        lines.append("On the host path all frameworks gave the same bits.")
    return [*lines, VERDICTS[run.exit_code]]


def _total(kinds: dict[str, int]) -> int:
    return sum(kinds.values())


def problems(run: Run) -> list[str]:
    """A line for everything that does not agree; one for all the cases that share a reason."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for row in run.rows:
        for framework, cell in row.cells.items():
            for path, verdict in cell.verdicts.items():
                if not verdict.agrees:
                    found.setdefault((framework, path, verdict.kind, verdict.detail), []).append(row.case.name)
    lines = []
    for (framework, path, kind, detail), names in found.items():
        where = names[0] if len(names) == 1 else f"{len(names)} cases, first {names[0]}"
        lines.append(f"{framework}, {path} path, {kind}: {where}: {detail}")
    return lines


def our_rows(run: Run) -> list[list[str]]:
    return _rows(run, _ours)


def native_rows(run: Run) -> list[list[str]]:
    return _rows(run, _native)


def _rows(run: Run, text: Callable[[Cell], str]) -> list[list[str]]:
    return [[row.case.name, *(text(row.cells[framework]) for framework in run.frameworks)] for row in run.rows]


def _ours(cell: Cell) -> str:
    texts = [_verdict(verdict) for verdict in cell.verdicts.values()]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _verdict(verdict: Verdict) -> str:
    if verdict.kind == "equal" or not math.isfinite(verdict.ulps):
        return verdict.kind
    return f"{verdict.ulps:.3g} ulp" if verdict.kind == "close" else f"{verdict.kind}, {verdict.ulps:.3g} ulp"


def _native(cell: Cell) -> str:
    native = cell.native
    if native is None:
        return NOTHING
    if native.note:
        return "raises" if native.norm is None else f"{_size(native.norm)} / {native.note}"
    return f"{_size(native.norm)} / {_size(native.gradients)}"


def _size(value: float | None) -> str:
    return NOTHING if value is None else "0" if value == 0 else f"{value:.1e}"


def as_markdown(run: Run) -> str:
    """The report for reading."""
    wrong = problems(run)
    parts = [
        "# Parity report",
        *headline(run),
        *(["## What does not agree", "\n".join(f"- {line}" for line in wrong)] if wrong else []),
        "## Ours",
        LEGEND,
        _markdown_table(run, our_rows(run)),
        "## The frameworks' own functions",
        NATIVE_LEGEND,
        _markdown_table(run, native_rows(run)),
        "## Versions",
        "\n".join(f"- {name} {version}" for name, version in run.versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(run: Run, rows: Sequence[Sequence[str]]) -> str:
    lines = [["case", *run.frameworks], ["---"] * (len(run.frameworks) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(run: Run, out: Path) -> None:
    """Print tables, the headline, and where the report is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for legend, rows in ((LEGEND, our_rows(run)), (NATIVE_LEGEND, native_rows(run))):
        table = Table("case", *run.frameworks, caption=legend, caption_justify="left")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table, markup=False)
    for line in [*problems(run), *headline(run), f"The report: {out / 'parity.md'} and parity.json."]:
        console.print(line, markup=False, soft_wrap=True)
