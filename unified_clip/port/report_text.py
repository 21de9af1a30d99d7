"""A report of ported code as text: in colour on a terminal, plain elsewhere. What was told is not told again."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

Data = Mapping[str, Any]

SHORT = 80
"""What is no longer than this is told again, rather than where it was told."""

STYLES = {"rewritten": "green", "flagged": "bold red", "left": "dim"}
"""Of verdicts."""


class Line(NamedTuple):
    """A line, which a terminal may break, unless it is code."""

    indent: int
    text: Text
    is_code: bool = False


def show(data: Data) -> None:
    """Print it."""
    _print(data, Console(highlight=False))


def as_text(data: Data) -> str:
    """The same without colours."""
    written = io.StringIO()
    _print(data, Console(file=written, highlight=False, force_terminal=False, no_color=True))
    return written.getvalue()


def _print(data: Data, console: Console) -> None:
    for line in _lines(data):
        if console.is_terminal and not line.is_code:
            console.print(Padding(line.text, (0, 0, 0, line.indent), expand=False))
        else:
            console.print(Text(" " * line.indent) + line.text, soft_wrap=True)


def _lines(data: Data) -> Iterator[Line]:
    told: dict[str, str] = {}
    for file in data["files"]:
        yield Line(0, Text(file["path"], "bold"))
        for clip in file["clips"]:
            yield from _clip(data, clip, f"{file['path']}:{clip['line']}:{clip['column']}", told)
        yield Line(0, Text())
    if data["known"]:
        yield from _known(data)
        yield Line(0, Text())
    for each in data["unread"]:
        yield Line(0, Text.assemble((each["path"], "bold"), (" could not be read", "red"), f": {each['reason']}"))
    yield Line(0, Text(data["headline"], "bold"))
    yield Line(0, Text(data["next"]))


def _clip(data: Data, clip: Data, place: str, told: dict[str, str]) -> Iterator[Line]:
    verdict = clip["verdict"]
    arrow = f" -> {clip['becomes']}" if clip["becomes"] else ""
    head = (f"{clip['line']}:{clip['column']}  ", (verdict, STYLES[verdict]), f"  {clip['name']}{arrow}")
    yield Line(2, Text.assemble(*head))
    yield Line(6, Text(clip["text"], "dim"), is_code=True)
    if clip["meaning"] and verdict != "left":
        meaning = data["meanings"][clip["meaning"] - 1]
        yield from _told("does", " ".join(meaning["sentences"]), place, told, _worked(meaning))
    if clip["difference"]:
        yield from _told("differs", clip["difference"], place, told, _compared(data, clip))
    for function, numbers in notes(clip):
        yield Line(6, Text.assemble((f"what {function} gets wrong: ", "bold"), f"[{', '.join(spans(numbers))}]"))
    if clip["reason"]:
        yield from _told("why", clip["reason"], place, told)
    if clip["suggestion"]:
        yield Line(6, Text("write:", "bold"))
        yield from (Line(10, Text(line, "cyan"), is_code=True) for line in clip["suggestion"])
    for check in clip["checks"]:
        yield from _told("check", check, place, told)


def _told(label: str, text: str, place: str, told: dict[str, str], more: Sequence[str] = ()) -> Iterator[Line]:
    """In full the first time, and then, if it is long, where that was."""
    first = told.setdefault(f"{label}: {text}", place)
    said = text if first == place or len(text) <= SHORT else f"as at {first}"
    yield Line(6, Text.assemble((f"{label}: ", "bold"), said))
    if first == place:
        yield from (Line(10, Text(line)) for line in more)


def _worked(meaning: Data) -> list[str]:
    limit = meaning["threshold"]
    said = [f"worked with 1 for {limit}, which is only known at run time:"] if limit else []
    return [*said, *(f"{each['of']}: {outcome(each)}" for each in meaning["worked"])]


def outcome(worked: Data) -> str:
    """What became of some gradients, in a few words."""
    if worked["norm_clipped"] is None or worked["outcome"] == "unchanged":
        return str(worked["outcome"])
    return f"the norm becomes {_number(worked['norm_clipped'])}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.9g}"


def _compared(data: Data, clip: Data) -> list[str]:
    if not clip["comparison"]:
        return []
    found = data["comparisons"][clip["comparison"] - 1]
    return [f"{each['about']}: {each['before']} -> {each['after']}" for each in found["differences"]]


def notes(clip: Data) -> Iterator[tuple[str, list[int]]]:
    """Functions that get something wrong, and the numbers of what."""
    name, measured = clip["name"], clip["measured_as"]
    if clip["known"]:
        is_other = name.rpartition(".")[2] != measured.rpartition(".")[2]
        yield f"{name}, measured as {measured}," if is_other else name, clip["known"]
    if clip["becomes_known"]:
        yield clip["becomes"], clip["becomes_known"]


def spans(numbers: Sequence[int]) -> list[str]:
    """1, 2, 3 and 7 as '1-3' and '7'."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _known(data: Data) -> Iterator[Line]:
    yield Line(0, Text("What the frameworks' own functions get wrong", "bold"))
    yield Line(2, Text(legend(data)))
    for each in data["known"]:
        versions = f" ({each['versions']})" if each["versions"] else ""
        said = f": {each['when']} ({each['by']}): {each['why']}{versions}"
        yield Line(2, Text.assemble((f"[{each['number']}] ", "bold"), whose(each), said))


def legend(data: Data) -> str:
    """What the sizes of known differences are."""
    return (
        "Sizes are relative: of the norm, or of the greatest difference of an element to the greatest element that is "
        f"right. What differs by less than {data['rounding']:g} is rounding, and not listed."
    )


def whose(known: Data) -> str:
    """The functions that a known difference is about."""
    return f"all of {known['framework']}'s" if known["function"] == "*" else str(known["function"])
