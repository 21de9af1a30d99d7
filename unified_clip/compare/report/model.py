"""The report of `unified-clip compare`, as JSON. Later versions can add keys."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import PlainSerializer
from typing_extensions import Self

from ..._kit.display import safe
from ..._kit.report_model import Real, ReportModel, json_schema
from ...recipes.finding import Finding
from ...recorder.lines import plain_json
from ...recording.recorded_run import RecordedRun
from ..losses import logged_numbers
from ..recordings import RecordingComparison
from . import sentences
from .curves import ClipPoint, Point, clip_points, learning_rates, number_points

Value = Annotated[Any, PlainSerializer(plain_json, when_used="json")]
"""A value of a recording: a number, a text, null, or a list of values."""


class ReportedFinding(ReportModel):
    """A difference between the recipes of the two runs."""

    step: int
    """The first step at which the runs differ in this field."""

    mistake: str
    """The kind of the difference, as in the table of docs/recording.md."""

    field: str
    """What differs, such as "threshold" or "learning rate"."""

    a: Value
    b: Value
    text: str
    """A sentence about the difference and its consequence."""

    fix: str
    """How to mend the second run, or ""."""


class Run(ReportModel):
    """Facts about a recording, and its curves."""

    file: str
    about: str
    started: str
    unified_clip: str
    command: list[str]
    """The command line of the first process, without the Python executable. Empty unless `unified-clip record` wrote
    the file."""

    processes: int
    ranks: int | None
    """The world size, or null if it is unknown."""

    frameworks: list[str]
    functions: dict[str, int]
    """The number of calls of each function in the first process. The calls in a loop over parameters can count as one
    call."""

    optimizers: list[str]
    steps: int
    clipped: int
    """The number of calls that clipped a gradient."""

    norms: bool
    """Whether the norms of all parameters were recorded."""

    clips: list[ClipPoint]
    logged: dict[str, list[Point]]
    """The curves of logged numbers by name, such as "loss"."""

    learning_rate: list[Point]


class ComparisonReport(ReportModel):
    """The report of a comparison. If the runs agree, `findings` is empty."""

    a: str
    b: str
    same: bool
    calls: list[int]
    """The number of recorded calls of each run, in the first process."""

    steps: int
    """The number of steps whose gradients were compared. After the first difference, the runs train apart."""

    parameters: dict[str, str]
    """The compared parameters: {name in run a: name in run b}. Several names are joined by commas."""

    incomplete_line: list[bool]
    """For each file, whether the last line is incomplete. The comparison ignores an incomplete line."""

    largest_difference: Real
    """The largest difference of the gradients before the clip, divided by their total norm."""

    headline: str
    """Whether the runs are the same, or the first step that differs and the kinds of differences."""

    findings: list[ReportedFinding]
    notes: list[str]
    """Sentences about what was not compared."""

    losses: list[str]
    """Sentences about logged numbers."""

    runs: list[Run]
    distances: dict[str, list[Point]]
    """The relative distances between both runs at each step, for the gradients and for logged numbers."""

    sentences: list[str]
    """The text on the terminal."""

    def safe(self) -> Self:
        """Return a copy that is safe to print: control characters and invisible characters are escaped."""
        return self.model_validate(safe(self.as_json()))


def build(comparison: RecordingComparison) -> ComparisonReport:
    return ComparisonReport(
        a=str(comparison.a.path),
        b=str(comparison.b.path),
        same=not comparison.findings,
        calls=[run.recorded for run in comparison.runs],
        steps=comparison.recipes.steps,
        parameters={pair.name: ", ".join(pair.new) for pair in comparison.recipes.pairs},
        incomplete_line=[run.incomplete_line for run in comparison.runs],
        largest_difference=comparison.largest * sentences.UNIT,
        headline=sentences.headline(comparison),
        findings=list(map(reported, comparison.findings)),
        notes=sentences.notes(comparison),
        losses=sentences.loss_sentences(comparison),
        runs=list(map(_run, comparison.runs)),
        distances=_distances(comparison),
        sentences=sentences.report_lines(comparison),
    )


def reported(finding: Finding) -> ReportedFinding:
    return ReportedFinding(
        step=finding.step,
        mistake=finding.kind,
        field=finding.field,
        a=finding.old,
        b=finding.new,
        text=finding.sentence,
        fix=finding.fix,
    )


def _distances(comparison: RecordingComparison) -> dict[str, list[Point]]:
    gradients = ((step, each * sentences.UNIT) for step, each in comparison.recipes.distances.items())
    curves = {"gradients": number_points(gradients)}
    for logged in comparison.logged:
        curves[logged.name] = number_points((point.step, point.relative) for point in logged.points)
    return curves


def _run(run: RecordedRun) -> Run:
    processes = run.header.processes
    return Run(
        file=str(run.path),
        about=sentences.describe_run(run),
        started=run.header.started,
        unified_clip=run.header.unified_clip,
        command=list(processes[0].arguments) if processes else [],
        processes=max(1, len(processes)),
        ranks=processes[0].ranks if processes else None,
        frameworks=sorted({line.framework for line in run.lines if line.framework}),
        functions=dict(Counter(line.call for line in run.lines)),
        optimizers=sorted({step.optimizer for step in run.optimizer_steps}),
        steps=len({line.step for line in run.lines}),
        clipped=sum(bool(line.clipped) for line in run.lines),
        norms=run.header.norms,
        clips=clip_points(run.lines),
        logged={name: number_points(numbers) for name, numbers in logged_numbers(run).items()},
        learning_rate=learning_rates(run.optimizer_steps),
    )


if __name__ == "__main__":
    print(json_schema(ComparisonReport, "unified_clip comparison"), end="")
