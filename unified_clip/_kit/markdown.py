"""Write tables in Markdown, for reports and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(rows(header, lines))


def rows(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    if not lines:
        return []
    head, *body = (f"| {' | '.join(map(inline, line))} |" for line in [header, *lines])
    return [head, f"|{'---|' * len(header)}", *body]


def inline(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
