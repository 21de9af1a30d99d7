"""Write tables in Markdown, for reports and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(rows(header, lines))


def rows(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table. Return [] if the table has no rows."""
    return [f"| {' | '.join(map(inline, line))} |" for line in [header, ["---"] * len(header), *lines]] if lines else []


def inline(text: str) -> str:
    """Return a text on one line, for a cell of a table. Escape characters that would end the cell or begin HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
