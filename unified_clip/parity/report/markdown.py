"""The report as Markdown, for the summary of a CI job, and as tables on the terminal, both from parity.json's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import _markdown
from ..._display import cell, safe
from ..known.entries import KINDS
from ..modes import HOST, NATIVE, OURS
from . import baseline

Data = Mapping[str, Any]

NOTHING = "-"

MOST = 1_000_000
"""Bytes of the Markdown. GitHub rejects more than 1024 KiB from one step, which may write other text too."""

LEGEND = (
    "Ours against the exact oracle: `equal` is the same bits, else the verdict and the greatest distance in units in "
    "the last place (ulp). Where modes differ, those that came out otherwise than the first are named."
)
NATIVE_LEGEND = (
    "The frameworks' own functions: the verdict, and where they are not equal the relative distance of the norm from "
    "the exact one / the greatest difference of a gradient, relative to the greatest element."
)
KNOWN_LEGEND = "Every difference of the frameworks' own functions that is more than rounding; sizes are relative."
KNOWN_HEADER = ["framework", "function", "what differs", "size", "cases", "why"]


def headline(data: Data) -> list[str]:
    """Return the result in a few lines, the verdict first."""
    counts = data["summary"]
    lines = [data["verdict"]]
    for path, title in OURS.items():
        shares = counts[path]
        exact, total = (sum(kinds.get("equal", 0) for kinds in shares.values()), sum(map(_total, shares.values())))
        if total:
            lines.append(
                f"{title.capitalize()}: {exact} of {total} bit-exact ({exact / total:.1%}): {_shares(shares)}."
            )
    if counts["natives"]:
        lines.append(f"The frameworks' own functions: {_shares(counts['natives'])}.")
    apart = any(case["stages_apart"] for case in data["cases"])
    on_host = [framework for framework, kinds in counts[HOST].items() if kinds.keys() - {"missing"}]
    if data["exit_code"] == 0 and not apart and len(on_host) > 1:
        whose = "all frameworks" if len(on_host) == len(data["frameworks"]) else ", ".join(on_host)
        lines.append(f"On the host path {whose} gave the same bits.")
    if data["baseline"] is not None:
        lines.append(baseline.headline(data["baseline"]))
    return [*lines, *data["notes"]]


def _shares(shares: Mapping[str, Mapping[str, int]]) -> str:
    parts = []
    for framework, kinds in shares.items():
        others = "".join(f", {count} {kind}" for kind, count in kinds.items() if kind != "equal")
        parts.append(f"{framework} {kinds.get('equal', 0)}{others}")
    return "; ".join(parts)


def _total(kinds: Mapping[str, int]) -> int:
    return sum(kinds.values())


def problem_lines(data: Data) -> list[str]:
    """Return a line for each problem."""
    return [": ".join(filter(None, (each["what"], _where(each["cases"]), each["detail"]))) for each in data["problems"]]


def _where(names: Sequence[str]) -> str:
    return f"{len(names)} cases, first {names[0]}" if len(names) > 1 else "".join(names)


def known_rows(data: Data) -> list[list[str]]:
    """Return a row for each known difference, see KNOWN_HEADER."""
    return [
        [
            each["framework"],
            each["function"],
            KINDS[each["kind"]],
            size(each["size"]),
            str(len(each["cases"])),
            f"{each['reason']} ({each['versions']})" if each["versions"] else each["reason"],
        ]
        for each in data["known"]
    ]


def rows(data: Data, text: Callable[[Data], str]) -> list[list[str]]:
    """Return a row for each case, with the text of each framework."""
    return [
        [
            case["name"],
            *(text(case["frameworks"][each]) if each in case["frameworks"] else NOTHING for each in data["frameworks"]),
        ]
        for case in data["cases"]
    ]


def ours(results: Data) -> str:
    modes: dict[str, list[str]] = {}
    for mode, result in results.items():
        if mode != NATIVE:
            modes.setdefault(_verdict(result), []).append(mode)
    first, *others = modes or [NOTHING]
    return "; ".join([first, *(f"{', '.join(modes[said])}: {said}" for said in others)])


def _verdict(result: Data) -> str:
    kind, ulps = result["verdict"], result["ulps"]
    if kind == "equal" or isinstance(ulps, str):
        return str(kind)
    return f"{ulps:.3g} ulp" if kind == "close" else f"{kind}, {ulps:.3g} ulp"


def native(results: Data) -> str:
    result = results.get(NATIVE)
    if result is None:
        return NOTHING
    if result["function"] is None or result["verdict"] == "equal":
        return str(result["verdict"])
    if result["kind"] not in ("", "value", "touched"):
        return f"{result['verdict']}: {result['kind']}"
    return f"{result['verdict']}: {size(result['norm'])} / {size(result['gradients'])}"


def size(value: float | str | None) -> str:
    """Return a relative size as short text."""
    if value is None or isinstance(value, str):
        return value or NOTHING
    return "0" if value == 0 else f"{value:.1e}"


# -- Markdown


def as_markdown(data: Data, most: int = MOST) -> str:
    """Return the report in at most `most` bytes. The text names the tables that were cut."""
    data = safe(data)
    header = ["case", *data["frameworks"]]
    versions = [f"- {name} {version}" for name, version in data["versions"].items()]
    wrong = [f"- {_markdown.inline(line)}" for line in problem_lines(data)]
    parts = ["# Parity report", *headline(data)]
    sections = [
        ("Since the baseline", [], _markdown.rows(baseline.HEADER, baseline.rows(data["baseline"] or []))),
        ("What is wrong", [], wrong),
        ("Known differences of the natives", [KNOWN_LEGEND], _markdown.rows(KNOWN_HEADER, known_rows(data))),
        ("Versions", [], versions),
        ("Ours", [LEGEND], _markdown.rows(header, rows(data, ours))),
        ("The frameworks' own functions", [NATIVE_LEGEND], _markdown.rows(header, rows(data, native))),
    ]
    room = most - len("\n\n".join(parts).encode()) - len(sections) * 200  # for what is said of each that is cut
    for title, legend, lines in sections:
        kept = list(_fitting(lines, room - sum(len(each.encode()) + 4 for each in (title, *legend))))
        if kept:
            parts += [f"## {title}", *legend, "\n".join(kept)]
            room -= len("\n\n".join(parts[-2 - len(legend) :]).encode()) + 2
        if len(kept) < len(lines):
            parts.append(
                f"{title}: {len(lines) - len(kept)} lines are left out here; index.html and parity.json have all."
            )
    return "\n\n".join(parts) + "\n"


def _fitting(lines: Sequence[str], room: int) -> Iterator[str]:
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return
        yield line


# -- the terminal


def show(data: Data, out: Path) -> None:
    """Print tables (with a baseline only the changes), problems, the headline, and the path of the report."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    header = ["case", *data["frameworks"]]
    tables = [
        (LEGEND, header, rows(data, ours)),
        (NATIVE_LEGEND, header, rows(data, native)),
        (KNOWN_LEGEND, KNOWN_HEADER, known_rows(data)),
    ]
    if data["baseline"] is not None:
        tables = [("Since the baseline.", baseline.HEADER, baseline.rows(data["baseline"]))]
    for legend, columns, lines in tables:
        if lines:
            table = Table(caption=legend, caption_justify="left")
            for title in columns:
                table.add_column(cell(title))
            for line in lines:
                table.add_row(*map(cell, line))
            console.print(table)
    where = f"The report: {out / 'index.html'}, and parity.md, parity.json and parity.xml beside it."
    wrong = problem_lines(data) if data["exit_code"] else []  # what a baseline excuses is in the report
    for said in [*wrong, *headline(data), where]:
        console.print(cell(said), soft_wrap=True)
