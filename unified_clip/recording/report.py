"""Show the result of comparing two runs, as JSON and on the terminal."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

from .. import _json
from .._display import cell
from .compare import RecordingComparison
from .divergence import Divergence, StageAgreement
from .optimizers import STAGES
from .rounding import distance
from .runs import RecordedCall, RecordedRun

FIRST, BEYOND = "The runs first differ", "They differ by more than rounding"
RULED_OUT = (
    "another rule", "another threshold", "another norm type", "another eps", "per tensor for global", "clipped twice",
    "a whole factor on all gradients",
)  # fmt: skip
RULED_OUT_BY_NORMS = ("a missing parameter", "swapped parameters", "any factor on all gradients")
RULED_OUT_BY_STEPS = (
    "another learning rate", "gradients that are not cleared", "another number of backward passes", "a left-out clip",
    "clipping after the step",
)  # fmt: skip
"""Causes that were tested: always, with norms of parameters, and with steps of optimizers."""

COUNTS = {
    "calls": "clip calls",
    "clips": "clip calls",
    "norms": "norms",
    "backward passes": "backward passes before it",
}
"""By stage, what is counted."""

UNEXPLAINED = "Unexplained: no known cause fits these numbers."


def as_data(comparison: RecordingComparison) -> dict[str, Any]:
    """Return the comparison as JSON data. Infinities and NaN are strings."""
    runs = (comparison.a, comparison.b)
    data: dict[str, Any] = {
        "a": str(comparison.a.path),
        "b": str(comparison.b.path),
        "same": comparison.first is None,
        "calls": [run.recorded for run in runs],
        "compared": len(comparison.pairs),
        "torn": [run.torn for run in runs],
        "max_ulp": comparison.max_ulp,
        "partings": [
            dict.fromkeys(("step", "stage", "parameter"))  # in this order
            | asdict(each)
            | {"findings": [cause.as_data() for cause in causes]}
            for each, causes in comparison.divergences.items()
        ],
        "agreements": [asdict(each) for each in comparison.agreements],
    }
    return _json.plain(data)  # type: ignore[no-any-return]


def show(comparison: RecordingComparison) -> None:
    """Print the result of a comparison to the terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines(comparison):
        console.print(cell(line), soft_wrap=True)


def lines(comparison: RecordingComparison) -> list[str]:
    """Return a sentence about each run, followed by the sentences of `result`."""
    return [
        *map(_about, (comparison.a, comparison.b)),
        *result(comparison),
        *_losses(comparison),
        *_ruled_out(comparison),
    ]


def _about(run: RecordedRun) -> str:
    folded = (
        f" that clip one gradient each, compared as {_calls(len(run.lines))}" if run.recorded > len(run.lines) else ""
    )
    text = f"{run.path}: {_calls(run.recorded)}{folded}{', and an incomplete line' if run.torn else ''}."
    return f"{text}{_about_ranks(run)}" if run.others else text


def _about_ranks(run: RecordedRun) -> str:
    """Return a sentence about the other processes of a run: whether they recorded the same clips as the first."""
    count = len(run.others) + 1
    for other in run.others:
        for own, line in zip(run.lines, other, strict=False):
            if (own.call, own.threshold, own.norm, own.coef) != (line.call, line.threshold, line.norm, line.coef):
                what = "norm" if own.norm != line.norm else "clip"
                return (
                    f" It has {count} processes. The first is compared. Process {line.process} differs from it at step "
                    f"{own.step}: {what} is {_clip_text(own, what)} and {_clip_text(line, what)}."
                )
        if len(run.lines) != len(other):
            return f" It has {count} processes. The first is compared. One has {_calls(len(other))}."
    return f" It has {count} processes, with the same norms and coefficients. The first is compared."


def _clip_text(line: RecordedCall, what: str) -> str:
    return f"{line.norm}" if what == "norm" else f"{line.call} with threshold {line.threshold}"


def result(comparison: RecordingComparison) -> list[str]:
    """Return sentences about where the runs differ, why, and how closely each stage agrees."""
    if comparison.first is None:
        same = f"The runs are the same: {_calls(len(comparison.pairs))}{_allowed(comparison)}."
        return [same, *_unknown_thresholds(comparison)]
    sentences: list[str] = []
    for number, (divergence, findings) in enumerate(comparison.divergences.items()):
        sentences.append(f"{BEYOND if number else FIRST} at step {divergence.step}: {_format_divergence(divergence)}.")
        explanations = [str(each) for each in findings] or [_unexplained(comparison, divergence)]
        sentences += [line for line in explanations if line not in sentences]
    if not all(comparison.divergences.values()) and not (comparison.a.header.norms and comparison.b.header.norms):
        sentences.append("Record both runs with norms=True, or --norms, to see by which parameters they differ.")
    return [*sentences, *(_format_agreement(each, comparison) for each in comparison.agreements)]


def _losses(comparison: RecordingComparison) -> list[str]:
    """Return a sentence about each logged number, such as the loss."""
    sides = [_logged(run) for run in (comparison.a, comparison.b)]
    sentences = []
    for name in sides[0].keys() & sides[1].keys():
        pairs = list(zip(sides[0][name], sides[1][name], strict=False))
        differing = [(a, b) for a, b in pairs if distance(a[1], b[1]).ulps > comparison.max_ulp]
        if differing:
            (step, a), (_, b) = differing[0]
            greatest = max(distance(a[1], b[1]).relative for a, b in pairs)
            sentences.append(f"{name} differs from step {step} on: {a} and {b}, by at most {greatest:.2g} relatively.")
        else:
            sentences.append(f"{name} is equal at all {len(pairs)} steps{_allowed(comparison)}.")
    return sorted(sentences)


def _logged(run: RecordedRun) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each logged number, by name."""
    numbers: dict[str, list[tuple[int, float]]] = {}
    for line in run.logged:
        for name, value in line.logged.items():
            numbers.setdefault(name, []).append((line.step, value))
    return numbers


def _unexplained(comparison: RecordingComparison, divergence: Divergence) -> str:
    """Return the sentence about a divergence without a cause of its own."""
    earlier = itertools.takewhile(lambda each: each is not divergence, comparison.divergences)
    steps = [each for each in earlier if each.stage in STAGES]
    return f"It can follow from the difference at step {steps[0].step}." if steps else UNEXPLAINED


def _ruled_out(comparison: RecordingComparison) -> list[str]:
    """Return sentences about the first unexplained difference: where to look, and what was ruled out."""
    unexplained = [each for each, causes in comparison.divergences.items() if not causes]
    if not unexplained or _unexplained(comparison, unexplained[0]) != UNEXPLAINED:
        return []
    first, runs = unexplained[0], (comparison.a, comparison.b)
    sentences = []
    if first.stage in ("weight", "gradient", "norm") and first is comparison.first:
        is_first = first.step == comparison.pairs[0].a.step
        place = "the initial weights" if first.stage == "weight" else "the forward pass, the loss and the data"
        if first.stage != "weight" and not all(run.header.norms for run in runs):
            place += ", and the initial weights"
        if first.stage == "weight" and not is_first:
            place = "the optimizers"
        same = "" if is_first else f" up to step {first.step - 1}"
        what = "weights" if first.stage == "weight" else "gradients"
        sentences.append(
            f"Clipping is the same{same}: rule, threshold, norm type and formula. The {what} differ before the clip of "
            f"step {first.step}. Compare {place}."
        )
    ruled_out = [*RULED_OUT]
    if all(run.header.norms for run in runs):
        ruled_out += RULED_OUT_BY_NORMS
    if all(run.optimizer_steps for run in runs):
        ruled_out += RULED_OUT_BY_STEPS
    return [*sentences, f"Ruled out: {', '.join(ruled_out)}."]


def _unknown_thresholds(comparison: RecordingComparison) -> list[str]:
    pairs = comparison.pairs
    count = sum(pair.a.rule is not None and None in (pair.a.threshold, pair.b.threshold) for pair in pairs)
    where = f"{count} of {_calls(len(pairs))}"
    return [f"Thresholds were not compared in {where}: at least one run did not record a number."] if count else []


def _format_divergence(divergence: Divergence) -> str:
    names = {"weight": "the norm of the weight", "gradient": "the norm of the gradient"}
    if divergence.stage == "gradient" and divergence.parameter is None:
        sides = (divergence.a, divergence.b)
        unmatched = [", ".join(map(repr, side)) or "none" for side in sides if isinstance(side, tuple)]
        return f"parameters that only one run has: {' and '.join(unmatched)}"
    if divergence.stage in COUNTS:
        return f"{divergence.a} and {divergence.b} {COUNTS[divergence.stage]}"
    if divergence.stage == "gradients cleared":
        cleared, other = ("are", "are not") if divergence.a else ("are not", "are")
        return f"gradients {cleared} cleared before it, and {other}"
    if divergence.stage == "optimizer" and divergence.parameter:
        return f"{divergence.parameter} of the optimizer is {divergence.a} and {divergence.b}"
    whose = f" of {divergence.parameter!r}" if divergence.parameter else ""
    text = f"{names.get(divergence.stage, divergence.stage)}{whose} is {divergence.a} and {divergence.b}"
    return text if divergence.ulps is None else f"{text}, {_format_distance(divergence.ulps, divergence.relative)}"


def _format_distance(ulps: float, relative: float | None) -> str:
    return f"{ulps:g} ULP or {relative:.2g} relatively"


def _format_agreement(agreement: StageAgreement, comparison: RecordingComparison) -> str:
    names = {"weight": "Weights", "gradient": "Gradients' norms", "norm": "Norms", "coefficient": "Coefficients"}
    name = names[agreement.stage]
    if agreement.differs_at_step is None:
        return f"{name} are equal in all {_calls(len(comparison.pairs))} that were compared{_allowed(comparison)}."
    is_first = agreement.differs_at_step == comparison.pairs[0].a.step
    since = "the first step" if is_first else f"step {agreement.differs_at_step}"
    greatest = _format_distance(agreement.greatest_ulps, agreement.greatest_relative)
    return f"{name} differ from {since} on, by at most {greatest}."


def _calls(number: int) -> str:
    return f"{number} call{'s' * (number != 1)}"


def _allowed(comparison: RecordingComparison) -> str:
    return f", up to {comparison.max_ulp:g} ULP" if comparison.max_ulp else ""
