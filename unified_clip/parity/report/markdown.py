"""Write the report as Markdown (parity.md), for the summary of a CI job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from ..._kit import markdown
from ..known.entries import KINDS, SIZED
from ..modes import TITLES, UNIFIED_CLIP_MODES
from ..results import CaseResult, Counts, FrameworkResult, OwnPair, ParityReport, Problem, UnifiedClipResult
from . import build, compared_functions

NOTHING = "-"

MAX_BYTES = 1_000_000
"""GitHub rejects a job summary above 1024 KiB."""

LEGEND = (
    "unified_clip against the exact results. `equal`: the same bits. A number after any other verdict is the largest "
    "distance from the exact result in units in the last place (ULP). A number without a verdict means `close`: "
    "docs/contract.md allows the distance. The first verdict in a cell is for all modes that the cell does not name. "
    "`-`: nothing ran."
)
NATIVE_LEGEND = (
    "{whose}: the verdict. If the verdict is not `equal`, two numbers follow. The first number is the relative "
    "difference of the norm from the exact norm in float64. The second number is the largest difference in any "
    "gradient, relative to the largest element of the exact gradient. `close`: within rounding. `no norm`: the "
    "gradients are equal, and the function returned no norm. A cell `-`: the framework has no such function. A number "
    "`-`: the function returns no norm or no gradients."
)
KNOWN_LEGEND = "The entries of the suite's list of known differences. Sizes are relative."
OWN_PAIRS = "Cases in which the results of two of your functions differ by more than rounding. Sizes are relative "
OWN_PAIRS += "to the larger result."
OWN_PAIRS_HEADER = ["case", "frameworks", "verdict", "size", "difference"]
KNOWN_HEADER = ["framework", "function", "what differs", "size", "cases", "why"]


def glance(report: ParityReport) -> list[str]:
    lines = [compared_functions.line(report)]
    for mode in UNIFIED_CLIP_MODES:
        counts: Counts = {
            name: kinds for name, kinds in getattr(report.summary, mode).items() if name not in report.absent
        }
        exact = sum(kinds.get("equal", 0) for kinds in counts.values())
        if total := sum(sum(kinds.values()) for kinds in counts.values()):
            share = f"{exact} of {total} bit-exact ({exact / total:.1%})"
            lines.append(f"{TITLES[mode].capitalize()}: {share}: {_shares(counts)}.")
    if report.summary.natives:
        natives = {name: kinds for name, kinds in report.summary.natives.items() if name not in report.absent}
        lines.append(f"{legend('{whose}', report)}: {_shares(natives)}.")
    lines += own_pairs_lines(report)
    differ = any(case.differing_stages for case in report.cases)
    on_host = [framework for framework, kinds in report.summary.host.items() if kinds.keys() - {"missing"}]
    if report.exit_code == 0 and not differ and len(on_host) > 1:
        which = "all frameworks" if len(on_host) == len(report.frameworks) else ", ".join(on_host)
        lines.append(f"On the host path, {which} gave the same bits.")
    return [*lines, *report.notes]


def legend(text: str, report: ParityReport) -> str:
    formatted = text.format(whose=compared_functions.whose(report))
    return formatted[0].upper() + formatted[1:]


def _shares(counts: Counts) -> str:
    parts = []
    for framework, kinds in counts.items():
        verdicts = {"equal": kinds.get("equal", 0), **kinds}
        parts.append(f"{', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())} on {framework}")
    return "; ".join(parts)


def problem_lines(report: ParityReport) -> Iterator[str]:
    """Yield a line for each problem. The problems of one function are below a line with its name."""
    for what, group in groupby(report.problems, lambda problem: problem.what):
        problems = list(group)
        if len(problems) > 1:
            yield f"- {what}"
        yield from (f"  - {_finding(each)}" if len(problems) > 1 else f"- {problem_line(each)}" for each in problems)


def problem_line(problem: Problem) -> str:
    finding = _finding(problem)
    return f"{problem.what}: {finding}" if finding else problem.what


def _finding(problem: Problem) -> str:
    names = problem.cases
    cases = f"{len(names)} cases, first: {names[0]}" if len(names) > 1 else "".join(f"Case: {name}" for name in names)
    return ". ".join(filter(None, (problem.detail.removesuffix("."), cases)))


def own_pairs_lines(report: ParityReport) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for case in report.cases:
        for pair in case.own_pairs:
            counts.setdefault(f"{pair.left} and {pair.right}", Counter())[pair.verdict] += 1
    return [
        f"Your functions for {names}, compared with each other: "
        f"{', '.join(f'{count} {verdict}' for verdict, count in sorted(verdicts.items()))}."
        for names, verdicts in counts.items()
    ]


def own_pairs_rows(report: ParityReport) -> list[list[str]]:
    return [
        [case.name, f"{pair.left} and {pair.right}", pair.verdict, size(pair.size), _difference(case, pair)]
        for case in report.cases
        for pair in case.own_pairs
        if pair.verdict not in ("equal", "close")
    ]


def _difference(case: CaseResult, pair: OwnPair) -> str:
    """Return how the result of each function differs from the exact result."""
    natives = ((name, case.natives.get(name)) for name in (pair.left, pair.right))
    texts = (
        f"{name}: {each.cause or ('the cause is unknown' if each.kind in SIZED else KINDS[each.kind])}"
        for name, each in natives
        if each and each.kind
    )
    return pair.detail or "; ".join(texts) or NOTHING


def native_rows(report: ParityReport) -> list[list[str]]:
    return rows(report, native) if report.summary.natives else []


def known_rows(report: ParityReport) -> list[list[str]]:
    lines = []
    for entry in report.known:
        numbers = [size(entry.size), str(len(entry.cases))]
        lines.append([entry.framework, entry.function, KINDS[entry.kind], *numbers, entry.reason])
    return lines


def rows(report: ParityReport, text: Callable[[FrameworkResult], str]) -> list[list[str]]:
    return [
        [case.name, *(text(case.frameworks.get(name, FrameworkResult())) for name in report.frameworks)]
        for case in report.cases
    ]


def unified_clip(results: FrameworkResult) -> str:
    modes: dict[str, list[str]] = {}
    for mode, result in results.by_mode.items():
        modes.setdefault(_verdict(result), []).append(mode)
    first, *others = modes or [NOTHING]
    return "; ".join([first, *(f"{', '.join(modes[verdict])}: {verdict}" for verdict in others)])


def _verdict(result: UnifiedClipResult) -> str:
    if result.verdict == "equal" or not math.isfinite(result.ulps):
        return result.verdict
    return f"{result.ulps:.3g} ULP" if result.verdict == "close" else f"{result.verdict}, {result.ulps:.3g} ULP"


def native(results: FrameworkResult) -> str:
    """Return the verdict on a framework's function, such as "known: 1.2e-07 / 3.4e-06".

    The two numbers are the relative differences from the exact norm and from the exact gradients.
    """
    result = results.native
    if result is None:
        return NOTHING
    if result.is_failure or result.verdict in ("equal", "no norm"):
        return result.verdict
    if result.kind not in ("", "value", "touched"):
        return f"{result.verdict}: {result.kind}"
    return f"{result.verdict}: {size(result.norm)} / {size(result.gradients)}"


def size(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else str(value)
    return "0" if value == 0 else f"{value:.1e}"


def as_markdown(report: ParityReport, most: int = MAX_BYTES) -> str:
    report = report.safe()
    header = ["case", *report.frameworks]
    versions = [f"- {name} {version}" for name, version in report.versions.items()]
    problems = [f"{'  ' * line.startswith(' ')}{markdown.inline(line)}" for line in problem_lines(report)]
    parts = ["# Parity report", report.verdict]
    sections = [
        ("Problems", build.next_steps(report), problems),
        ("At a glance", [], [f"- {markdown.inline(line)}" for line in glance(report)]),
        (
            "Your functions compared with each other",
            [OWN_PAIRS],
            markdown.rows(OWN_PAIRS_HEADER, own_pairs_rows(report)),
        ),
        ("Known differences", [KNOWN_LEGEND], markdown.rows(KNOWN_HEADER, known_rows(report))),
        ("Versions", [], versions),
        ("unified_clip", [LEGEND], markdown.rows(header, rows(report, unified_clip))),
        (legend("{whose}", report), [legend(NATIVE_LEGEND, report)], markdown.rows(header, native_rows(report))),
    ]
    room = most - len("\n\n".join(parts).encode()) - len(sections) * 200  # for a line on each section that is cut
    for title, below, lines in sections:
        kept = list(_fitting(lines, room - sum(len(each.encode()) + 4 for each in (title, *below))))
        if kept:
            parts += [f"## {title}", *below, "\n".join(kept)]
            room -= len("\n\n".join(parts[-2 - len(below) :]).encode()) + 2
        if cut := len(lines) - len(kept):
            parts.append(f"{title}: {cut} lines are left out here. index.html and parity.json contain all lines.")
    return "\n\n".join(parts) + "\n"


def _fitting(lines: Sequence[str], room: int) -> Iterator[str]:
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return
        yield line
