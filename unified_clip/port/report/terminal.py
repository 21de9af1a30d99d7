"""Print a report of ported code."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from .model import Report, ReportedClip

MAX_REPEATED = 80
"""A longer text is printed in full only the first time."""

VERDICT_STYLES = {"rewritten": "green", "flagged": "bold red", "left": "dim"}


class Line(NamedTuple):
    """A line of the report. Lines of code are not wrapped."""

    indent: int
    text: Text
    is_code: bool = False


def show(report: Report) -> None:
    _print(report, Console(highlight=False))


def as_text(report: Report) -> str:
    file = io.StringIO()
    _print(report, Console(file=file, highlight=False, force_terminal=False, no_color=True))
    return file.getvalue()


def _print(report: Report, console: Console) -> None:
    for line in _lines(report.escaped()):
        if console.is_terminal and not line.is_code:
            console.print(Padding(line.text, (0, 0, 0, line.indent), expand=False))
        else:
            console.print(Text(" " * line.indent) + line.text, soft_wrap=True)


def _lines(report: Report) -> Iterator[Line]:
    first_places: dict[str, str] = {}
    for file in report.files:
        yield Line(0, Text(file.path, "bold"))
        for clip in file.clips:
            if clip.verdict != "left":
                yield from _clip(report, clip, f"{file.path}:{clip.line}:{clip.column}", first_places)
        yield from _left(file.clips)
        yield Line(0, Text())
    if report.known:
        yield from _known(report)
        yield Line(0, Text())
    for unread in report.unread:
        yield Line(0, Text.assemble((unread.path, "bold"), (" was not read", "red"), f": {unread.reason}"))
    yield Line(0, Text(report.headline, "bold"))
    yield Line(0, Text(report.next))
    if report.by_hand:
        yield Line(0, Text("Also port by hand:", "bold"))
        yield from (Line(2, Text(line)) for line in report.by_hand)


def _left(clips: Sequence[ReportedClip]) -> Iterator[Line]:
    lines: dict[str, list[str]] = {}
    for clip in clips:
        if clip.verdict == "left":
            lines.setdefault(clip.reason, []).append(str(clip.line))
    for reason, numbers in lines.items():
        place = f"line{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
        yield Line(2, Text.assemble(("left", VERDICT_STYLES["left"]), f"  {place}: {reason}"))


def _clip(report: Report, clip: ReportedClip, place: str, first_places: dict[str, str]) -> Iterator[Line]:
    def once(label: str, text: str, details: Iterable[str] = ()) -> Iterator[Line]:
        first = first_places.setdefault(f"{label}: {text}", place)
        is_first = first == place
        text = text if is_first or len(text) <= MAX_REPEATED else f"as at {first}"
        yield Line(6, Text.assemble((f"{label}: ", "bold"), text))
        yield from (Line(10, Text(line)) for line in details if is_first)

    arrow = f" -> {clip.becomes}" if clip.becomes else ""
    head = (f"{clip.line}:{clip.column}  ", (clip.verdict, VERDICT_STYLES[clip.verdict]), f"  {clip.name}{arrow}")
    yield Line(2, Text.assemble(*head))
    yield Line(6, Text(clip.text, "dim"), is_code=True)
    if clip.meaning:
        meaning = report.meanings[clip.meaning - 1]
        yield from once("does", " ".join(meaning.sentences))
    if clip.difference:
        differences = report.comparisons[clip.comparison - 1].differences if clip.comparison else ()
        settings = [f"{setting.about}: {setting.before} -> {setting.after}" for setting in differences]
        yield from once("differs", clip.difference, settings)
    for function, numbers in clip.notes:
        yield Line(6, Text.assemble((f"known differences of {function}: ", "bold"), f"[{', '.join(numbers)}]"))
    if clip.reason:
        yield from once("why", clip.reason)
    if clip.suggested_at:
        yield Line(6, Text.assemble(("write: ", "bold"), f"as at {clip.suggested_at}"))
    elif clip.suggestion:
        yield Line(6, Text("write:", "bold"))
        yield from (Line(10, Text(line, "cyan"), is_code=True) for line in clip.suggestion)
    for check in clip.checks:
        yield from once("check", check)


def _known(report: Report) -> Iterator[Line]:
    yield Line(0, Text("Known differences between the frameworks' functions and unified_clip", "bold"))
    yield Line(2, Text(report.legend))
    for known in report.known:
        versions = f" ({known.versions})" if known.versions else ""
        text = f": {known.when} ({known.by}): {known.why}{versions}"
        yield Line(2, Text.assemble((f"[{known.number}] ", "bold"), known.owner, text))
