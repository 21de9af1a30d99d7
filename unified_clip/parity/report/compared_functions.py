"""Describe the functions that a run compared: unified_clip's functions, the frameworks' functions, and functions of
the user.
"""

from __future__ import annotations

from ..._kit.display import counted, enumeration
from ..elements import SIDES, WIDTH
from ..modes import NATIVE, TITLES, YOURS
from ..results import NativeResult, ParityReport, Result

THEIRS = "the frameworks' functions"
YOUR_FUNCTIONS = "your functions"
BOTH = f"framework's or {YOURS}"


def title(mode: str, result: Result | None) -> str:
    return YOURS if isinstance(result, NativeResult) and result.is_users else TITLES[mode]


def numbers(result: Result) -> list[str]:
    first, *lines = str(result.details or "").splitlines() or [""]
    if isinstance(result, NativeResult) and result.is_users:
        lines = [line.replace(f"{SIDES['native']:{WIDTH}}", YOURS).replace(SIDES["native"], YOURS) for line in lines]
    return [first, *lines] if first else []


def titles(report: ParityReport) -> dict[str, str]:
    has_native, yours = _kinds(report)
    return {**TITLES, NATIVE: (BOTH if has_native else YOURS) if yours else TITLES[NATIVE]}


def whose(report: ParityReport, *verdicts: str) -> str:
    """verdicts: The verdicts of the results to consider. The default is all results."""
    has_native, yours = _kinds(report, *verdicts)
    return (f"{THEIRS} and yours" if has_native else YOUR_FUNCTIONS) if yours else THEIRS


def line(report: ParityReport) -> str:
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


def _kinds(report: ParityReport, *verdicts: str) -> tuple[bool, bool]:
    users = {result.is_users for _, result in report.natives() if not verdicts or result.verdict in verdicts}
    return False in users, True in users
