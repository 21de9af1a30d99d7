"""Write tables in Markdown, for reports and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(rows(header, lines))


def rows(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(map(inline, line))} |" for line in [header, ["---"] * len(header), *lines]] if lines else []


def inline(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
