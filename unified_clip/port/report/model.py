"""The report of `unified-clip port`. JSON, HTML and the terminal are views of these models.

python -m unified_clip.port.report.model > docs/port.schema.json
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from ..._display import safe
from ..._report_model import Real, ReportModel, json_schema
from ...config.explain import describe
from ...config.explain.compare import Outcome
from ..clip_site import Target, Verdict


class WorkedExample(ReportModel):
    """What a clip does to some gradients."""

    of: str
    """Which they are."""

    outcome: Outcome
    norm: Real
    """Of what is counted, before clipping."""

    coef: Real | None
    """null where the step is skipped, or an error raised; so are the other two."""

    norm_clipped: Real | None
    results: dict[str, list[Real]] | None
    """The first elements of the first gradients."""

    @property
    def result(self) -> str:
        """The outcome in a few words."""
        if self.norm_clipped is None or self.outcome == "unchanged":
            return self.outcome
        return f"the total norm becomes {describe.measured(self.norm_clipped)}"


class ClipMeaning(ReportModel):
    """What clips do, in words and worked."""

    number: int
    """From 1; clips refer to it."""

    sentences: list[str]
    threshold: str
    """The expression of a threshold that is only known at run time, which was worked as 1; else empty."""

    config: dict[str, Any]
    """The same as a clip configuration (clip_config.schema.json)."""

    worked: list[WorkedExample]


class SettingDifference(ReportModel):
    """What two meanings say otherwise."""

    about: str
    before: str
    after: str


class ComparedExample(ReportModel):
    """What two meanings do to the same gradients."""

    of: str
    before: WorkedExample
    after: WorkedExample
    distance: Real
    """The largest difference of an element, relative to the largest element of either result."""

    sentence: str


class MeaningComparison(ReportModel):
    """What was there, and what took its place, where they do not mean the same."""

    number: int
    """From 1; clips refer to it."""

    before: int
    """The number of a meaning."""

    after: int
    differences: list[SettingDifference]
    compared: list[ComparedExample]
    summary: str


class KnownDifferenceSummary(ReportModel):
    """What a framework's own function does otherwise than unified_clip, beyond rounding."""

    number: int
    """From 1; clips refer to it."""

    framework: str
    function: str
    """As the parity suite's list names it; * stands for anything."""

    kind: str
    size: Real | None
    """Of the norm, relative, or of the greatest difference of an element to the greatest element that is right."""

    by: str
    """The size, or what differs where there is none, in words."""

    when: str
    why: str
    versions: str
    """That it is about; empty for all."""

    @property
    def owner(self) -> str:
        """The function, or all functions of the framework."""
        return f"all of {self.framework}'s" if self.function == "*" else self.function


class ReportedClip(ReportModel):
    """A clip in a file."""

    line: int
    column: int
    name: str
    """In full, by what is imported."""

    text: str
    """As it is written there, its first line."""

    verdict: Verdict
    becomes: str
    """The full name that took its place; empty where nothing did."""

    meaning: int | None
    """The number of what it does; null where it has no meaning in our terms."""

    becomes_meaning: int | None
    same: bool | None
    """Whether both mean the same; null where there are not both."""

    difference: str
    """What differs from what took its place, in words; empty where nothing did."""

    comparison: int | None
    """The number of what differs, worked; null where both mean the same, or there are not both."""

    measured_as: str
    """The function whose known differences hold for it; empty where none was measured, or it clips no gradients."""

    known: list[int]
    """The numbers of those differences."""

    becomes_known: list[int]
    """Likewise of what took its place, where that is a framework's own function."""

    reason: str
    """Why it is flagged or left."""

    suggestion: list[str]
    """Lines for a person to write."""

    checks: list[str]
    """What a person should look at."""

    @property
    def notes(self) -> Iterator[tuple[str, list[str]]]:
        """Functions with known differences, and the numbers of those as spans."""
        if self.known:
            is_other = self.name.rpartition(".")[2] != self.measured_as.rpartition(".")[2]
            yield f"{self.name}, measured as {self.measured_as}" if is_other else self.name, spans(self.known)
        if self.becomes_known:
            yield self.becomes, spans(self.becomes_known)


class ReportedFile(ReportModel):
    """A file in which there is a clip."""

    path: str
    changed: bool
    """Whether anything in it is rewritten."""

    clips: list[ReportedClip]


class UnreadFile(ReportModel):
    """A file that could not be read."""

    path: str
    reason: str


class Counts(ReportModel):
    """How many there are."""

    files: int
    """That were read."""

    changed: int
    """Of those."""

    clips: int
    rewritten: int
    flagged: int
    left: int
    unread: int


class Report(ReportModel):
    """What `unified-clip port` found, and what became of it."""

    version: Literal[1]
    """It changes when something that was there is gone or means something else; keys may be added without that."""

    target: Target
    native: bool
    """Whether clips became those of the framework itself."""

    written: bool
    """Whether the files were changed."""

    headline: str
    """The counts in a sentence."""

    next: str
    """What to do now."""

    rounding: Real
    """What a framework's own function differs by less is not listed."""

    summary: Counts
    files: list[ReportedFile]
    unread: list[UnreadFile]
    meanings: list[ClipMeaning]
    comparisons: list[MeaningComparison]
    known: list[KnownDifferenceSummary]

    @property
    def legend(self) -> str:
        """The legend for the sizes of known differences."""
        return (
            "Sizes are relative: the error of the norm, or the largest error of an element divided by the largest "
            f"exact element. Errors below {self.rounding:g} are rounding, and are not listed."
        )

    def escaped(self) -> Self:
        """Return the report with control characters escaped, for display."""
        return self.model_validate(safe(self.model_dump(), code=("text", "suggestion")))


def spans(numbers: Sequence[int]) -> list[str]:
    """Return 1, 2, 3 and 7 as '1-3' and '7'."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


if __name__ == "__main__":
    print(json_schema(Report, "unified_clip port report"), end="")
