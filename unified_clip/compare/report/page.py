"""Render the report of a comparison as a single HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from ..._page.templates import environment
from ...recipes.finding import value_text
from . import run_plots
from .model import ComparisonReport, Run
from .run_plots import Curve
from .sentences import format_relative

NO_LOSSES = 'No losses were recorded. To add losses, see "Losses" in docs/recording.md.'


def render(report: ComparisonReport) -> str:
    report = report.safe()
    page: str = (
        environment(__package__)
        .get_template("comparison.html")
        .render(
            report=report,
            headline=report.headline,
            notes=report.notes,
            facts=list(_facts(report.runs)),
            plots=list(_plots(report)),
            no_losses="" if any(run.logged for run in report.runs) else NO_LOSSES,
            number=value_text,
            tiles=list(_tiles(report)),
        )
    )
    return page


def _tiles(report: ComparisonReport) -> Iterator[tuple[str, str, str]]:
    if report.findings:
        first, count = report.findings[0], len(report.findings)
        yield f"step {first.step}", f"first difference: {first.field}", "different"
        yield str(count), "difference" if count == 1 else "differences", "different"
    else:
        most = report.largest_difference
        yield format_relative(most) if most else "0", "largest difference, of the total norm", "equal"
    for name, run in zip("AB", report.runs, strict=True):
        yield f"{run.clipped} of {sum(run.functions.values())}", f"calls of {name} clipped a gradient", ""


def _facts(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    yield "file", [run.file for run in runs]
    yield "command", [shlex.join(["python", *run.command]) if run.command else "not recorded" for run in runs]
    yield "framework", [", ".join(run.frameworks) for run in runs]
    yield "clip calls", [", ".join(f"{name} ({count})" for name, count in run.functions.items()) for run in runs]
    yield "clipped", [f"{run.clipped} of {sum(run.functions.values())} calls, in {run.steps} steps" for run in runs]
    yield "optimizer", [", ".join(run.optimizers) or "not recorded" for run in runs]
    yield "processes", [f"{run.processes}" + (f" of {run.ranks} ranks" if run.ranks else "") for run in runs]
    yield "norms of parameters", ["recorded" if run.norms else "not recorded" for run in runs]
    yield "recorded", [f"{run.started}, by unified_clip {run.unified_clip}" for run in runs]


def _plots(report: ComparisonReport) -> Iterator[tuple[str, str, Markup]]:
    marked_steps = [each.step for each in report.findings]
    if plot := run_plots.clips([run.clips for run in report.runs], marked_steps):
        words = "The total norm (line) and the threshold (dashes) at each step. Marks below the plot show clips."
        yield "Norm and threshold", words, plot
    for name in sorted({name for run in report.runs for name in run.logged}, key=lambda name: (name != "loss", name)):
        curves: list[Curve] = [run.logged.get(name, []) for run in report.runs]
        if plot := run_plots.numbers(name, curves, marked_steps):
            yield name, f"{name} at each step.", plot
    for name, curve in report.distances.items():
        if plot := run_plots.distances(f"distance of {name}", curve, marked_steps):
            words = f"Relative difference of {name} between the runs. Rounding errors begin near 10⁻⁷ and grow slowly."
            yield f"Distance of {name}", words, plot
    if plot := run_plots.numbers("learning rate", [run.learning_rate for run in report.runs], marked_steps):
        yield "Learning rate", "The learning rates of the optimizer's parameter groups at each step.", plot
