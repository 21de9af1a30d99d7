"""Compare the steps of two runs: how many, in which order, skipped, and with or without old gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..causes.cause import names_text
from .finding import Finding, in_order
from .gradients import compare_gradients
from .pairs import PairedRuns


def compare_steps(runs: PairedRuns) -> Iterator[Finding]:
    skipped = list(_skipped(runs))
    yield from skipped or _more_steps(runs)
    yield from _other_order(runs)
    yield from _cleared(runs)


def _cleared(runs: PairedRuns) -> Iterator[Finding]:
    """Frameworks other than PyTorch and Paddle compute new gradients in each backward pass."""
    found: list[tuple[int, bool]] = []
    for each in runs.every():
        cleared = [
            None
            if step.step is None
            else True
            if step.step.backward_calls is None and not run.frameworks & {"torch", "paddle"}
            else step.step.cleared
            for run, step in zip(runs.sides, each.sides, strict=True)
        ]
        if each.number > 1 and None not in cleared and cleared[0] != cleared[1]:
            found.append((each.number, cleared[1] is True))
    if found:
        number, is_old = min(found)
        name = runs.sides[0 if is_old else 1].name
        sentence = f"{name} does not clear the gradients of step {number - 1} before the backward pass of step {number}"
        values = in_order("not cleared", "cleared", is_old)
        fix = f"In {name}, call optimizer.zero_grad() in every training step"
        yield Finding(number, "gradients are not cleared", "gradients before the step", sentence, fix, *values)


def _skipped(runs: PairedRuns) -> Iterator[Finding]:
    """Find steps that a loss scaler skips in one run, because the gradients are not finite."""
    fewer, more = sorted(runs.sides, key=lambda run: len(run.recorded.optimizer_steps))
    if not 0 < len(fewer.recorded.optimizer_steps) < len(more.recorded.optimizer_steps):
        return
    bad = [place for place, line in enumerate(fewer.lines) if not all(map(math.isfinite, line.known_norms()))]
    if bad:
        number = 1 + sum(calls <= bad[0] for network in fewer.networks for _, calls in fewer.steps_of(network))
        sentence = (
            f"{more.name} makes step {number} of the optimizer, and {fewer.name} skips it: its gradients are not "
            "finite, so a loss scaler skips the step"
        )
        values = in_order("skipped", "made", fewer is runs.a)
        fix = "A lower initial loss scale avoids overflows"
        yield Finding(number, "skipped step", "step", sentence, fix, *values)


def _more_steps(runs: PairedRuns) -> Iterator[Finding]:
    """Find optimizers that step several times as often as those of the other run."""
    a, b = runs.sides
    ratios: dict[tuple[int, int], list[str]] = {}
    for pair in runs.pairs:
        counts = len(a.parameters[pair.old[0]]), len(b.parameters[pair.new[0]])
        low, high = sorted(counts)
        if a.networks and b.networks and low > 1 and high >= 2 * low and high % low == 0:
            ratios.setdefault((counts[0] // low, counts[1] // low), []).append(pair.name)
    if len(ratios) == 1 and sum(map(len, ratios.values())) == len(runs.pairs):
        found, distance = compare_gradients(runs, 2, 0.0)
        if distance is not None and not found:
            return  # the gradients of the next step are the same, so one run ends earlier
    for (old, new), names in ratios.items():
        whose = "" if len(names) == len(runs.pairs) else f" of {names_text(names)}"
        sentence = f"the optimizer{whose} steps {new} times in {b.name} where it steps {old} times in {a.name}"
        fix = (
            "With gradient accumulation, step once, after the last micro-batch. Step each network as often in both runs"
        )
        yield Finding(1, "another number of steps", "number of steps", sentence, fix, old, new)


def _other_order(runs: PairedRuns) -> Iterator[Finding]:
    """Compare the order in which the networks step for the first time."""
    a, b = runs.sides
    to_new = {old: new for pair in runs.pairs for old, new in zip(pair.old, pair.new, strict=False)}
    orders = []
    for run, names in ((a, to_new), (b, {})):
        first = [{names.get(name, name) for name in network.names.values()} for network in run.networks]
        orders.append([each for each in first if each])
    known = [[each for each in order if each in orders[1 - side]] for side, order in enumerate(orders)]
    if len(known[0]) == len(known[1]) > 1 and known[0] != known[1]:
        texts = [names_text(sorted(order[0])) for order in known]
        sentence = f"{a.name} first steps the network of {texts[0]}, and {b.name} that of {texts[1]}"
        fix = "Train the networks in the same order, because the step of one changes the gradients of the next"
        yield Finding(1, "another order of networks", "order of the networks", sentence, fix, texts[0], texts[1])
