"""The models of the report of `unified-clip port`. JSON, HTML and the terminal show these models.

python -m unified_clip.port.report.model > docs/port.schema.json
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from ..._display import safe
from ..._report_model import Real, ReportModel, json_schema
from ...config.explain import describe
from ...config.explain.compare import Outcome
from ..clip_site import Target, Verdict


class WorkedExample(ReportModel):
    """The result of a clip on example gradients."""

    of: str
    """The example gradients in words."""

    outcome: Outcome
    norm: Real
    """The total norm before the clip. Gradients that the clip excludes do not count."""

    coef: Real | None
    """The clip coefficient, or null if the step is skipped or an error is raised."""

    norm_clipped: Real | None
    """The total norm after the clip, or null if the step is skipped or an error is raised."""

    results: dict[str, list[Real]] | None
    """The first elements of the first clipped gradients, by name. null if the step is skipped or an error is raised."""

    @property
    def result(self) -> str:
        """The result in a few words, such as "the total norm becomes 1"."""
        if self.norm_clipped is None or self.outcome == "unchanged":
            return self.outcome
        return f"the total norm becomes {describe.measured(self.norm_clipped)}"


class ClipMeaning(ReportModel):
    """The effect of one or more clips of the report: in words, as a configuration, and on example gradients."""

    number: int
    """The number by which clips refer to this entry, from 1."""

    sentences: list[str]
    threshold: str
    """The expression of a threshold that is only known at run time. Otherwise empty. The examples use 1 for it."""

    config: dict[str, Any]
    """A clip configuration that does the same. docs/clip_config.schema.json describes its keys."""

    worked: list[WorkedExample]


class SettingDifference(ReportModel):
    """A setting, such as eps, that differs between a clip and its replacement."""

    about: str
    before: str
    after: str


class ComparedExample(ReportModel):
    """The results of a clip and of its replacement on the same example gradients."""

    of: str
    before: WorkedExample
    after: WorkedExample
    distance: Real
    """The largest difference of an element, relative to the largest element of either result."""

    sentence: str


class MeaningComparison(ReportModel):
    """The differences between a clip and its replacement: in settings, and on example gradients."""

    number: int
    """The number by which clips refer to this entry, from 1."""

    before: int
    """The number of the entry in `meanings` for the clip."""

    after: int
    """The number of the entry in `meanings` for the replacement."""

    differences: list[SettingDifference]
    compared: list[ComparedExample]
    summary: str


class KnownDifferenceSummary(ReportModel):
    """A known difference between a framework's own function and unified_clip, beyond rounding."""

    number: int
    """The number by which clips refer to this entry, from 1."""

    framework: str
    function: str
    """The name in the parity suite's list of known differences. * matches any text."""

    kind: str
    size: Real | None
    """The relative error of the norm, or the largest error of an element divided by the largest exact element."""

    by: str
    """The size in words. If there is no size, the kind of the difference."""

    when: str
    why: str
    versions: str
    """The affected versions of the framework. Empty for all versions."""

    @property
    def owner(self) -> str:
        """The name of the function, or a text such as "all of torch's" if the name is "*"."""
        return f"all of {self.framework}'s" if self.function == "*" else self.function


class ReportedClip(ReportModel):
    """A clip in a file, with its verdict and replacement."""

    line: int
    column: int
    name: str
    """The full name of the function, which follows from the imports of the file."""

    text: str
    """The first line of the clip's source."""

    verdict: Verdict
    becomes: str
    """The full name of the replacement. Empty if there is none."""

    meaning: int | None
    """The number of the entry in `meanings` for the clip, or null if no clip configuration does the same."""

    becomes_meaning: int | None
    """The number of the entry in `meanings` for the replacement. null if there is none."""

    same: bool | None
    """Whether `meaning` and `becomes_meaning` are equal, or null if one of them is missing."""

    difference: str
    """The difference between `meaning` and `becomes_meaning` in words. Empty if one of them is missing."""

    comparison: int | None
    """The number of the entry in `comparisons`. null if both meanings are equal, or one is missing."""

    measured_as: str
    """A function with the same result that the parity suite has measured. Empty if there is no such function."""

    known: list[int]
    """The numbers of the entries in `known` about the function `measured_as`."""

    becomes_known: list[int]
    """The numbers of the entries in `known` about the replacement, if the replacement is a framework's own function."""

    reason: str
    """The reason why the clip is flagged, or left unchanged."""

    suggestion: list[str]
    """The lines to write instead of a flagged clip."""

    checks: list[str]
    """Checks to make after the rewrite."""

    @property
    def notes(self) -> Iterator[tuple[str, list[str]]]:
        """Yield a function and the ranges of its known differences, such as '1-3'."""
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
    """A file that could not be read."""

    path: str
    reason: str


class Counts(ReportModel):
    """The number of files, and of clips with each verdict."""

    files: int
    """The number of files that were read."""

    changed: int
    """The number of files with a rewritten clip."""

    clips: int
    rewritten: int
    flagged: int
    left: int
    unread: int
    """The number of files that could not be read."""


class Report(ReportModel):
    """The report of `unified-clip port`."""

    version: Literal[1]
    """The version of this format. It changes if a key is removed or changes its meaning, not if a key is added."""

    target: Target
    native: bool
    """Whether clips are replaced by PyTorch's own functions (`--native`)."""

    written: bool
    """Whether the files were changed."""

    headline: str
    """The counts in a sentence."""

    next: str
    """The next steps in a sentence."""

    rounding: Real
    """Relative differences below this size count as rounding, and are not listed."""

    summary: Counts
    files: list[ReportedFile]
    unread: list[UnreadFile]
    meanings: list[ClipMeaning]
    comparisons: list[MeaningComparison]
    known: list[KnownDifferenceSummary]

    @property
    def legend(self) -> str:
        """A sentence that explains the sizes of known differences."""
        return (
            "Sizes are relative: the error of the norm, or the largest error of an element divided by the largest "
            f"exact element. Errors below {self.rounding:g} are rounding, and are not listed."
        )

    def escaped(self) -> Self:
        """Return the report with control characters escaped, so that it is safe to print."""
        return self.model_validate(safe(self.model_dump(), code=("text", "suggestion")))


def spans(numbers: Sequence[int]) -> list[str]:
    """Return sorted numbers as ranges: ['1-3', '7'] for 1, 2, 3 and 7."""
    groups = itertools.groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


if __name__ == "__main__":
    print(json_schema(Report, "unified_clip port report"), end="")
