"""Find the worst habits in prose: long sentences, private words, headings that are clauses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

MOST_WORDS = 35
MOST_SEMICOLONS = 1 / 250

PRIVATE = {
    r"told|tells?|telling": "return, print, report, or show",
    r"ours": "unified_clip",
    r"refus\w+": "reject, or raise",
    r"heed\w*": "read, or check",
    r"left alone|untouched": "unchanged",
    r"in silence": "silently",
    r"says? so|says? what|what it says": "print, or report",
    r"nobody|somebody": "name the actor",
    r"(?:each|all|both|none) of which": "a second sentence",
    r"what is (?:set|said|told|held|due|elsewhere)": "a noun",
    r"[a-z]\w+'s (?:is|are|has|have|does|do|did|can|by|selects|enables|takes|needs)": "the noun after the possessive",
}
"""Words that readers have to decode, as patterns, and what to write instead."""

NATIVE = re.compile(r"\bnatives?\b", re.IGNORECASE)
DEFINED = re.compile(r"\*[Nn]ative\*|[Nn]atives? (?:is|are|means?)\b|`native\b|\bnative_")
CLAUSE = re.compile(r"(?:What|Where|How|Who|Which|When|If|Why|Whether|That)\b\s(?!.*\?)")
VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|does|do|did|can|cannot|could|may|must|will|would|needs?|contains?|becomes?"
    r"|applies|calls|clips?|compares|counts?|decides|differs?|fails|follows|gives|ignores|keeps?|makes?|means|multiplies"
    r"|opens|pass|raises|reads|records|remove|repeat|replaces|returns|runs?|sets|shows|starts?|stays?|takes|use|writes?)\b"
)
"""If the words on one side of a semicolon contain one of these verbs, they are a sentence."""
MARKS = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+", re.MULTILINE)


class Habit(NamedTuple):
    text: str
    remedy: str


def habits(page: str, *, mentions_native: bool = False) -> list[Habit]:
    """Return what to change in a page of Markdown. `mentions_native`: the text may use native without a definition."""
    prose = list(blocks(page))
    return [
        *_headings(page),
        *(habit for block in prose for habit in _sentences(block)),
        *_words(prose),
        *([] if mentions_native else _natives(prose)),
        *_semicolons(prose),
    ]


def blocks(page: str) -> Iterator[str]:
    """Yield the paragraphs and items of a page as plain text. Code in a sentence counts as one word.

    In a cell of a table, semicolons may separate items.
    """
    text = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n)+", "\n", text)
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n", MARKS.sub("\n\n", text)):
        if block.lstrip().startswith("|"):
            yield from (item for line in block.splitlines() for item in re.split(r"(?<!\\)\||; ", line))
        elif not block.lstrip().startswith("#"):
            yield " ".join(block.split())


def sentences(block: str) -> list[str]:
    return re.split(r"(?<=[.!?:])\)?\s+(?=[A-Z\"(*])", block)


def _sentences(block: str) -> Iterator[Habit]:
    for sentence in sentences(block):
        count = len(re.findall(r"[\w'.-]+", sentence))
        if count > MOST_WORDS:
            yield Habit(sentence, f"{count} words: write two sentences, or a list")
        clauses = re.sub(r"\([^()]*\)", "", sentence).split("; ")
        if any(VERB.search(left) and VERB.search(right) for left, right in pairwise(clauses)):
            yield Habit(sentence, "a semicolon joins sentences: write two")


def _headings(page: str) -> Iterator[Habit]:
    outside = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", outside, re.MULTILINE):
        if CLAUSE.match(heading):
            yield Habit(heading, "name the thing or the task that people search for")


def _words(prose: list[str]) -> Iterator[Habit]:
    text = "\n".join(prose)
    for pattern, remedy in PRIVATE.items():
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield Habit(_around(text, match), remedy)


def _natives(prose: list[str]) -> Iterator[Habit]:
    text = "\n".join(prose)
    if (match := NATIVE.search(text)) and not DEFINED.search(text):
        yield Habit(_around(text, match), "define native first, or write: the framework's function")


def _around(text: str, match: re.Match[str]) -> str:
    return text[max(match.start() - 40, 0) : match.end() + 40].replace("\n", " ")


def _semicolons(prose: list[str]) -> Iterator[Habit]:
    text = " ".join(prose)
    words, semicolons = len(text.split()), text.count(";")
    if semicolons > 2 + words * MOST_SEMICOLONS:
        yield Habit(f"{semicolons} semicolons in {words} words", "write sentences")
