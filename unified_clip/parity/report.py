"""What came of a run: as JSON, as Markdown, and as a table on the terminal. The same run gives the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import junit
from .compare import Verdict
from .engine import Cell, Run
from .launch import OURS
from .natives import KINDS, Shown

NOTHING = "-"

VERDICTS = {
    0: "PASS: every result is exact, or within the contract (close, flushed) on the device path; every difference of "
    "the natives is a known one.",
    1: "FAIL: results of ours differ from each other or from exact arithmetic, or the list of known differences is not "
    "true.",
    3: "FAIL: a framework is missing, crashed or gave no result, or nothing was compared.",
}
"""By exit status."""

LEGEND = (
    "Ours against the exact oracle: `equal` is the same bits, else the verdict and the greatest distance in units in "
    "the last place (ulp). Where modes differ, those that came out otherwise than the first are named."
)
NATIVE_LEGEND = (
    "The frameworks' own functions: the verdict, and where they are not equal the relative distance of the norm from "
    "the exact one / the greatest difference of a gradient, relative to the greatest element."
)
KNOWN_LEGEND = "Every difference of the frameworks' own functions that is more than rounding; sizes are relative."


def write(run: Run, out: Path) -> None:
    """Write parity.json, parity.md and parity.xml (JUnit) into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "parity.json").write_text(json.dumps(as_data(run), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / "parity.md").write_text(as_markdown(run), encoding="utf-8")
    (out / "parity.xml").write_bytes(junit.as_xml(run))


# -- JSON


def as_data(run: Run) -> dict[str, Any]:
    """The run as JSON has it; infinities and NaN are strings."""
    return {
        "versions": run.versions,
        "frameworks": list(run.frameworks),
        "titles": dict(run.titles),
        "exit_code": run.exit_code,
        "summary": summary(run),
        "known": [_known_data(shown) for shown in run.known],
        "cases": [
            {
                "name": row.case.name,
                "sha256": row.digests,
                "stages_apart": row.apart,
                "frameworks": {framework: _cell_data(cell) for framework, cell in row.cells.items()},
            }
            for row in run.rows
        ],
    }


def summary(run: Run) -> dict[str, Any]:
    """How many cases there are, and on each path and framework how many came out bit for bit, and how else."""
    agreeing = sum(not row.apart for row in run.rows)
    paths = {path: _counts(run, lambda cell, path=path: _kind(cell, path)) for path in OURS}  # type: ignore[misc]
    natives = _counts(run, lambda cell: cell.judgement)
    return {"cases": len(run.rows), "cases_where_frameworks_agree": agreeing, **paths, "natives": natives}


def _counts(run: Run, kind: Callable[[Cell], str | None]) -> dict[str, dict[str, int]]:
    """By framework, how often each kind."""
    counts = {}
    for framework in run.frameworks:
        kinds = [found for row in run.rows if framework in row.cells and (found := kind(row.cells[framework]))]
        if kinds:
            counts[framework] = {each: kinds.count(each) for each in sorted(set(kinds))}
    return counts


def _kind(cell: Cell, path: str) -> str | None:
    return cell.verdicts[path].kind if path in cell.verdicts else None


def _cell_data(cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for path, verdict in cell.verdicts.items():
        stages = {stage: _number(size) for stage, size in verdict.stages.items()}
        data[path] = {"verdict": verdict.kind, "ulps": _number(verdict.ulps), "detail": verdict.detail}
        data[path] |= {"stages": stages, "sha256": cell.digests.get(path)}
    if cell.native:
        native = cell.native
        data["native"] = {"function": native.function, "verdict": cell.judgement, "kind": native.kind}
        data["native"] |= {"norm": _number(native.norm), "gradients": _number(native.gradients)}
        data["native"] |= {"detail": native.detail, "problem": cell.problem}
    return data


def _known_data(shown: Shown) -> dict[str, Any]:
    known = shown.known
    return {
        "framework": known.framework,
        "function": known.function,
        "kind": known.kind,
        "listed_size": _number(known.size) if shown.size else None,
        "size": _number(shown.size) if shown.size else None,
        "reason": known.reason,
        "title": known.title,
        "versions": known.versions,
        "problem": shown.problem,
        "cases": list(shown.cases),
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


# -- text


def headline(run: Run) -> list[str]:
    """The result in a few lines."""
    counts = summary(run)
    lines = [f"{len(run.rows)} cases on {', '.join(run.frameworks)}."]
    for path, title in OURS.items():
        shares = counts[path]
        exact, total = (sum(kinds.get("equal", 0) for kinds in shares.values()), sum(map(_total, shares.values())))
        if total:
            lines.append(
                f"{title.capitalize()}: {exact} of {total} bit-exact ({exact / total:.1%}): {_shares(shares)}."
            )
    if counts["natives"]:
        lines.append(f"The frameworks' own functions: {_shares(counts['natives'])}.")
    apart = [f"{row.case.name} ({', '.join(row.apart)})" for row in run.rows if row.apart]
    if apart:
        lines.append(f"Frameworks differ from each other on the host path in: {'; '.join(apart)}.")
    if run.exit_code == 0 and len(run.frameworks) > 1:
        lines.append("On the host path all frameworks gave the same bits.")
    return [*lines, VERDICTS[run.exit_code]]


def _shares(shares: dict[str, dict[str, int]]) -> str:
    parts = []
    for framework, kinds in shares.items():
        others = "".join(f", {count} {kind}" for kind, count in kinds.items() if kind != "equal")
        parts.append(f"{framework} {kinds.get('equal', 0)}{others}")
    return "; ".join(parts)


def _total(kinds: dict[str, int]) -> int:
    return sum(kinds.values())


def problems(run: Run) -> list[str]:
    """A line for everything that is not as it should be; one for all the cases that share a reason."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in run.rows:
        for framework, cell in row.cells.items():
            for path, verdict in cell.verdicts.items():
                if not verdict.agrees and not (verdict.kind == "missing" and framework in run.may_be_missing):
                    found.setdefault((f"{framework}, {OURS[path]}, {verdict.kind}", verdict.detail), []).append(
                        row.case.name
                    )
            if cell.failure and not (cell.failure.kind == "missing" and framework in run.may_be_missing):
                found.setdefault((f"{framework}, natives, {cell.failure.kind}", cell.failure.detail), []).append(
                    row.case.name
                )
            if cell.problem and cell.native:
                found.setdefault((f"{framework}, {cell.native.function}", cell.problem), []).append(row.case.name)
    lines = []
    for (what, detail), names in found.items():
        where = names[0] if len(names) == 1 else f"{len(names)} cases, first {names[0]}"
        lines.append(f"{what}: {where}: {detail}")
    for shown in run.known:
        if shown.problem:
            known = shown.known
            lines.append(f"known difference {known.framework}, {known.function}, {known.reason!r}: {shown.problem}")
    return lines


def our_rows(run: Run) -> list[list[str]]:
    return _rows(run, _ours)


def native_rows(run: Run) -> list[list[str]]:
    return _rows(run, _native)


def known_rows(run: Run) -> list[list[str]]:
    """Framework, function, what differs, by how much, in how many cases, why, in which versions if not in all."""
    return [
        [
            shown.known.framework,
            shown.known.function,
            KINDS[shown.known.kind],
            NOTHING if not shown.size else _size(shown.size),
            str(len(shown.cases)),
            f"{shown.known.reason} ({shown.known.versions})" if shown.known.versions else shown.known.reason,
        ]
        for shown in run.known
    ]


def _rows(run: Run, text: Callable[[Cell], str]) -> list[list[str]]:
    return [
        [row.case.name, *(text(row.cells[each]) if each in row.cells else NOTHING for each in run.frameworks)]
        for row in run.rows
    ]


def _ours(cell: Cell) -> str:
    modes: dict[str, list[str]] = {}
    for mode, verdict in cell.verdicts.items():
        modes.setdefault(_verdict(verdict), []).append(mode)
    if not modes:
        return NOTHING
    first, *others = modes
    return "; ".join([first, *(f"{', '.join(modes[text])}: {text}" for text in others)])


def _verdict(verdict: Verdict) -> str:
    if verdict.kind == "equal" or not math.isfinite(verdict.ulps):
        return verdict.kind
    return f"{verdict.ulps:.3g} ulp" if verdict.kind == "close" else f"{verdict.kind}, {verdict.ulps:.3g} ulp"


def _native(cell: Cell) -> str:
    native = cell.native
    if native is None:
        return cell.failure.kind if cell.failure else NOTHING
    if native.kind not in ("", "value", "touched"):
        return f"{cell.judgement}: {native.kind}"
    if cell.judgement == "equal":
        return "equal"
    return f"{cell.judgement}: {_size(native.norm)} / {_size(native.gradients)}"


def _size(value: float | None) -> str:
    return NOTHING if value is None else "0" if value == 0 else f"{value:.1e}"


KNOWN_HEADER = ["framework", "function", "what differs", "size", "cases", "why"]


def as_markdown(run: Run) -> str:
    """The report for reading."""
    wrong, header = problems(run), ["case", *run.frameworks]
    parts = [
        "# Parity report",
        *headline(run),
        *(["## What is wrong", "\n".join(f"- {line}" for line in wrong)] if wrong else []),
        "## Known differences of the natives",
        KNOWN_LEGEND,
        markdown_table(KNOWN_HEADER, known_rows(run)),
        "## Ours",
        LEGEND,
        markdown_table(header, our_rows(run)),
        "## The frameworks' own functions",
        NATIVE_LEGEND,
        markdown_table(header, native_rows(run)),
        "## Versions",
        "\n".join(f"- {name} {version}" for name, version in run.versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(run: Run, out: Path) -> None:
    """Print tables, the headline, and where the report is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    header = ["case", *run.frameworks]
    tables = (
        (LEGEND, header, our_rows(run)),
        (NATIVE_LEGEND, header, native_rows(run)),
        (KNOWN_LEGEND, KNOWN_HEADER, known_rows(run)),
    )
    for legend, columns, rows in tables:
        if rows:
            table = Table(*columns, caption=legend, caption_justify="left")
            for row in rows:
                table.add_row(*map(escape, row))
            console.print(table, markup=False)
    for line in [*problems(run), *headline(run), f"The report: {out / 'parity.md'}, parity.json and parity.xml."]:
        console.print(line, markup=False, soft_wrap=True)
