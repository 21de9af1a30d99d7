"""Compare the steps of two runs: how many, in which order, skipped, and with or without old gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..causes.cause import names_text
from .finding import Finding, in_order
from .gradients import compare_gradients
from .pairs import Pair
from .run import Run


def compare_steps(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Finding]:
    skipped = list(_skipped(a, b))
    yield from skipped or _more_steps(a, b, pairs)
    yield from _other_order(a, b, pairs)
    yield from _cleared(a, b, pairs)


def _cleared(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Frameworks other than PyTorch and Paddle compute new gradients in each backward pass."""
    found: list[tuple[int, bool]] = []
    for pair in pairs:
        both = zip(a.parameters[pair.old[0]], b.parameters[pair.new[0]], strict=False)
        for number, steps in enumerate(both, start=1):
            cleared = [
                None
                if each.step is None
                else True
                if each.step.backward_calls is None and not run.frameworks & {"torch", "paddle"}
                else each.step.cleared
                for run, each in zip((a, b), steps, strict=True)
            ]
            if number > 1 and None not in cleared and cleared[0] != cleared[1]:
                found.append((number, cleared[1] is True))
    if found:
        number, is_old = min(found)
        run = a if is_old else b
        sentence = (
            f"{run.name} does not clear the gradients of step {number - 1} before the backward pass of step {number}"
        )
        old, new = in_order("not cleared", "cleared", is_old)
        fix = f"In {run.name}, call optimizer.zero_grad() in every training step"
        yield Finding(number, "gradients are not cleared", "gradients before the step", old, new, sentence, fix)


def _skipped(a: Run, b: Run) -> Iterator[Finding]:
    """Find steps that a loss scaler skips in one run, because the gradients are not finite."""
    counts = [len(run.recorded.optimizer_steps) for run in (a, b)]
    if counts[0] == counts[1] or not all(counts):
        return
    fewer, more = (a, b) if counts[0] < counts[1] else (b, a)
    bad = [place for place, line in enumerate(fewer.lines) if not all(map(math.isfinite, line.known_norms()))]
    if bad:
        number = 1 + sum(calls <= bad[0] for network in fewer.networks for _, calls in fewer.steps_of(network))
        sentence = (
            f"{more.name} makes step {number} of the optimizer, and {fewer.name} skips it: its gradients are not "
            "finite, so a loss scaler skips the step"
        )
        old, new = in_order("skipped", "made", fewer is a)
        yield Finding(number, "skipped step", "step", old, new, sentence, "A lower initial loss scale avoids overflows")


def _more_steps(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Find optimizers that step several times as often as those of the other run."""
    ratios: dict[tuple[int, int], list[str]] = {}
    for pair in pairs:
        counts = len(a.parameters[pair.old[0]]), len(b.parameters[pair.new[0]])
        low, high = sorted(counts)
        if a.networks and b.networks and low > 1 and high >= 2 * low and high % low == 0:
            ratios.setdefault((counts[0] // low, counts[1] // low), []).append(pair.name)
    if len(ratios) == 1 and sum(map(len, ratios.values())) == len(pairs) and _are_equal(a, b, pairs, 2):
        return  # one run ends earlier
    for (old, new), names in ratios.items():
        whose = "" if len(names) == len(pairs) else f" of {names_text(names)}"
        sentence = f"the optimizer{whose} steps {new} times in {b.name} where it steps {old} times in {a.name}"
        fix = (
            "With gradient accumulation, step once, after the last micro-batch. Step each network as often in both runs"
        )
        yield Finding(1, "another number of steps", "number of steps", old, new, sentence, fix)


def _are_equal(a: Run, b: Run, pairs: Sequence[Pair], number: int) -> bool:
    """Return whether the gradients of a step are the same in both runs, as far as they are known."""
    found, distance = compare_gradients(a, b, pairs, number, 0.0)
    return distance is not None and not found


def _other_order(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Compare the order in which the networks step for the first time."""
    to_new = {old: new for pair in pairs for old, new in zip(pair.old, pair.new, strict=False)}
    orders = []
    for run, names in ((a, to_new), (b, {})):
        first = [{names.get(name, name) for name in network.names.values()} for network in run.networks]
        orders.append([each for each in first if each])
    known = [[each for each in order if each in orders[1 - side]] for side, order in enumerate(orders)]
    if len(known[0]) == len(known[1]) > 1 and known[0] != known[1]:
        texts = [names_text(sorted(order[0])) for order in known]
        sentence = f"{a.name} first steps the network of {texts[0]}, and {b.name} that of {texts[1]}"
        fix = "Train the networks in the same order, because the step of one changes the gradients of the next"
        yield Finding(1, "another order of networks", "order of the networks", texts[0], texts[1], sentence, fix)
