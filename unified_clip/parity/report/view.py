"""What every output of a report shows: lines on the problems, counts, and rows of tables.

`write.py` and `page.py` put these lines and rows into the templates of `web`, and `terminal.py` prints some of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby

from ..._kit.display import counted, enumeration
from ..judge.verdict import AGREEING
from ..known.entries import KINDS
from ..modes import NATIVE, TITLES, UNIFIED_CLIP_MODES, YOURS
from ..results import (
    SIDES,
    WIDTH,
    CaseResult,
    FrameworkResult,
    KnownDifferenceResult,
    NativeResult,
    ParityReport,
    Problem,
    Result,
    UnifiedClipResult,
)

NOTHING = "-"
THEIRS = "the frameworks' functions"
YOUR_FUNCTIONS = "your functions"

KNOWN_HEADER = ["framework", "function", "what differs", "size", "cases", "why"]


def title(mode: str, result: Result | None) -> str:
    return YOURS if isinstance(result, NativeResult) and result.is_users else TITLES[mode]


def titles(report: ParityReport) -> dict[str, str]:
    natives = {title(NATIVE, result) for _, result in report.natives()} or {TITLES[NATIVE]}
    both = f"framework's or {YOURS}"
    return {**TITLES, NATIVE: both if len(natives) > 1 else natives.pop()}


def whose(report: ParityReport, *verdicts: str) -> str:
    """verdicts: The verdicts of the results to consider. The default is all results."""
    users = {result.is_users for _, result in report.natives() if not verdicts or result.verdict in verdicts}
    if True not in users:
        return THEIRS
    return f"{THEIRS} and yours" if False in users else YOUR_FUNCTIONS


def natives_title(report: ParityReport) -> str:
    functions = whose(report)
    return functions[0].upper() + functions[1:]


def compared(report: ParityReport) -> str:
    """Return a sentence that names everything that the run compared."""
    parts = ["unified_clip"] if any(not result.is_failure for _, result in report.results()) else []
    natives = [(name, result) for name, result in report.natives() if not result.is_failure]
    parts += ["the frameworks' own functions"] if any(not result.is_users for _, result in natives) else []
    without_norm = {(result.function, name) for name, result in natives if result.lacks_norm}
    parts += dict.fromkeys(
        f"{result.function} ({name}{', gradients only' if (result.function, name) in without_norm else ''})"
        for name, result in natives
        if result.is_users
    )
    cases = f"{counted(len(report.cases), 'case')} on {', '.join(report.frameworks)}"
    return f"Compared with exact arithmetic in {cases}: {enumeration(parts) or 'nothing'}."


# -- problems


def problem_lines(report: ParityReport, *, accepting: bool = False) -> Iterator[str]:
    """Yield a line for each problem. The problems of one function are below a line with its name.

    accepting: Leave out the problems of the list of known differences, which the run then writes anew.
    """
    shown = (problem for problem in report.problems if not (accepting and problem.file))
    for what, group in groupby(shown, lambda problem: problem.what):
        problems = list(group)
        if len(problems) > 1:
            yield f"- {what}"
        for each in problems:
            yield f"  - {_finding(report, each)}" if len(problems) > 1 else f"- {problem_line(report, each)}"


def problem_line(report: ParityReport, problem: Problem) -> str:
    return ": ".join(filter(None, (problem.what, _finding(report, problem))))


def _finding(report: ParityReport, problem: Problem) -> str:
    names = problem.cases
    cases = (
        f"{len(names)} cases, such as {names[0]!r}" if len(names) > 1 else "".join(f"Case: {each!r}" for each in names)
    )
    detail = problem.detail.removesuffix(".")
    return ". ".join(filter(None, (detail, cases, example(report.result_of(problem), detail))))


def example(result: Result | None, detail: str) -> str:
    """Return a sentence about the number that differs most, or '' if no numbers differ or `detail` has them."""
    text = result.details.example if result and result.details else ""
    return "" if text in detail else text[:1].upper() + text[1:]


def ordered_cases(report: ParityReport) -> list[CaseResult]:
    """Return all cases, those with problems first."""
    wrong = {name for problem in report.problems for name in problem.cases}
    return sorted(report.cases, key=lambda case: case.name not in wrong)


def numbers(result: Result) -> list[str]:
    lines = str(result.details or "").splitlines()
    if isinstance(result, NativeResult) and result.is_users:
        native = SIDES["native"]
        lines[1:] = [line.replace(f"{native:{WIDTH}}", YOURS).replace(native, YOURS) for line in lines[1:]]
    return lines


# -- counts


def glance(report: ParityReport) -> list[str]:
    lines = [compared(report)]
    for mode in UNIFIED_CLIP_MODES:
        counts = _present(report, getattr(report.summary, mode))
        exact = sum(kinds.get("equal", 0) for kinds in counts.values())
        if total := sum(sum(kinds.values()) for kinds in counts.values()):
            share = f"{exact} of {total} bit-exact ({exact / total:.1%})"
            lines.append(f"{TITLES[mode].capitalize()}: {share}: {_shares(counts)}.")
    if report.summary.natives:
        lines.append(f"{natives_title(report)}: {_shares(_present(report, report.summary.natives))}.")
    differ = any(case.differing_stages for case in report.cases)
    on_host = [framework for framework, kinds in report.summary.host.items() if kinds.keys() - {"missing"}]
    is_right = all(on.keys() <= {*AGREEING, "missing"} for on in report.summary.host.values())
    if is_right and not differ and len(on_host) > 1:
        which = "all frameworks" if len(on_host) == len(report.frameworks) else ", ".join(on_host)
        lines.append(f"On the host path, {which} gave the same bits.")
    return [*lines, *report.notes]


def _present(report: ParityReport, counts: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    return {name: kinds for name, kinds in counts.items() if name not in report.absent}


def _shares(counts: Mapping[str, Mapping[str, int]]) -> str:
    texts = {
        name: ", ".join(f"{count} {verdict}" for verdict, count in {"equal": 0, **kinds}.items())
        for name, kinds in counts.items()
    }
    return "; ".join(f"{text} on {name}" for name, text in texts.items())


# -- tables


def known_row(entry: KnownDifferenceResult) -> list[str]:
    numbers = [size(entry.size), str(len(entry.cases))]
    return [entry.framework, entry.function, KINDS[entry.kind], *numbers, entry.reason]


def unified_clip(results: FrameworkResult) -> str:
    """Return the verdict of most modes, and then the other verdicts with their modes."""
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
