"""Compare the recipes of two runs: what they begin with, how they clip, and how their optimizers update."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..causes.cause import names_text
from ..recording.rounding import GROWTH
from ..tensors.arithmetic import Float64s
from .clips import SCALE, compare_clips
from .distances import UNIT, common_elements, without_noise
from .finding import Finding, value_text
from .gradients import clip_of_updates, compare_gradients
from .optimizers.compare import SMALL, ComparedOptimizers, compare_optimizers
from .optimizers.settings import RATES
from .pairs import Pair, PairedRuns, pair_parameters
from .run import ParameterStep, Run
from .steps import compare_steps
from .weights import compare_weights

UPDATES = "updates"
"""The field of a difference of the updates that no rule explains."""

SMALL_DISTANCE = 1e-3
"""Other data changes the gradients by a larger part of their total norm."""

SAME_UPDATE = 0.02
"""Updates of one rule differ by a smaller fraction, as long as the gradients differ by rounding only."""

MOST_ROUNDING = 0.01
"""Larger relative differences are not tolerated as rounding."""

BEFORE = ("gradients before the step", "step", "number of steps", "order of the networks", "trained parameters")
"""A difference in these fields changes the gradients of its own step."""

UNKNOWN_CHANGE = ("other data or loss", "other gradients")


class Comparison(NamedTuple):
    pairs: Sequence[Pair]
    findings: Sequence[Finding]
    distances: Mapping[int, float] = {}
    """{step: the largest difference of the gradients before the clip, in ULP of their total norm}."""

    unpaired: tuple[Sequence[str], Sequence[str]] = ((), ())
    """The parameters that only one run has."""

    noise: Sequence[str] = ()
    """The parameters whose gradients are only rounding in both runs."""

    unexplained: Sequence[str] = ()
    """The runs whose updates no known rule explains."""

    tolerated: Sequence[Finding] = ()
    """Differences whose effect is small."""

    @property
    def steps(self) -> int:
        """The number of steps whose gradients were compared."""
        return len(self.distances)


def compare_recipes(a: Run, b: Run, names: Mapping[str, str], max_ulp: float | None = None) -> Comparison:
    """names: {parameter of `a`: parameter of `b`}, for parameters whose names differ.

    max_ulp: Replaces the limit for rounding.
    """
    found = _compare(a, b, names, max_ulp)
    for threshold, scale in itertools.product(found.findings, found.findings):
        if threshold.kind == "another threshold" and scale.field == SCALE and _is_one_factor(threshold, scale):
            # a script that multiplies its loss and its threshold by one factor clips as the other run does
            factor = threshold.new / threshold.old  # type: ignore[operator]
            runs = (a, b.with_loss_scale(factor)) if factor > 1 else (a.with_loss_scale(1 / factor), b)
            return _compare(*runs, names, max_ulp)
    return found


def _compare(a: Run, b: Run, names: Mapping[str, str], max_ulp: float | None) -> Comparison:
    runs = PairedRuns(a, b, pair_parameters(a, b, names))
    findings = list(compare_weights(runs))
    has_weights = bool(findings)
    if of_updates := clip_of_updates(runs):
        return Comparison(runs.pairs, [*findings, of_updates])
    optimizers = compare_optimizers(runs)
    findings += [*compare_clips(runs), *compare_steps(runs), *optimizers.findings]
    gradients = _GradientComparison(runs, findings, optimizers, max_ulp)
    findings += [] if has_weights else gradients.compare()
    are_alike = all(each.effect < SMALL for each in findings)
    findings = _of_other_epochs(runs, _without_consequences(findings))
    findings += _too_far(gradients.distances) if are_alike and max_ulp is None else []
    paired = [{name for pair in runs.pairs for name in pair.sides[side]} for side in (0, 1)]
    only_a, only_b = ([name for name in run.parameters if name not in paired[side]] for side, run in enumerate((a, b)))
    visible = {each.pair for each in without_noise(runs, 1)}
    return Comparison(
        runs.pairs,
        _in_order(findings),
        gradients.distances,
        (only_a, only_b),
        [pair.name for pair in runs.pairs if gradients.distances and pair not in visible],
        optimizers.unexplained,
        [each for each in optimizers.tolerated if each not in findings],
    )


class _GradientComparison:
    """Compares the gradients step by step until they differ. After the first finding, the runs train apart, unless its
    effect is small."""

    def __init__(
        self, runs: PairedRuns, findings: Sequence[Finding], optimizers: ComparedOptimizers, max_ulp: float | None
    ) -> None:
        self._runs, self._optimizers, self._max_ulp = runs, optimizers, max_ulp
        self._findings = [each for each in findings if each.effect >= SMALL]
        small = [*optimizers.tolerated, *(each for each in findings if each.effect < SMALL)]
        # a small difference of the updates can change the next gradients by as much
        self._tolerated = max((each.effect / UNIT / GROWTH for each in small), default=0.0)
        self._are_several = max(len(run.networks) for run in runs.sides) > 1
        self.distances: dict[int, float] = {}
        """{step: the largest difference, in ULP of the total norm}."""

    def compare(self) -> list[Finding]:
        # the step of one network changes the gradients of the next
        is_before = [each.field in BEFORE or (self._are_several and each.step > 1) for each in self._findings]
        ends = [each.step - early for each, early in zip(self._findings, is_before, strict=True)]
        for number in range(1, min([*ends, self._runs.count]) + 1):
            before = max([self._tolerated if number > 1 else 0.0, *self.distances.values()])
            found = list(self._other_updates(self._runs, number - 1))
            if not found:
                found, distance = compare_gradients(self._runs, number, before, self._max_ulp)
                self.distances |= {} if distance is None else {number: distance}
                if found and distance is not None:
                    found = self._after_other_updates(number, distance * UNIT, found)
            if self._are_several:
                found = self._of_several_networks(number, before, found)
            if found:
                return found
        return []

    def _of_several_networks(self, number: int, before: float, found: list[Finding]) -> list[Finding]:
        """A difference of one network's step also changes the gradients of the next network in the same step."""
        a, b = self._runs.sides
        of_first = [
            pair for pair in self._runs.pairs if not a.network_of(pair.old[0]) and not b.network_of(pair.new[0])
        ]
        first = PairedRuns(a, b, of_first)
        if any(each.step == number for each in self._findings):
            found = [each for each in found if each.kind not in UNKNOWN_CHANGE]
            return found or compare_gradients(first, number, before, self._max_ulp)[0]
        if found and not self._findings and not compare_gradients(first, number, before, self._max_ulp)[0]:
            return [*self._other_updates(first, number)] or found
        return found

    def _after_other_updates(self, number: int, distance: float, found: list[Finding]) -> list[Finding]:
        """Gradients that differ little after the first step follow from updates that differ little, not from other
        data.

        distance: That of the gradients, as a fraction of their total norm.
        """
        are_little = 0 < distance < SMALL_DISTANCE and all(each.kind == "other data or loss" for each in found)
        if number == 1 or not are_little or self._runs.weight_unit > UNIT:
            return found
        names, part = _apart(self._runs, number - 1, lambda each: each.update, distance / GROWTH)
        if not names:
            return found
        return list(self._optimizers.tolerated) or [_updates_finding(self._runs, names, part, number - 1)]

    def _other_updates(self, runs: PairedRuns, number: int) -> Iterator[Finding]:
        """Compare what a step gets and updates, which also shows what no rule explains."""
        if names := _apart(runs, number, lambda each: each.gradient)[0]:
            sentence = (
                f"the gradients before the clip agree in step {number}, but not those of {names_text(names)} that the "
                "optimizers get. An unknown change of the gradients between the backward pass and the step"
            )
            fix = "Compare the code between the backward pass and the optimizer's step"
            yield Finding(number, "unexplained", "gradients of the step", sentence, fix)
        elif runs.weight_unit <= UNIT:  # otherwise, rounding of the weights can be as large as the updates
            names, part = _apart(runs, number, lambda each: each.update)
            if names:
                yield _updates_finding(runs, names, part, number)


def _updates_finding(runs: PairedRuns, names: Sequence[str], part: float, number: int) -> Finding:
    sentence = (
        f"the gradients and clips agree up to step {number}, and then the updates of {names_text(names)} differ by "
        f"{100 * part:.2g} %. No known rule explains them"
    )
    eps = [{step.settings.get("eps") for step in run.recorded.optimizer_steps} for run in runs.sides]
    if len(eps[0]) == len(eps[1]) == 1 and eps[0] != eps[1] and None not in eps[0] | eps[1]:
        values = [value_text(each.pop()) for each in eps]
        sentence += f". The recorded eps is {values[0]} in {runs.a.name}, and {values[1]} in {runs.b.name}"
    fix = (
        "Compare the optimizers, their states and settings, where each adds its eps "
        "(docs/porting/optimizers_and_layers.md), and code that changes the weights"
    )
    return Finding(number, "another optimizer", UPDATES, sentence, fix)


def _apart(
    runs: PairedRuns, number: int, of: Callable[[ParameterStep], Float64s | None], limit: float = SAME_UPDATE
) -> tuple[list[str], float]:
    """Return the parameters whose samples differ, and their distance, if it is larger."""
    squares, total, names = 0.0, 0.0, []
    for each in without_noise(runs, number) if number else ():
        both = common_elements(runs, each, of)
        if both is not None:
            difference, own = float(((both[0] - both[1]) ** 2).sum()), float((both[0] ** 2).sum())
            squares, total = squares + difference, total + own
            names += [each.pair.name] if difference > limit**2 * own else []
    is_apart = squares > limit**2 * total
    return (names, math.sqrt(squares / total) if total else math.inf) if is_apart else ([], 0.0)


def _without_consequences(findings: Sequence[Finding]) -> list[Finding]:
    kinds = {each.kind for each in findings}
    if "clipping before unscaling" in kinds:  # the code that unscales is what changes the clipped gradients
        findings = [each for each in findings if each.kind != "the clip does not reach the step"]
    if any(each.field == "number of steps" for each in findings):
        findings = [each for each in findings if each.field not in ("clips of a step", "gradients before the step")]
    return list(findings)


def _of_other_epochs(runs: PairedRuns, findings: Sequence[Finding]) -> list[Finding]:
    """After an epoch of another length, the data and the learning rates differ from the same step on.

    Only recorded rates show that none differs at an earlier step, which would change the gradients.
    """
    are_recorded = all("lr" in step.settings for run in runs.sides for step in run.recorded.optimizer_steps)
    data = next((each for each in findings if each.kind in UNKNOWN_CHANGE and each.step > 1), None)
    rates = [each for each in findings if data and each.step == data.step and each.field in RATES]
    if data is None or not rates or not are_recorded:
        return list(findings)
    sentence = (
        f"{data.sentence}. From the same step on, {runs.b.name} has the learning rate {value_text(rates[0].new)} "
        f"instead of {value_text(rates[0].old)}. An epoch of another length is a possible cause"
    )
    fix = "Compare the number of batches in an epoch, such as drop_last, then the data"
    other = data._replace(sentence=sentence, fix=fix)
    return [other if each is data else each for each in findings if each not in rates]


def _is_one_factor(threshold: Finding, scale: Finding) -> bool:
    values = [threshold.old, threshold.new, float(str(scale.old)), float(str(scale.new))]
    numbers = [each for each in values if isinstance(each, float) and each]
    return len(numbers) == 4 and math.isclose(numbers[1] / numbers[0], numbers[3] / numbers[2], rel_tol=1e-4)


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return each finding once. A line that mends several of them stands below the first."""
    ordered: list[Finding] = []
    for each in sorted(dict.fromkeys(findings), key=lambda each: each.step):
        is_said = any(each.fix == earlier.fix for earlier in ordered)
        ordered.append(each._replace(fix="") if is_said else each)
    return ordered


def _too_far(distances: Mapping[int, float]) -> Iterator[Finding]:
    far = next((step for step, each in distances.items() if each * UNIT > MOST_ROUNDING), None)
    if far is not None:
        sentence = (
            f"the differences begin as rounding, and have grown to more than {100 * MOST_ROUNDING:g} %. From here on, "
            "rounding and a small mistake look the same"
        )
        fix = "Compare fewer steps, or compare in float64"
        yield Finding(far, "rounding that has grown", "gradients before the clip", sentence, fix)
