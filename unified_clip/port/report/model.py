"""The report of `unified-clip port`: the same data for JSON, for HTML and for the terminal.

To write its JSON Schema, type `python -m unified_clip.port.report.model > docs/port.schema.json`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from typing_extensions import Self

from ..._kit.display import safe
from ..._kit.report_model import Real, ReportModel, json_schema
from ..ported_clip import Target, Verdict


class ClipMeaning(ReportModel):
    """The effect of one or more clips: a text and a configuration."""

    number: int
    """The position of this entry in `meanings`, counted from 1."""

    sentences: list[str]
    threshold: str
    """The code of a threshold that is only known at run time, or an empty string. If the code is not empty, the
    threshold in `config` is only a placeholder."""

    config: dict[str, Any]
    """A clip configuration with the same effect. docs/clip_config.schema.json describes its keys."""


class SettingDifference(ReportModel):
    """A setting that differs between a clip and its replacement, such as eps."""

    about: str
    before: str
    after: str


class MeaningComparison(ReportModel):
    """A comparison of the settings of a clip and its replacement."""

    number: int
    """The position of this entry in `comparisons`, counted from 1."""

    before: int
    """The `number` of the entry in `meanings` that describes the clip."""

    after: int
    """The `number` of the entry in `meanings` that describes the replacement."""

    differences: list[SettingDifference]
    summary: str


class KnownDifferenceSummary(ReportModel):
    """A known difference: a framework's function and unified_clip return different results."""

    number: int
    """The position of this entry in the report's `known`, counted from 1."""

    framework: str
    function: str
    """The name of the function, or a pattern in which * matches any text."""

    size: Real
    """If the function returns a norm, the relative error of the norm. Otherwise, the largest error of an element,
    relative to the largest element of the exact gradient."""

    by: str
    """The size of the difference as text."""

    when: str
    why: str
    versions: str
    """The versions of the framework that have this difference. An empty string means all versions."""

    @property
    def owner(self) -> str:
        return f"all of {self.framework}'s" if self.function == "*" else self.function


class ReportedClip(ReportModel):
    """A clip in a file, with its verdict and replacement."""

    line: int
    column: int
    name: str
    """The full name of the function, according to the imports of the file."""

    text: str
    """The first line of the clip's source."""

    verdict: Verdict
    becomes: str
    """The full name of the replacement, or an empty string if there is no replacement."""

    meaning: int | None
    """The `number` of the entry in `meanings` that describes the clip, or null if no clip configuration has the same
    effect."""

    becomes_meaning: int | None
    """The `number` of the entry in `meanings` that describes the replacement, or null if there is no replacement."""

    same: bool | None
    """Whether `meaning` and `becomes_meaning` are equal, or null if one of these fields is null."""

    difference: str
    """A description of the difference between `meaning` and `becomes_meaning`. The text is empty if one of these fields
    is null."""

    comparison: int | None
    """The `number` of the entry in `comparisons` for this clip and its replacement, or null if `same` is not false."""

    measured_as: str
    """A function that `unified-clip parity` measures and that has the same results as `name`, or an empty string."""

    known: list[int]
    """The known differences of `measured_as`. Each is the `number` of an entry in the report's `known`."""

    becomes_known: list[int]
    """The known differences of the replacement. The list is empty if the replacement is a function of unified_clip."""

    reason: str
    """The reason why the clip is flagged or unchanged."""

    suggestion: list[str]
    """The lines to write instead of a flagged clip."""

    suggested_at: str
    """The place of the first clip with the same `suggestion`, or an empty string if this clip is the first one."""

    checks: list[str]
    """What to check after the rewrite."""

    @property
    def notes(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each function that has known differences, with their numbers in ranges such as '1-3'."""
        if self.known:
            is_other = self.name.rpartition(".")[2] != self.measured_as.rpartition(".")[2]
            yield f"{self.name}, measured as {self.measured_as}" if is_other else self.name, spans(self.known)
        if self.becomes_known:
            yield self.becomes, spans(self.becomes_known)


class ReportedFile(ReportModel):
    """A file with at least one clip."""

    path: str
    changed: bool
    """Whether any clip in the file is rewritten."""

    clips: list[ReportedClip]


class UnreadFile(ReportModel):
    """A file that could not be read, or a file with possible clips that a ported file imports."""

    path: str
    reason: str


class Counts(ReportModel):
    """The number of files, and the number of clips with each verdict."""

    files: int
    """The number of files that were read."""

    changed: int
    """The number of files with a rewritten clip."""

    clips: int
    rewritten: int
    flagged: int
    left: int
    unread: int
    """The number of files that were not read."""


class Report(ReportModel):
    """The report of `unified-clip port`."""

    version: Literal[2]
    """The version of this format. It changes if a key is removed or gets a new meaning, but not if a key is added."""

    target: Target
    written: bool
    """Whether this run has changed the files."""

    headline: str
    """A sentence with the numbers of clips and files."""

    next: str
    """A sentence about what to do next."""

    by_hand: list[str]
    """What is left to port by hand besides the flagged clips, with the file of each item."""

    rounding: Real
    """Relative differences below this size are rounding, and are not listed."""

    summary: Counts
    files: list[ReportedFile]
    unread: list[UnreadFile]
    meanings: list[ClipMeaning]
    comparisons: list[MeaningComparison]
    known: list[KnownDifferenceSummary]

    @property
    def legend(self) -> str:
        return (
            "If a function returns a norm, the size of its difference is the relative error of the norm. Otherwise, "
            "the size is the largest error of an element, relative to the largest element of the exact gradient. "
            f"Errors below {self.rounding:g} are rounding, and are not listed."
        )

    def escaped(self) -> Self:
        return self.model_validate(safe(self.model_dump(), code=("text", "suggestion")))


def spans(numbers: Sequence[int]) -> list[str]:
    """Convert sorted numbers to ranges. For example, 1, 2, 3 and 7 become ['1-3', '7']."""
    groups = itertools.groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


if __name__ == "__main__":
    print(json_schema(Report, "unified_clip port report"), end="")
