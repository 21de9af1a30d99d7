"""Describe how closely two runs agree in each number, such as the norm or the loss."""

from __future__ import annotations

from collections.abc import Iterator

from ..._display import counted
from ..causes.before_clips import listed
from ..compare import RecordingComparison
from ..divergence import Agreement
from ..rounding import ROUNDING, Distance, distance, greatest
from ..runs import RecordedRun

STAGE_NAMES = {"weight": "Weights", "gradient": "Gradients' norms", "norm": "Norms", "coefficient": "Coefficients"}

Numbered = tuple[int, float]
"""(step, number)."""


def agreements(comparison: RecordingComparison) -> list[str]:
    return [_format_agreement(each, comparison) for each in comparison.agreements]


def largest_differences(comparison: RecordingComparison) -> list[str]:
    """If only `max_ulp` makes the runs the same, return `agreements`, else []."""
    if comparison.first is not None or not any(each.greatest_ulps for each in comparison.agreements):
        return []
    return agreements(comparison)


def losses(comparison: RecordingComparison) -> list[str]:
    sides = [logged(run) for run in comparison.runs]
    sentences = []
    only = ((comparison.a, sides[0].keys() - sides[1]), (comparison.b, sides[1].keys() - sides[0]))
    sentences += [f"{name} was not compared: only {run.name} has it." for run, names in only for name in names]
    for name in sides[0].keys() & sides[1].keys():
        pairs = list(paired(sides[0][name], sides[1][name]))
        if name == "loss" and (divided := _divided(pairs, comparison)):
            note, pairs = divided
            sentences.append(note)
        if pairs:
            sentences.append(_format_logged(name, pairs, comparison))
        else:
            sentences.append(f"{name} was not compared: both runs logged it, but at no common step.")
    return sorted(sentences)


Pairs = list[tuple[Numbered, Numbered]]


def _divided(pairs: Pairs, comparison: RecordingComparison) -> tuple[str, Pairs] | None:
    """If only one run divides its losses by the number of losses in a step, return (note, pairs of losses), else None.

    In the returned pairs, the losses of this run are multiplied by the number of losses in a step.
    """
    counts = {len(step.losses) for run in comparison.runs for step in run.optimizer_steps}
    count = counts.pop() if len(counts) == 1 else 1
    if count < 2:
        return None
    for run, factors in zip(comparison.runs, ((count, 1), (1, count)), strict=True):
        scaled = [((step, factors[0] * a), (later, factors[1] * b)) for (step, a), (later, b) in pairs]
        if any(a for (_, a), _ in pairs[:count]) and all(
            distance(a, b).ulps <= ROUNDING for (_, a), (_, b) in scaled[:count]
        ):
            reason = f"only this run divides its losses by {count}, the number of backward passes of a step"
            return f"Losses of {run.name} are multiplied by {count} in this report, because {reason}.", scaled
    return None


def _format_logged(name: str, pairs: list[tuple[Numbered, Numbered]], comparison: RecordingComparison) -> str:
    distances = [distance(a, b) for (_, a), (_, b) in pairs]
    most = greatest(distances)
    differing = next((n for n, each in enumerate(distances) if each.ulps > comparison.max_ulp), None)
    if differing is None:
        where = f"at all {len(pairs)} steps"
        step = next(each[0] for (each, _), far in zip(pairs, distances, strict=True) if far.ulps == most.ulps)
        return f"{name} {_format_same('is', where, most, step, comparison)}."
    (step, a), (_, b) = pairs[differing]
    beyond = next((n for n, each in enumerate(distances) if each.ulps > ROUNDING), None)
    at_most = f"by at most {_format_relative(most.relative)}"
    since = ""
    if beyond is None or beyond <= differing:
        since = f" by more than {comparison.max_ulp:g} ULP" if beyond not in (None, differing) else ""
        end = f", {at_most}" + (f", which can be rounding{_limit(comparison)}" if beyond is None else "")
    else:
        (later, c), (_, d) = pairs[beyond]
        end = (
            f", {distances[differing].ulps:g} ULP, which can be rounding. From step {later} on, it differs by more "
            f"than {ROUNDING} ULP: {c} and {d}, {at_most}"
        )
    return f"{name} differs{since} from step {step} on: {a} and {b}{end}."


def _limit(comparison: RecordingComparison) -> str:
    if any("float64" in (pair.a.dtype, pair.b.dtype) for pair in comparison.pairs):
        return ""
    return ", or a small mistake. Only a comparison in float64 shows which"


def logged(run: RecordedRun) -> dict[str, list[Numbered]]:
    """Return {name of a logged number: [(step, value), ...]}.

    If the run logged no "loss", the losses of its backward passes are used.
    """
    numbers: dict[str, list[Numbered]] = {}
    for line in run.logged:
        for name, value in line.logged.items():
            numbers.setdefault(name, []).append((line.step, value))
    losses = [(step.step, loss) for step in run.optimizer_steps for loss in step.losses]
    return {"loss": losses, **numbers} if losses else numbers


def paired(a: list[Numbered], b: list[Numbered]) -> Iterator[tuple[Numbered, Numbered]]:
    """Pair numbers of two runs: in order if both runs have equally many numbers, else by step."""
    if len(a) == len(b):
        yield from zip(a, b, strict=True)
        return
    by_step: dict[int, list[Numbered]] = {}
    for each in b:
        by_step.setdefault(each[0], []).append(each)
    yield from ((each, by_step[each[0]].pop(0)) for each in a if by_step.get(each[0]))


def _format_agreement(agreement: Agreement, comparison: RecordingComparison) -> str:
    name = STAGE_NAMES[agreement.stage]
    most = Distance(agreement.greatest_ulps, agreement.greatest_relative)
    if agreement.differs_at_step is None:
        same = _format_same("are", _compared(comparison), most, agreement.greatest_at_step, comparison)
        return f"{name} {same}{_apart_from_noise(agreement)}."
    is_first = agreement.differs_at_step == comparison.pairs[0].a.step
    since = "the first step" if is_first else f"step {agreement.differs_at_step}"
    beyond = agreement.beyond_rounding_at_step
    is_later = beyond is not None and beyond > agreement.differs_at_step
    later = f"by more than {ROUNDING} ULP from step {beyond} on, and " if is_later else ""
    return f"{name} differ from {since} on, {later}by at most {format_distance(*most)}{_apart_from_noise(agreement)}."


def _apart_from_noise(agreement: Agreement) -> str:
    return f", apart from rounding noise of {listed(agreement.noise)}" if agreement.noise else ""


def _format_same(verb: str, where: str, most: Distance, step: int | None, comparison: RecordingComparison) -> str:
    text = f"{verb} equal {where}"
    if not most.ulps:
        return text
    ulps, relative = f"{most.ulps:g} ULP, at step {step}", _format_relative(most.relative)
    return f"{text}{allowed(comparison)}: the largest differences are {ulps}, and {relative}"


def format_distance(ulps: float, relative: float | None) -> str:
    return f"{ulps:g} ULP" if relative is None else f"{ulps:g} ULP or {_format_relative(relative)}"


def _format_relative(relative: float) -> str:
    """Return a relative distance as text, such as "7.4e-08 relatively", "0.024 %" or "289 times"."""
    if relative < 1e-4:
        return f"{relative:.2g} relatively"
    if relative >= 10:
        return f"{relative:.3g} times"
    return f"{100 * relative:.2g} %" if relative < 0.995 else f"{100 * relative:.0f} %"


def _compared(comparison: RecordingComparison) -> str:
    """Return a phrase about the compared calls, such as "in all 3 calls that were compared"."""
    count, totals = len(comparison.pairs), [len(run.lines) for run in comparison.runs]
    is_partial = max(totals) > count
    text = f"in all {counted(count, 'call')} that were compared" if count > 1 else "in the one call that was compared"
    if is_partial:
        of = f"of {totals[0]}" if totals[0] == totals[1] else f"of {totals[0]} and {totals[1]}"
        text = f"only in the {counted(count, 'call')} {of} that {'were' if count > 1 else 'was'} compared"
    tensors = sum(len(pair.names) for pair in comparison.pairs)
    most = sum(max(len(pair.a.parameters), len(pair.b.parameters)) for pair in comparison.pairs)
    return f"{text}, with {tensors} of {most} tensors" if 0 < tensors < most else text


def allowed(comparison: RecordingComparison) -> str:
    return f", up to {comparison.max_ulp:g} ULP" if comparison.max_ulp else ""
