"""The help pages of the error codes, and the list of all codes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .._kit import atomic_files
from .._kit.display import BOLD, paint
from .._kit.parse import tomllib

PATH = Path(__file__).with_name("errors.toml")

GROUPS = {
    "1": "Configuration files",
    "2": "The command line",
    "3": "Parity suites",
    "4": "Porting",
    "5": "Recordings",
    "6": "Verifying a step",
    "7": "Files of tensors",
    "9": "unified-clip itself",
}
"""{first digit of an error code: heading of its group in `unified-clip help errors`}."""


@dataclass(frozen=True)
class ErrorCode:
    """An entry of errors.toml: an error code with its help texts."""

    code: str
    title: str
    explanation: str

    remedies: Sequence[str]
    """The most likely remedy is first."""

    example: str

    @property
    def message(self) -> str:
        return f"unified-clip: error {self.code}: {self.example}"

    @property
    def group(self) -> str:
        return GROUPS[self.code[2]]


@cache
def read() -> dict[str, ErrorCode]:
    entries = tomllib.loads(atomic_files.read_text(PATH))
    texts = ("title", "explanation", "example")
    return {
        code: ErrorCode(code, remedies=entry["remedies"], **{key: " ".join(entry[key].split()) for key in texts})
        for code, entry in entries.items()
    }


def page(code: ErrorCode, width: int) -> Iterator[str]:
    for line in _wrapped(f"{code.code}: {code.title}", width):
        yield paint(line, BOLD, sys.stdout)
    yield ""
    yield from _wrapped(code.explanation, width)
    yield ""
    for remedy in code.remedies:
        yield from _wrapped(remedy, width, "- ", "  ")
    yield ""
    yield "Example:"
    yield from _wrapped(code.message, width, "    ", "    ")


def listing(width: int) -> Iterator[str]:
    group = ""
    for code in read().values():
        if code.group != group:
            yield paint(code.group, BOLD, sys.stdout)
            group = code.group
        yield from _wrapped(code.title, width, f"  {code.code}  ", " " * 9)


def _wrapped(text: str, width: int, first: str = "", other: str = "") -> list[str]:
    """Break a text into lines at spaces, so that a path or an option stays on one line."""
    lines = textwrap.TextWrapper(
        max(width, 20), initial_indent=first, subsequent_indent=other, break_on_hyphens=False, break_long_words=False
    )
    return lines.wrap(text)
