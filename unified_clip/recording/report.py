"""The result of comparing two runs, as JSON and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _json
from .._display import cell
from .compare import RecordingComparison
from .divergence import Divergence, StageAgreement
from .runs import RecordedRun

FIRST, BEYOND = "The runs first differ", "They differ by more than rounding"
UNEXPLAINED = "Unexplained: no known cause fits these numbers."


def as_data(comparison: RecordingComparison) -> dict[str, Any]:
    """Return the comparison as JSON data. Infinities and NaN are strings."""
    return {
        "a": str(comparison.a.path),
        "b": str(comparison.b.path),
        "same": comparison.first is None,
        "calls": [comparison.a.recorded, comparison.b.recorded],
        "compared": len(comparison.pairs),
        "torn": [comparison.a.torn, comparison.b.torn],
        "max_ulp": comparison.max_ulp,
        "partings": [
            {**_divergence_data(each), "findings": [one.as_data() for one in findings]}
            for each, findings in comparison.divergences.items()
        ],
        "agreements": [
            {
                "stage": each.stage,
                "compared": each.compared,
                "differs_at_step": each.until,
                "greatest_ulps": _json.plain(each.greatest.ulps),
                "greatest_relative": _json.plain(each.greatest.relative),
            }
            for each in comparison.agreements
        ],
    }


def _divergence_data(divergence: Divergence) -> dict[str, Any]:
    apart = divergence.distance
    return {
        "step": divergence.step,
        "stage": divergence.stage,
        "parameter": divergence.parameter,
        "a": _json.plain(divergence.a),
        "b": _json.plain(divergence.b),
        "ulps": None if apart is None else _json.plain(apart.ulps),
        "relative": None if apart is None else _json.plain(apart.relative),
        "ulps_at_its_size": None if divergence.scaled is None else _json.plain(divergence.scaled),
    }


def show(comparison: RecordingComparison) -> None:
    """Print the result."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines(comparison):
        console.print(cell(line), soft_wrap=True)


def lines(comparison: RecordingComparison) -> list[str]:
    """Return a sentence about each run, and the result."""
    return [*map(_about, (comparison.a, comparison.b)), *result(comparison)]


def _about(run: RecordedRun) -> str:
    folded = f" that clip one gradient each, compared as {_calls(run.lines)}" if run.recorded > len(run.lines) else ""
    return f"{run.path}: {_counted(run.recorded)}{folded}{', and a torn line' if run.torn else ''}."


def result(comparison: RecordingComparison) -> list[str]:
    """Return sentences: where the runs differ, why, and how closely each stage agrees."""
    if comparison.first is None:
        same = f"The runs are the same: {_calls(comparison.pairs)}{_allowed(comparison)}."
        return [same, *_unknown_thresholds(comparison)]
    sentences: list[str] = []
    for number, (divergence, findings) in enumerate(comparison.divergences.items()):
        sentences.append(f"{BEYOND if number else FIRST} at step {divergence.step}: {_format_divergence(divergence)}.")
        explanations = [str(each) for each in findings] or [UNEXPLAINED]
        sentences += [line for line in explanations if line not in sentences]
    if not all(comparison.divergences.values()) and not (comparison.a.header.norms and comparison.b.header.norms):
        sentences.append("Record both runs with norms=True to see by which parameters they differ.")
    return [*sentences, *(_format_agreement(each, comparison) for each in comparison.agreements)]


def _unknown_thresholds(comparison: RecordingComparison) -> list[str]:
    pairs = comparison.pairs
    count = sum(pair.a.rule is not None and None in (pair.a.threshold, pair.b.threshold) for pair in pairs)
    where = f"{count} of {_calls(pairs)}"
    return [f"Thresholds were not compared in {where}: at least one run did not record a number."] if count else []


def _format_divergence(divergence: Divergence) -> str:
    names = {"weight": "the norm of the weight", "gradient": "the norm of the gradient"}
    if divergence.stage == "gradient" and divergence.parameter is None:
        sides = (divergence.a, divergence.b)
        unmatched = [", ".join(map(repr, side)) or "none" for side in sides if isinstance(side, tuple)]
        return f"parameters that only one run has: {' and '.join(unmatched)}"
    if divergence.stage in ("calls", "norms"):
        return f"{divergence.a} and {divergence.b} {'clip calls' if divergence.stage == 'calls' else 'norms'}"
    whose = f" of {divergence.parameter!r}" if divergence.parameter else ""
    text = f"{names.get(divergence.stage, divergence.stage)}{whose} is {divergence.a} and {divergence.b}"
    if divergence.distance is None:
        return text
    return f"{text}, {divergence.distance.ulps:g} ULP or {divergence.distance.relative:.2g} relatively"


def _format_agreement(agreement: StageAgreement, comparison: RecordingComparison) -> str:
    names = {"weight": "Weights", "gradient": "Gradients' norms", "norm": "Norms", "coefficient": "Coefficients"}
    name = names[agreement.stage]
    if agreement.until is None:
        return f"{name} are equal in all {_calls(comparison.pairs)} that were compared{_allowed(comparison)}."
    is_first = agreement.until == comparison.pairs[0].a.step
    since = "the first step" if is_first else f"step {agreement.until}"
    greatest = agreement.greatest
    return f"{name} differ from {since} on, by at most {greatest.ulps:g} ULP or {greatest.relative:.2g} relatively."


def _calls(calls: Sequence[object]) -> str:
    return _counted(len(calls))


def _counted(number: int) -> str:
    return f"{number} call{'s' * (number != 1)}"


def _allowed(comparison: RecordingComparison) -> str:
    return f", up to {comparison.max_ulp:g} ULP" if comparison.max_ulp else ""
