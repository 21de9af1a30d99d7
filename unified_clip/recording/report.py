"""What came of comparing two runs: as JSON, and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _json
from .._display import cell
from .compare import Agreement, Comparison, Difference
from .runs import Recording

APART, BEYOND = "The runs part", "They part by more than rounding"
UNEXPLAINED = "Unexplained: no mistake that is known of ports fits these numbers."


def as_data(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON has it; infinities and NaN are strings."""
    return {
        "a": str(found.a.path),
        "b": str(found.b.path),
        "same": found.first is None,
        "calls": [found.a.recorded, found.b.recorded],
        "compared": len(found.pairs),
        "torn": [found.a.torn, found.b.torn],
        "max_ulp": found.max_ulp,
        "partings": [
            {**_difference(each), "findings": [{"mistake": one.mistake, "text": one.text} for one in findings]}
            for each, findings in found.partings.items()
        ],
        "agreements": [
            {
                "stage": each.stage,
                "compared": each.compared,
                "differs_at_step": each.until,
                "greatest_ulps": _json.plain(each.greatest.ulps),
                "greatest_relative": _json.plain(each.greatest.relative),
            }
            for each in found.agreements
        ],
    }


def _difference(first: Difference) -> dict[str, Any]:
    far = first.distance
    return {
        "step": first.step,
        "stage": first.stage,
        "parameter": first.parameter,
        "a": _json.plain(first.a),
        "b": _json.plain(first.b),
        "ulps": None if far is None else _json.plain(far.ulps),
        "relative": None if far is None else _json.plain(far.relative),
        "ulps_at_its_size": None if first.scaled is None else _json.plain(first.scaled),
    }


def lines(found: Comparison) -> list[str]:
    """The result in a few lines."""
    return [*map(_about, (found.a, found.b)), *result(found)]


def _about(run: Recording) -> str:
    folded = f" that clip one gradient each, compared as {_calls(run.lines)}" if run.recorded > len(run.lines) else ""
    return f"{run.path}: {_counted(run.recorded)}{folded}{', and a torn line' if run.torn else ''}."


def result(found: Comparison) -> list[str]:
    """Where the runs part, why, and how far they are the same."""
    if found.first is None:
        return [f"The runs are the same: {_calls(found.pairs)}{_allowed(found)}.", *_unknown_thresholds(found)]
    about: list[str] = []
    for number, (difference, findings) in enumerate(found.partings.items()):
        about.append(f"{BEYOND if number else APART} at step {difference.step}: {_told(difference)}.")
        told = [f"{each.mistake.capitalize()}: {each.text}." for each in findings] or [UNEXPLAINED]
        about += [line for line in told if line not in about]
    if not all(found.partings.values()) and not (found.a.header.norms and found.b.header.norms):
        about.append("Record both runs with norms=True to see by which parameters they differ.")
    return [*about, *(_agreed(each, found) for each in found.agreements)]


def _unknown_thresholds(found: Comparison) -> list[str]:
    """Where thresholds could not be compared."""
    count = sum(pair.a.rule is not None and None in (pair.a.threshold, pair.b.threshold) for pair in found.pairs)
    where = f"{count} of {_calls(found.pairs)}"
    return [f"Thresholds were not compared in {where}: at least one run did not record a number."] if count else []


def _told(first: Difference) -> str:
    what = {"weight": "the norm of the weight", "gradient": "the norm of the gradient"}.get(first.stage, first.stage)
    if first.stage == "gradient" and first.parameter is None:
        alone = [", ".join(map(repr, names)) or "none" for names in (first.a, first.b) if isinstance(names, tuple)]
        return f"parameters that only one run has: {' and '.join(alone)}"
    if first.stage in ("calls", "norms"):
        return f"{first.a} and {first.b} {'clip calls' if first.stage == 'calls' else 'norms'}"
    whose = f" of {first.parameter!r}" if first.parameter else ""
    text = f"{what}{whose} is {first.a} and {first.b}"
    if first.distance is None:
        return text
    return f"{text}, {first.distance.ulps:g} ULP or {first.distance.relative:.2g} relatively"


def _agreed(each: Agreement, found: Comparison) -> str:
    what = {"weight": "weights", "gradient": "gradients' norms", "norm": "norms", "coefficient": "coefficients"}
    title = what[each.stage].capitalize()
    if each.until is None:
        return f"{title} are equal in all {_calls(found.pairs)} that were compared{_allowed(found)}."
    begin = found.pairs[0].a.step
    until = "from the beginning" if each.until == begin else f"from step {each.until} on, and equal before"
    return f"{title} differ {until}; at most by {each.greatest.ulps:g} ULP, {each.greatest.relative:.2g} relatively."


def _calls(counted: Sequence[object]) -> str:
    return _counted(len(counted))


def _counted(number: int) -> str:
    return f"{number} call{'s' * (number != 1)}"


def _allowed(found: Comparison) -> str:
    return f", up to {found.max_ulp:g} ULP" if found.max_ulp else ""


def show(found: Comparison) -> None:
    """Print it."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines(found):
        console.print(cell(line), soft_wrap=True)
