"""Prose of the pages: no long sentence, private word or heading that is a clause. support/prose.py has the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import prose

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "conformance/README.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_reads_well(page: Path) -> None:
    found = prose.habits(page.read_text(encoding="utf-8"))
    assert [f"{each.text!r}: {each.remedy}" for each in found] == []


LONG = "One " + "word " * 35 + "more."


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (LONG, "37 words: write two sentences, or a list"),
        (f"| cell | {LONG} |", "37 words: write two sentences, or a list"),
        (f"- An item.\n- {LONG}", "37 words: write two sentences, or a list"),
        ("Tensors do not tell this.", "return, print, report, or show"),
        ("The norms are ours.", "unified_clip"),
        ("## What is read", "name the thing or the task that people search for"),
        ("The natives differ.", "define native first, or write: the framework's function"),
        ("A; b; c; d.", "write sentences"),
    ],
)
def test_a_habit_is_found(text: str, remedy: str) -> None:
    assert [each.remedy for each in prose.habits(text)] == [remedy]


@pytest.mark.parametrize(
    "text",
    [
        "One " + "word " * 33 + "more.",
        "```python\ntold = ours  # a; b; c; d\n```",
        "A list:\n\n    told ours refused\n",
        "Call `told(" + "a, " * 40 + ")`.",
        "## What is a threshold?",
        "*Native* means a framework's own function. The natives differ.",
        "| a; b; c | d; e; f |",
    ],
)
def test_what_is_allowed(text: str) -> None:
    assert prose.habits(text) == []
