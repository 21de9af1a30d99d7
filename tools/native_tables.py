"""Write the tables of docs/native_differences.md from parity/known.toml, which `unified-clip parity` checks."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from unified_clip._kit import markdown
from unified_clip.parity.known import entries
from unified_clip.parity.known.entries import size_in_words

ROOT = Path(__file__).parents[1]
TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "paddle": "Paddle", "jax": "optax on JAX", "mlx": "MLX"}
WORDS = {"raises": "raises", "returns": "accepted", "silent": "", "form": "", "elements": ""}
"""{kind of a difference without a size: word in the table of sizes, if the kind occurs there}."""

PAGE = ROOT / "docs/native_differences.md"
BEGIN, END = "<!-- `make native-tables` writes this from parity/known.toml -->", "<!-- end of the tables -->"


class Difference(NamedTuple):
    what: str
    framework: str
    """PyTorch, for example."""

    function: str
    number: float
    """The size, or 0 if no number differs."""

    by: str
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the tables are stale")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    new = f"{text[:start]}\n\n{tables(read())}\n\n{text[stop:]}"
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        print(f"the tables in {PAGE.relative_to(ROOT)} are stale. Type: make native-tables", file=sys.stderr)
        return 1
    return 0


def read() -> Iterator[Difference]:
    for entry in entries.read(ROOT / "parity/known.toml"):
        what, _, why = entry.reason.partition(": ")
        kind, number = entry.parts
        by = size_in_words(number) if number else WORDS[kind.partition(" ")[0]]
        yield Difference(what, TITLES[entry.framework], f"`{entry.function}`", number, by, why)


def _version(framework: str) -> str:
    """Return the release that the parity suite runs, such as "torch 2.13.0": optax for JAX, whose package clips."""
    package = {"paddle": "paddlepaddle", "jax": "optax"}.get(framework, framework)
    pins = (ROOT / f"requirements/{framework}.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}(?:\[\w+\])?==(\S+)", pins, re.MULTILINE)
    return f"{package} {version}"


def tables(differences: Iterable[Difference]) -> str:
    """Return for each framework a table of the differences that have sizes, and one table of the others."""
    groups: dict[str, list[Difference]] = {}
    for each in differences:
        groups.setdefault(each.what, []).append(each)
    sized: dict[str, list[Difference]] = {}
    for group in groups.values():
        for each in group if any(each.number for each in group) else ():
            sized.setdefault(each.framework, []).append(each)
    others = [
        [what, ", ".join(dict.fromkeys(each.framework for each in group))]
        for what, group in groups.items()
        if not any(each.number for each in group)
    ]
    header = ["what differs", "function", "by", "why"]
    by_framework = [
        f"### {title}\n\nMeasured with {_version(name)}.\n\n{markdown.table(header, rows(sized[title]))}"
        for name, title in TITLES.items()
    ]
    return "\n\n".join([
        *by_framework,
        "## Input, warnings and shapes",
        markdown.table(["what differs", "frameworks"], others),
    ])  # fmt: skip


def rows(differences: Iterable[Difference]) -> list[list[str]]:
    """Return the rows of a framework. The differences of a function for one reason share a row: the largest size."""
    shared: dict[tuple[str, str, str], list[Difference]] = {}
    for each in differences:
        shared.setdefault((each.what, each.function, each.why), []).append(each)
    whats = ["", *(what for what, _, _ in shared)]
    return [
        ["" if what == whats[index] else what, function, max(group, key=lambda each: each.number).by, why]
        for index, ((what, function, why), group) in enumerate(shared.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
