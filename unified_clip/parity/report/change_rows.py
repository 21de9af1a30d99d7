from __future__ import annotations

from collections.abc import Sequence

from ..._kit.display import counted
from ..results import Change

KINDS = {
    "new": "new",
    "gone": "gone",
    "not run": "not run",
    "verdict": "another verdict",
    "size": "another size",
    "numbers": "other numbers",
    "version": "another version",
    "reason": "another reason",
}

HEADER = ["", "what", "change", "before", "now", "cases"]


def rows(changes: Sequence[Change]) -> list[list[str]]:
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        verdicts = [text.partition(",")[0] for text in (change.before, change.after)]
        alike = () if change.kind in ("size", "numbers") else tuple(verdicts)
        groups.setdefault((change.worse, change.kind, change.framework, change.what, *alike), []).append(change)
    lines = []
    for first, *others in groups.values():
        what = ", ".join(filter(None, (first.framework, first.what))) or "the suite"
        cases = f"{1 + len(others)} cases, first {first.case}" if others else first.case
        lines.append(["fails" if first.worse else "", what, KINDS[first.kind], first.before, first.after, cases])
    return lines


def headline(changes: Sequence[Change]) -> str:
    worse = sum(change.worse for change in changes)
    fail = "1 fails" if worse == 1 else f"{worse} fail"
    counts = f"{counted(len(changes), 'change')} ({fail} the run)" if changes else "nothing changed"
    return f"Against the baseline: {counts}."
