"""A report of ported code as text, in colour on a terminal. Long text that repeats is replaced by a reference."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..._display import safe
from ...parity.report.ported import legend, notes, outcome, spans, whose

Data = Mapping[str, Any]

SHORT = 80
"""Text up to this length is repeated. Longer text is replaced by a reference."""

NUMBERS = ("value", "touched")
"""Kinds of known differences in which numbers differ. These are listed one by one."""

STYLES = {"rewritten": "green", "flagged": "bold red", "left": "dim"}
"""Colours of verdicts."""


class Line(NamedTuple):
    """A line. A terminal may break it, unless it is code."""

    indent: int
    text: Text
    is_code: bool = False


def show(data: Data) -> None:
    """Print a report."""
    _print(data, Console(highlight=False))


def as_text(data: Data) -> str:
    """Return a report without colours."""
    written = io.StringIO()
    _print(data, Console(file=written, highlight=False, force_terminal=False, no_color=True))
    return written.getvalue()


def _print(data: Data, console: Console) -> None:
    for line in _lines(safe(data, code=("text", "suggestion"))):
        if console.is_terminal and not line.is_code:
            console.print(Padding(line.text, (0, 0, 0, line.indent), expand=False))
        else:
            console.print(Text(" " * line.indent) + line.text, soft_wrap=True)


def _lines(data: Data) -> Iterator[Line]:
    told: dict[str, str] = {}
    for file in data["files"]:
        yield Line(0, Text(file["path"], "bold"))
        for clip in file["clips"]:
            if clip["verdict"] != "left":
                yield from _clip(data, clip, f"{file['path']}:{clip['line']}:{clip['column']}", told)
        yield from _left(file["clips"])
        yield Line(0, Text())
    if data["known"]:
        yield from _known(data)
        yield from _others(data)
        yield Line(0, Text())
    for each in data["unread"]:
        yield Line(0, Text.assemble((each["path"], "bold"), (" could not be read", "red"), f": {each['reason']}"))
    yield Line(0, Text(data["headline"], "bold"))
    yield Line(0, Text(data["next"]))


def _others(data: Data) -> Iterator[Line]:
    others = [each["number"] for each in data["known"] if each["kind"] not in NUMBERS]
    if others:
        what = "errors, warnings and shapes that differ; --report FILE.html lists them"
        yield Line(2, Text.assemble((f"[{', '.join(spans(others))}] ", "bold"), what))


def _left(clips: Sequence[Data]) -> Iterator[Line]:
    """Yield one line for all clips that are left for the same reason."""
    lines: dict[str, list[int]] = {}
    for clip in clips:
        if clip["verdict"] == "left":
            lines.setdefault(clip["reason"], []).append(clip["line"])
    for reason, numbers in lines.items():
        where = f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        yield Line(2, Text.assemble(("left", STYLES["left"]), f"  {where}: {reason}"))


def _clip(data: Data, clip: Data, place: str, told: dict[str, str]) -> Iterator[Line]:
    verdict = clip["verdict"]
    arrow = f" -> {clip['becomes']}" if clip["becomes"] else ""
    head = (f"{clip['line']}:{clip['column']}  ", (verdict, STYLES[verdict]), f"  {clip['name']}{arrow}")
    yield Line(2, Text.assemble(*head))
    yield Line(6, Text(clip["text"], "dim"), is_code=True)
    if clip["meaning"]:
        meaning = data["meanings"][clip["meaning"] - 1]
        yield from _once("does", " ".join(meaning["sentences"]), place, told, _worked(meaning))
    if clip["difference"]:
        yield from _once("differs", clip["difference"], place, told, _compared(data, clip))
    for function, numbers in notes(clip):
        yield Line(6, Text.assemble((f"what {function} gets wrong: ", "bold"), f"[{', '.join(spans(numbers))}]"))
    if clip["reason"]:
        yield from _once("why", clip["reason"], place, told)
    if clip["suggestion"]:
        yield Line(6, Text("write:", "bold"))
        yield from (Line(10, Text(line, "cyan"), is_code=True) for line in clip["suggestion"])
    for check in clip["checks"]:
        yield from _once("check", check, place, told)


def _once(label: str, text: str, place: str, told: dict[str, str], more: Sequence[str] = ()) -> Iterator[Line]:
    """Yield a text in full the first time, and then, if it is long, a reference to it."""
    first = told.setdefault(f"{label}: {text}", place)
    said = text if first == place or len(text) <= SHORT else f"as at {first}"
    yield Line(6, Text.assemble((f"{label}: ", "bold"), said))
    if first == place:
        yield from (Line(10, Text(line)) for line in more)


def _worked(meaning: Data) -> list[str]:
    limit = meaning["threshold"]
    said = [f"worked with 1 for {limit}, which is only known at run time:"] if limit else []
    return [*said, *(f"{each['of']}: {outcome(each)}" for each in meaning["worked"])]


def _compared(data: Data, clip: Data) -> list[str]:
    if not clip["comparison"]:
        return []
    found = data["comparisons"][clip["comparison"] - 1]
    return [f"{each['about']}: {each['before']} -> {each['after']}" for each in found["differences"]]


def _known(data: Data) -> Iterator[Line]:
    yield Line(0, Text("What the frameworks' own functions get wrong", "bold"))
    yield Line(2, Text(legend(data)))
    for each in data["known"]:
        if each["kind"] not in NUMBERS:
            continue
        versions = f" ({each['versions']})" if each["versions"] else ""
        said = f": {each['when']} ({each['by']}): {each['why']}{versions}"
        yield Line(2, Text.assemble((f"[{each['number']}] ", "bold"), whose(each), said))
