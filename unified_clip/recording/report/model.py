"""The report of `unified-clip compare`, as JSON. Later versions can add keys."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import PlainSerializer
from typing_extensions import Self

from ..._kit import plain_json
from ..._kit.display import safe
from ..._kit.report_model import Real, ReportModel, json_schema
from ..compare import RecordingComparison
from ..divergence import Agreement, numbers
from ..losses import logged_numbers
from ..recorded_run import RecordedRun
from ..rounding import distance
from . import largest_differences, sentences, unexplained
from .curves import ClipPoint, Point, clip_points, learning_rates, number_points
from .losses import loss_advice, loss_sentences
from .remedies import remedies

Value = Annotated[Any, PlainSerializer(plain_json.plain, when_used="json")]
"""A value of a recording: a number, a text, null, or a list of values."""


class Finding(ReportModel):
    mistake: str
    """The kind of the cause, as in the table of docs/recording.md."""

    text: str


class ReportedDivergence(ReportModel):
    """A divergence of the two runs."""

    step: int
    stage: str
    """What differs: for example, a setting of the clip, the norm, or a setting of the optimizer."""

    parameter: str | None
    """The parameter's name in run a, or the name of an optimizer's setting. Otherwise null."""

    a: Value
    b: Value
    ulps: Real | None
    relative: Real | None
    """The relative distance between the two values, or null if they are not numbers."""

    ulps_at_its_size: Real | None
    """The difference, measured in ULP of the total norm. For a weight, measured in ULP of the largest norm of this
    weight. For a coefficient, this number is the same as `ulps`. Null if `ulps` is null."""

    findings: list[Finding]
    """The causes that agree with the recorded numbers."""

    what: str
    """A sentence that describes the divergence."""

    why: list[str]
    """Sentences about the causes of the divergence. If no cause is known, a sentence advises where to look."""


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
    """The report of a comparison. If the runs agree, `divergences` is empty."""

    a: str
    b: str
    same: bool
    calls: list[int]
    """The number of recorded calls of each run, in the first process."""

    compared: int
    incomplete_line: list[bool]
    """For each file, whether the last line is incomplete. The comparison ignores an incomplete line."""

    max_ulp: Real | None
    """Null if the comparison tolerates what rounding explains."""

    headline: str
    """Whether the runs are the same, or the first step that differs and its causes."""

    divergences: list[ReportedDivergence]
    agreements: list[Agreement]
    unreported: list[Finding]
    """A difference of the clip's eps that is not in `divergences`, for example because `max_ulp` hides its effect."""

    notes: list[str]
    """Sentences about what was compared, and how closely both runs agree."""

    losses: list[str]
    """Sentences about logged numbers."""

    remedies: list[str]
    """Sentences that advise which code to change. The `why` of a divergence can have further advice."""

    where_to_look: list[str]
    not_compared: list[str]
    """The recorded fields that differ, and that no divergence reports, such as "call.seconds"."""

    runs: list[Run]
    distances: dict[str, list[Point]]
    """The relative distances between both runs at each step, for numbers such as "norm" or "loss"."""

    sentences: list[str]
    """The text on the terminal."""

    def safe(self) -> Self:
        """Return a copy that is safe to print: control characters and invisible characters are escaped."""
        return self.model_validate(safe(self.as_json()))


def build(comparison: RecordingComparison) -> ComparisonReport:
    return ComparisonReport(
        a=str(comparison.a.path),
        b=str(comparison.b.path),
        same=comparison.first is None,
        calls=[run.recorded for run in comparison.runs],
        compared=len(comparison.pairs),
        incomplete_line=[run.incomplete_line for run in comparison.runs],
        max_ulp=None if comparison.max_ulp is None else float(comparison.max_ulp),
        headline=sentences.headline(comparison),
        divergences=[_reported_divergence(each, comparison) for each in sentences.explanations(comparison)],
        agreements=list(comparison.agreements),
        unreported=[Finding(**comparison.unreported_eps[1].as_data())] if comparison.unreported_eps else [],
        notes=[*sentences.notes(comparison), *largest_differences.largest_differences(comparison)],
        losses=[*loss_sentences(comparison), *loss_advice(comparison)],
        remedies=[advice for each in remedies(comparison).values() for advice in each],
        where_to_look=unexplained.where_to_look(comparison),
        not_compared=list(comparison.not_compared),
        runs=list(map(_run, comparison.runs)),
        distances=_distances(comparison),
        sentences=sentences.report_lines(comparison),
    )


def _reported_divergence(explanation: sentences.DivergenceText, comparison: RecordingComparison) -> ReportedDivergence:
    causes = comparison.divergences[explanation.divergence]
    return ReportedDivergence(
        **asdict(explanation.divergence),
        findings=[Finding(**cause.as_data()) for cause in causes],
        what=explanation.what,
        why=explanation.why,
    )


def _distances(comparison: RecordingComparison) -> dict[str, list[Point]]:
    norms = ((pair.a.step, a, b) for pair in comparison.pairs for _, a, b in numbers(pair, "norm"))
    curves = {"norm": number_points((step, distance(a, b).relative) for step, a, b in norms)}
    for logged in comparison.logged:
        curves[logged.name] = number_points((each.step, each.relative or 0.0) for each in logged.differences)
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
