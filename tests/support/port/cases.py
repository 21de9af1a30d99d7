"""Short sources to port, with their expected results, in tests/data/port/cases.

    == a title
    import torch
    torch.nn.utils.clip_grad_norm_(p, limit)  # clip: rewritten torch.nn.utils.clip_grad_norm_
    >> diff
    @@ -2 +2,2 @@
    ...
    -- drop-in
    another source

An annotation lists the verdict and the name of each clip of its line. A line that begins with -- starts another source,
and names the target if it is not torch, or "both" if both targets have the same results. A line that begins with >>
starts a part of the results, in which each line begins with the line of its clip:

    diff     how the source changes. Without this part, the source does not change
    meaning  the clip configuration with the same effect, and the code of a threshold that is known at run time
    reason   why the clip is not rewritten
    write    the suggested lines

To write the expected results of all cases as the command is now, run this file, and read the diff. Only the parts that
a case names are written, and the diff.
"""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from unified_clip.port.port_files import port
from unified_clip.port.ported_clip import Meaning, PortedClip, PortedFile, Target

CASES = Path(__file__).parents[2] / "data/port/cases"
MARK = re.compile(r"  # clip: (.*)$")
TARGET_LINE = re.compile(r"--(?: (torch|drop-in|both))?$")
PART_LINE = re.compile(r">> (\w+)$")
TARGETS: dict[str, tuple[Target, ...]] = {
    "torch": ("torch",),
    "drop-in": ("drop-in",),
    "both": ("torch", "drop-in"),
}


@dataclass
class Case:
    file: str
    title: str
    name: str
    """The target, or "both"."""

    annotated: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return "".join(f"{MARK.sub('', line)}\n" for line in self.annotated)


def cases(path: Path) -> Iterator[Case]:
    for block in path.read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
        title, *lines = block.rstrip("\n").split("\n")
        names = [name[1] or "torch" if (name := TARGET_LINE.match(line)) else "" for line in lines]
        starts = [number for number, name in enumerate(names) if name or number == 0]
        for start, end in itertools.pairwise([*starts, len(lines)]):
            case = Case(path.stem, title, names[start] or "torch")
            part = case.annotated
            for line in lines[start + bool(names[start]) : end]:
                if name := PART_LINE.match(line):
                    part = case.parts.setdefault(name[1], [])
                else:
                    part.append(line)
            yield case


def port_case(case: Case, target: Target) -> PortedFile:
    return _ported(case.source, target)


@cache
def _ported(source: str, target: Target) -> PortedFile:
    return port(Path("a.py"), source.encode(), target)


def result(case: Case, target: Target) -> tuple[list[str], dict[str, list[str]]]:
    """Port a case. Return the annotated source and the parts that the case names, and the diff."""
    ported = port_case(case, target)
    marks: dict[int, list[str]] = {}
    for site in ported.sites:
        marks.setdefault(site.line, []).append(f"{site.verdict} {site.name}")
    annotated = [
        f"{line}  # clip: {'; '.join(marks[number])}" if number in marks else line
        for number, line in enumerate(case.source.splitlines(), 1)
    ]
    parts = {name: [*_each(ported, lines_of)] for name, lines_of in PARTS.items() if name in case.parts}
    return annotated, {**({"diff": diff} if (diff := _diff(ported)) else {}), **parts}


def _diff(ported: PortedFile) -> list[str]:
    before, after = ported.before.decode().splitlines(), ported.after.decode().splitlines()
    return list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]


def _each(ported: PortedFile, lines_of: Callable[[PortedClip], list[str]]) -> Iterator[str]:
    for site in ported.sites:
        yield from (f"{site.line}: {line}" for line in lines_of(site))


def _meaning(meaning: Meaning | None) -> list[str]:
    if meaning is None:
        return ["no configuration"]
    settings = meaning.config.data()
    threshold = f" with {meaning.threshold}" * bool(meaning.threshold)
    return [", ".join(f"{name}={value}" for name, value in settings.items()) + threshold]


PARTS: dict[str, Callable[[PortedClip], list[str]]] = {
    "meaning": lambda site: _meaning(site.meaning),
    "reason": lambda site: [site.reason] if site.reason else [],
    "write": lambda site: site.suggestion,
}


def as_text(all_cases: list[Case]) -> str:
    lines, title = [], ""
    for case in all_cases:
        is_first, title = case.title != title, case.title
        lines += ["", f"== {title}"] if is_first else []
        if not is_first or case.name != "torch":
            lines.append("--" if case.name == "torch" else f"-- {case.name}")
        lines += case.annotated
        for name, part in case.parts.items():
            lines += [f">> {name}", *part]
    return "\n".join(lines[1:]) + "\n"


def update(path: Path) -> None:
    updated = [*cases(path)]
    for case in updated:
        case.annotated, case.parts = result(case, TARGETS[case.name][0])
    path.write_text(as_text(updated), encoding="utf-8")


if __name__ == "__main__":
    for path in [Path(each) for each in sys.argv[1:]] or sorted(CASES.iterdir()):
        update(path)
