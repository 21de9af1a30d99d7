"""Write the sentences of the report that compares two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..._kit.display import counted
from ...causes.cause import names_text
from ...recipes.finding import Finding
from ...recording.lines import failure
from ...recording.recorded_run import RecordedCall, RecordedRun
from ..losses import LoggedComparison, logged_numbers
from ..recordings import INTERRUPTED, RecordingComparison

UNIT = 2.0**-24
SAME = "The runs follow the same recipe"
UNNAMED_NETWORKS = "no recorded optimizer steps"


def report_lines(comparison: RecordingComparison) -> list[str]:
    return [
        headline(comparison),
        *map(describe_run, comparison.runs),
        *(line for each in comparison.findings for line in explain(each)),
        *notes(comparison),
        *loss_sentences(comparison),
    ]


def headline(comparison: RecordingComparison) -> str:
    if not comparison.findings:
        steps, parameters = counted(comparison.recipes.steps, "step"), len(comparison.recipes.pairs)
        return f"{SAME} in {steps}, with {counted(parameters, 'parameter')}{closeness(comparison)}."
    first = comparison.findings[0].step
    kinds = dict.fromkeys(each.kind for each in comparison.findings)
    return f"The runs differ from step {first} on: {', '.join(kinds)}."


def closeness(comparison: RecordingComparison) -> str:
    largest = comparison.largest
    if not largest:
        return ", and the compared gradients are equal"
    what = "Their gradients differ" if comparison.recipes.tolerated else "They differ by rounding only"
    size = f"at most {largest * UNIT:.1g} of the total norm"
    return f". {what} by {size}" if comparison.recipes.tolerated else f". {what} ({size})"


def explain(finding: Finding) -> Iterator[str]:
    """Return what differs with its values, the consequence, and how to mend it."""
    title = f"{finding.kind[:1].upper()}{finding.kind[1:]}"
    yield f"{title}: {finding.sentence} (step {finding.step})."
    if finding.fix:
        yield f"  {finding.fix}."


def describe_run(run: RecordedRun) -> str:
    text = f"{run.path}: {counted(run.recorded, 'call')}."
    if run.header.exit_status not in INTERRUPTED and (failed := failure(run.header.exit_status)):
        text += f" {failed}"
    if run.incomplete_line:
        text += " The last line is incomplete."
    return f"{text} {_about_ranks(run)}" if run.others else text


def _about_ranks(run: RecordedRun) -> str:
    count = len(run.others) + 1
    begin = f"The run has {count} processes. Only the first process is compared."
    for other in run.others:
        for own, line in zip(run.lines, other, strict=False):
            if (own.call, own.threshold, own.norm, own.coef) != (line.call, line.threshold, line.norm, line.coef):
                what = "norm" if own.norm != line.norm else "clip"
                return (
                    f"{begin} At step {own.step}, the {what} is {_clip_text(own, what)} in the first process, and "
                    f"{_clip_text(line, what)} in process {line.process}."
                )
        if len(run.lines) != len(other):
            return f"{begin} Another process has {counted(len(other), 'call')}."
    return f"The run has {count} processes, with the same norms and coefficients. Only the first process is compared."


def _clip_text(line: RecordedCall, what: str) -> str:
    return f"{line.norm}" if what == "norm" else f"{line.call} with threshold {line.threshold}"


def notes(comparison: RecordingComparison) -> list[str]:
    return [
        *_tolerated(comparison),
        *_unpaired(comparison),
        *_noise(comparison),
        *_rearranged(comparison),
        *_unknown(comparison),
        *_warnings(comparison),
    ]


def _tolerated(comparison: RecordingComparison) -> Iterator[str]:
    for each in comparison.recipes.tolerated:
        yield f"Tolerated, because it changes the updates by at most {100 * each.effect:.2g} %: {each.sentence}."
        if each.fix:
            yield f"  To remove it: {each.fix[0].lower()}{each.fix[1:]}."


def _unpaired(comparison: RecordingComparison) -> Iterator[str]:
    kinds = {each.kind for each in comparison.findings}
    if kinds & {"left out", "left-out clip", "clip by hand", "tied weights", "repeated parameter"}:
        return
    for run, names in zip(comparison.runs, comparison.recipes.unpaired, strict=True):
        if names:
            yield (
                f"Not compared: {names_text(names)}, which only {run.name} has. If the other run has other names for "
                "the same weights, match the names with --map."
            )


def _noise(comparison: RecordingComparison) -> Iterator[str]:
    if names := comparison.recipes.noise:
        text = (
            f"Not compared: the gradients of {names_text(names)}. They are only rounding noise, at most 64 ULP of the "
            "total norm, as for a bias before BatchNorm."
        )
        has_adam = any("adam" in step.optimizer.lower() for run in comparison.runs for step in run.optimizer_steps)
        yield f"{text} This noise changes the weights, with Adam by up to the learning rate." if has_adam else text


def _rearranged(comparison: RecordingComparison) -> Iterator[str]:
    names = [pair.name for pair in comparison.recipes.pairs if pair.are_rearranged]
    if names and not any(each.kind == "other initial weights" for each in comparison.findings):
        yield (
            f"Only the norms of {names_text(names)} were compared: both runs have the same elements in different "
            "orders, as for the gates of a GRU in Keras and PyTorch. See docs/porting/optimizers_and_layers.md."
        )


def _unknown(comparison: RecordingComparison) -> Iterator[str]:
    lines = [line for run in comparison.runs for line in run.lines if line.rule is not None]
    if count := sum(line.threshold is None for line in lines):
        yield f"The thresholds of {count} of {counted(len(lines), 'clip call')} are arrays, and were not compared."
    if unknown := [run.name for run in comparison.runs if not run.optimizer_steps]:
        yield (
            f"{' and '.join(unknown)}: {UNNAMED_NETWORKS}, so optimizers were compared only by the weights. To compare "
            "single updates, run `unified-clip verify`."
        )
    if not all(run.header.norms for run in comparison.runs):
        yield "To compare each parameter, its weights and the optimizer, record both runs with norms=True, or --norms."
    elif comparison.recipes.unexplained:
        names = " and ".join(comparison.recipes.unexplained)
        yield f"No known rule explains the updates of {names}, so only the recorded settings were compared."


def _warnings(comparison: RecordingComparison) -> list[str]:
    return [f"ClipWarning in {run.name}: {text.removesuffix('.')}." for run in comparison.runs for text in run.warnings]


# -- losses


def loss_sentences(comparison: RecordingComparison) -> list[str]:
    found = logged_sentences(comparison.a, comparison.b, comparison.logged)
    without = [run.name for run in comparison.runs if "loss" not in logged_numbers(run)]
    if len(without) == 1:
        found.append(
            f"To record the losses of {without[0]}, log them at each step of its script. docs/recording.md has the "
            "lines."
        )
    return found


def logged_sentences(a: RecordedRun, b: RecordedRun, logged: Sequence[LoggedComparison]) -> list[str]:
    sides = [logged_numbers(run) for run in (a, b)]
    only = ((a, sides[0].keys() - sides[1]), (b, sides[1].keys() - sides[0]))
    found = [f"{name} was not compared: only {run.name} has it." for run, names in only for name in names]
    for each in logged:
        if each.divides:
            reason = f"only this run divides its losses by {each.passes}, the number of backward passes of a step"
            name = each.divides.name
            found.append(f"Losses of {name} are multiplied by {each.passes} in this report, because {reason}.")
        found.append(logged_text(each))
    return sorted(found)


def logged_text(logged: LoggedComparison) -> str:
    name, first, largest = logged.name, logged.first, logged.largest
    if largest is None:
        return f"{name} was not compared: the runs logged it at different steps."
    if first is None:
        if not largest.relative:
            return f"{name} is equal at all {len(logged.points)} steps."
        most = format_relative(largest.relative)
        return f"{name} differs by at most {most}, as the differences of the gradients explain."
    most = f"The values differ by at most {format_relative(largest.relative)}"
    if math.isinf(largest.relative):
        most = "In one run, some values are not finite"
    return f"{name} differs from step {first.step} on: {first.old} and {first.new} at this step. {most}."


def format_relative(relative: float) -> str:
    if relative < 1e-4:
        return f"{relative:.2g} relatively"
    if relative >= 10:
        return f"{relative:.3g} times"
    return f"{100 * relative:.2g} %" if relative < 0.995 else f"{100 * relative:.0f} %"
