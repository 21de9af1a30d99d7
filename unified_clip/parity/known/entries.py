"""The entries of `known.toml`, a suite's list of known differences. `docs/suite.md` explains the keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field, PrivateAttr, field_validator

from ..suite import schema
from ..suite.schema import Name

DifferenceKind = Literal["value", "touched", "raises", "error", "returns", "inputs", "silent", "form", "elements"]

NotFinite = Literal["", "norm", "gradients", "norm and gradients"]
"""The outputs in which inf and NaN are at other positions than in the exact result."""

KINDS: Mapping[str, str] = {
    "value": "numbers differ",
    "touched": "gradients that should be unchanged are changed",
    "raises": "it raises an error, but should return a result",
    "error": "it raises the wrong error",
    "returns": "it returns a result, but should raise an error",
    "inputs": "it changes its input gradients, but should not",
    "silent": "it issues no warning",
    "form": "shapes, dtypes or the number of gradients differ",
    "elements": "the number of elements differs, so the gradients are not compared",
}
"""In these texts, "it" is the function."""

SIZED = ("value", "touched")
"""The kinds of differences that consist of numbers only."""

STRUCTURE = ("form", "elements")
"""The kinds of differences that can also have numbers."""

WITH_NUMBERS = (*SIZED, *STRUCTURE)
ERRORS = ("raises", "error")

FACTOR = 1.1
"""A difference may be larger than the size of its entry by this factor, because processors round differently."""

ONE_SIZE = 10
"""A size covers every smaller size. If the sizes of two differences differ by more than this factor, `--accept` writes
different entries, and an entry whose size is larger by more than this factor is stale: a large difference must not hide
the growth of another, or the next one."""

NO_REASON = "`reason` is empty"


@dataclass(frozen=True)
class NativeDeviation:
    """The deviation of a framework's function from the exact result. `results.NativeResult` documents the fields."""

    function: str
    kind: DifferenceKind | Literal[""] = ""
    finite_size: float = 0.0
    """If the kind is "touched", rounding errors also count."""

    norm: float | None = None
    gradients: float | None = None
    not_finite: NotFinite = ""
    lacks_norm: bool = False
    detail: str = ""
    cause: str = ""
    cause_kind: str = ""
    contradiction: str = ""


class Difference(Protocol):
    """A NativeDeviation, or a NativeResult of the report."""

    @property
    def function(self) -> str | None: ...

    @property
    def kind(self) -> str: ...

    @property
    def finite_size(self) -> float: ...

    @property
    def not_finite(self) -> str: ...

    @property
    def detail(self) -> str: ...


def parts(difference: Difference) -> tuple[str, float]:
    """Return (what differs beside numbers, the relative difference of numbers). inf stands for inf and NaN."""
    kind, size = difference.kind, math.inf if difference.not_finite else difference.finite_size
    if kind in ERRORS:
        return f"{kind} {difference.detail.partition(':')[0]}".strip(), 0.0
    return ("" if kind in SIZED else kind), size


def as_size(what: str, number: float) -> float | str:
    """Return the value of the key `size`, with three digits. The reverse of `KnownDifference.parts`."""
    rounded = float(f"{number:.3g}")
    return rounded if not what else f"{what} {rounded:g}" if rounded else what


class KnownDifference(schema.SuiteTable):
    framework: Name
    also: list[Name] = Field(default=[])
    """Other frameworks with the same difference. `read` returns an entry for each of them."""

    function: Name
    cases: Annotated[list[Name], Field(min_length=1)]
    """Names of cases. In a name, `*` matches any text."""

    size: float | str
    """The largest relative difference from the exact result, or what differs instead of numbers."""

    reason: str = ""
    _file: str = PrivateAttr("")
    _find_line: Callable[[], int | None] | None = PrivateAttr(None)
    _table: int = PrivateAttr(0)

    @field_validator("size")
    @classmethod
    def _readable(cls, size: float | str) -> float | str:
        what, number = _parts_of(size)
        if isinstance(size, str) and what.partition(" ")[0] not in {*KINDS} - {*SIZED}:
            words = ", ".join(kind for kind in KINDS if kind not in SIZED)
            raise ValueError(f"give a number, inf for inf and NaN, or what differs: {words}")
        if not (number > 0 or (what and number == 0)):
            raise ValueError("give the largest relative difference, such as 0.01")
        return size

    @property
    def file(self) -> str:
        return self._file

    @property
    def line(self) -> int:
        """The line of the reason, or of the entry if it has none."""
        return (self._find_line and self._find_line()) or 1

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"

    @property
    def table(self) -> int:
        """The number of the table in the file."""
        return self._table

    @property
    def parts(self) -> tuple[str, float]:
        return _parts_of(self.size)

    @property
    def in_words(self) -> str:
        what, number = self.parts
        kind, _, detail = what.partition(" ")
        numbers = size_in_words(number) if number else "" if kind else "rounding only"
        return ", ".join(filter(None, (f"{KINDS[kind]}: {detail}" if detail else KINDS.get(kind, ""), numbers)))

    def is_of(self, framework: str, difference: Difference) -> bool:
        return framework == self.framework and is_match(difference.function or "", [self.function])

    def is_for(self, framework: str, case: str, difference: Difference) -> bool:
        return self.is_of(framework, difference) and is_match(case, self.cases)

    def is_alike(self, difference: Difference) -> bool:
        """Return whether the same differs, by any size. inf and NaN are not like finite numbers."""
        (what, size), (listed, number) = parts(difference), self.parts
        return bool(difference.kind) and what == listed and math.isinf(size) == math.isinf(number)

    def bounds(self, difference: Difference, factor: float = FACTOR) -> bool:
        return self.is_alike(difference) and parts(difference)[1] <= factor * self.parts[1]

    def is_too_large(self, sizes: Iterable[float]) -> bool:
        """Return whether the differences of this entry have become much smaller than its size.

        An entry for several frameworks has one size, and each of them may have smaller differences.
        """
        number = self.parts[1]
        return not self.also and math.isfinite(number) and number > ONE_SIZE * max(sizes, default=number)

    def unmatched_patterns(self, names: Collection[str]) -> list[str]:
        return [text for text in self.cases if not any(is_match(name, [text]) for name in names)]


class KnownFile(schema.SuiteTable):
    known: list[KnownDifference] = Field(default=[])


def read(path: Path) -> list[KnownDifference]:
    document = schema.parsed(path)
    known = []
    for index, entry in enumerate(schema.validated(document, KnownFile).known):
        entry._file, entry._table = str(path), index
        entry._find_line = partial(document.line, ["known", index, "reason"])  # it parses the file again
        known += [entry.model_copy(update={"framework": name}) for name in (entry.framework, *entry.also)]
    return known


def is_match(name: str, patterns: Iterable[str]) -> bool:
    return any(_pattern(text).fullmatch(name) for text in patterns)


def _parts_of(size: float | str) -> tuple[str, float]:
    if not isinstance(size, str):
        return "", float(size)
    word, _, number = size.partition(" ")
    if word not in STRUCTURE:
        return size, 0.0
    try:
        return word, float(number or 0)
    except ValueError:
        return word, math.nan


def size_in_words(size: float) -> str:
    """Return a relative size as text, such as "12 times", "25 %" or "1.2e-05".

    >>> size_in_words(0.25), size_in_words(0.0)
    ('25 %', '0')
    """
    if size == math.inf:
        return "inf or NaN"
    if size >= 10:
        return f"{size:.0f} times" if size < 1e6 else f"{size:.1e} times"
    if size < 1e-4:
        return f"{size:.1e}" if size else "0"
    return f"{100 * size:.2g} %" if size < 0.995 else f"{100 * size:.0f} %"


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))))
