"""Find the differences between the paired calls of two runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .._kit.report_model import Real, ReportModel
from ..causes.cause import Cause, CauseKind
from .pairs.calls import CallPair, MissingCalls
from .recorded_run import RecordedCall, RecordedRun
from .rounding import GROWTH, ROUNDING, Distance, distance, greatest, same, single, ulps_at
from .rounding_noise import NoiseTracker, total_norm

Stage = Literal[
    "calls", "error", "rule", "norm type", "threshold", "weight", "gradient", "norms", "norm", "coefficient", "clipped",
    "steps", "gradients cleared", "backward passes", "clips", "learning rate", "optimizer", "loss",
]  # fmt: skip
"""What differs. For example, "calls" means the number of calls."""

NUMBERS: tuple[Stage, ...] = ("weight", "gradient", "norm", "coefficient")


@dataclass(frozen=True, slots=True)
class Divergence:
    step: int
    stage: Stage
    a: object
    b: object
    parameter: str | None = None
    """The name or position of the parameter in the first run, or the name of an optimizer's setting."""

    ulps: float | None = None
    relative: float | None = None
    """The relative distance of two numbers."""

    ulps_at_its_size: float | None = None
    """The difference, measured in ULP of the total norm. For a weight, measured in ULP of its largest norm
    so far. For a coefficient, the same as `ulps`."""

    is_noise: bool = False

    def exceeds(self, max_ulp: float) -> bool:
        return (self.ulps_at_its_size or 0.0) > max_ulp or (self.ulps or 0.0) > GROWTH * max_ulp


class StepDifference(NamedTuple):
    divergence: Divergence
    cause: Cause


class Agreement(ReportModel):
    """How closely two runs agree in one quantity, such as the norm, over all steps."""

    stage: str
    compared: int
    differs_at_step: int | None
    greatest_ulps: Real
    greatest_relative: Real
    greatest_at_step: int | None
    """The step of the largest difference in ULP, or null if the runs have equal numbers."""

    beyond_rounding_at_step: int | None
    """The first step at which a difference is larger than rounding, or null if there is no such step."""

    noise: list[str]
    """The parameters whose numbers differ only by rounding noise. All other fields ignore these parameters."""


@dataclass(frozen=True)
class DivergencePoint:
    a: RecordedRun
    b: RecordedRun
    pairs: Sequence[CallPair]
    index: int  # of the pair of calls, or `len(pairs)` for an unpaired call
    first: Divergence
    missing: MissingCalls | None = None
    """The calls that only one run makes, if `index` is `len(pairs)`."""

    def both_ways(self) -> Iterator[tuple[RecordedRun, RecordedRun]]:
        yield self.a, self.b
        yield self.b, self.a

    def gradients(self) -> list[tuple[str, float, float]]:
        """Return (name, norm in run a, norm in run b) for each gradient."""
        pair = self.pairs[self.index]
        norms = list(numbers(pair, "gradient"))
        if not norms and pair.a.rule == "each":
            norms = list(numbers(pair, "norm"))
        return [(name or "the gradient", a, b) for name, a, b in norms]

    def cause(self, kind: CauseKind, sentence: str, run: RecordedRun | None = None) -> Cause:
        """Begin the sentence with "RUN differs from OTHER"."""
        run, other = (self.a, self.b) if run is self.a else (self.b, self.a)
        return Cause(kind, f"{run.name} differs from {other.name}{'' if sentence[:3] == 'as ' else ':'} {sentence}")


def call_at(run: RecordedRun, index: int) -> RecordedCall | None:
    return run.lines[index] if 0 <= index < len(run.lines) else None


def divergences(pairs: Iterable[CallPair], max_ulp: float) -> Iterator[list[Divergence]]:
    """For each pair of calls, yield the differences, with causes before consequences."""
    for differences in _all_divergences(pairs, max_ulp):
        yield [each for each in differences if not (each.is_noise and max_ulp >= ROUNDING)]


def noise(pairs: Iterable[CallPair], max_ulp: float) -> list[str]:
    every = (each for differences in _all_divergences(pairs, max_ulp) for each in differences)
    return list(dict.fromkeys(str(each.parameter) for each in every if each.is_noise))


def _all_divergences(pairs: Iterable[CallPair], max_ulp: float) -> Iterator[list[Divergence]]:
    for pair, compared in compare_numbers(pairs):
        differences = list(_settings(pair))
        for stage in NUMBERS:
            differences += _besides_numbers(pair, stage)
            differences += [each for each in compared if each.stage == stage and each.exceeds(max_ulp)]
        yield differences


def compare_numbers(pairs: Iterable[CallPair]) -> Iterator[tuple[CallPair, list[Divergence]]]:
    weights: dict[tuple[int, str | None], float] = {}
    tracker = NoiseTracker()
    for pair in tracker.follow(pairs):
        for name, a, b in numbers(pair, "weight"):
            weights[tracker.key(name)] = max(weights.get(tracker.key(name), 0.0), a, b)
        total, is_float64 = max(map(total_norm, (pair.a, pair.b))), pair.is_float64
        compared = []
        for stage in NUMBERS:
            for name, a, b in numbers(pair, stage):
                scale = {"weight": weights.get(tracker.key(name), 0.0), "coefficient": 0.0}.get(stage, total)
                is_noise = tracker.is_noise(pair, stage, name, a, b)
                size = 0.0 if is_noise and stage == "weight" else ulps_at(scale, a, b, is_float64=is_float64)
                distances = distance(a, b, is_float64=is_float64)
                compared.append(Divergence(pair.a.step, stage, a, b, name, *distances, size, is_noise))
        yield pair, compared


def agreements(pairs: Iterable[CallPair], max_ulp: float) -> list[Agreement]:
    compared: dict[Stage, list[Divergence]] = {stage: [] for stage in NUMBERS}
    for _, of_pair in compare_numbers(pairs):
        for each in of_pair:
            compared[each.stage].append(each)
    of_stages = (_agreement(stage, differences, max_ulp) for stage, differences in compared.items())
    return [agreement for agreement in of_stages if agreement.compared]


def _agreement(stage: Stage, compared: Sequence[Divergence], max_ulp: float) -> Agreement:
    clear = [each for each in compared if not each.is_noise]
    most = greatest([Distance(each.ulps or 0.0, each.relative or 0.0) for each in clear])
    return Agreement(
        stage=stage,
        compared=len(clear),
        differs_at_step=next((each.step for each in clear if each.exceeds(max_ulp)), None),
        greatest_ulps=most.ulps,
        greatest_relative=most.relative,
        greatest_at_step=next((each.step for each in clear if most.ulps and each.ulps == most.ulps), None),
        beyond_rounding_at_step=next((each.step for each in clear if each.exceeds(ROUNDING)), None),
        noise=list(dict.fromkeys(str(each.parameter) for each in compared if each.is_noise and each.ulps)),
    )


def numbers(pair: CallPair, stage: Stage) -> Iterator[tuple[str | None, float, float]]:
    """Yield (parameter, number in call a, number in call b) for each number that both calls recorded.

    The parameter is a name from call a, "position N", or None for the total norm. The numbers are rounded to float32
    unless both calls are in float64.
    """
    for name, a, b in _numbers(pair, stage):
        if a is not None and b is not None:
            yield (name, a, b) if pair.is_float64 else (name, single(a), single(b))


def one_known_coefficient(pair: CallPair) -> Iterator[tuple[str | None, float | None, float | None]]:
    for name, a, b in _numbers(pair, "coefficient"):
        call = pair.a if a is None else pair.b
        if (a is None) != (b is None) and call.clipped:
            yield name, a, b


def _numbers(pair: CallPair, stage: Stage) -> Iterator[tuple[str | None, float | None, float | None]]:
    a, b = pair.a, pair.b
    if stage in ("weight", "gradient"):
        for name, other in pair.names.items() if a.order == b.order else ():
            if name in a.parameters and other in b.parameters:
                left, right = a.parameters[name], b.parameters[other]
                if stage == "gradient":
                    yield name, left.norm, right.norm
                elif left.weight is not None and right.weight is not None:
                    yield name, left.weight, right.weight
        return
    if a.rule != b.rule or not same(a.norm_type, b.norm_type):
        return
    of_a, of_b = ([*line.norms()] if stage == "norm" else line.coefs() for line in (a, b))
    if len(of_a) != len(of_b):
        return
    labels: list[str | None] = [None] if len(of_a) == 1 else [f"position {index}" for index in range(len(of_a))]
    if a.rule == "each" and len(a.parameters) == len(b.parameters) == len(pair.names) == len(of_a):
        labels = list(a.parameters)  # frameworks list parameters in different orders
        positions = {name: position for position, name in enumerate(b.parameters)}
        of_b = [of_b[positions[pair.names[name]]] for name in a.parameters]
    yield from zip(labels, of_a, of_b, strict=True)


def have_one_threshold(a: RecordedCall, b: RecordedCall) -> bool:
    # the caller can pass a threshold as a float32 tensor
    if a.dtype == b.dtype == "float64":
        return same(a.threshold, b.threshold)
    sides = [line.threshold if isinstance(line.threshold, tuple) else (line.threshold,) for line in (a, b)]
    return same(*(tuple(each if each is None else single(each) for each in side) for side in sides))


def _settings(pair: CallPair) -> Iterator[Divergence]:
    a, b = pair.a, pair.b
    if bool(a.error) != bool(b.error):
        yield Divergence(a.step, "error", a.error, b.error)
    if a.error or b.error:
        return
    if a.rule != b.rule:
        yield Divergence(a.step, "rule", a.rule, b.rule)
    if not same(a.norm_type, b.norm_type):
        yield Divergence(a.step, "norm type", a.norm_type, b.norm_type)
    if None not in (a.threshold, b.threshold) and not have_one_threshold(a, b):
        yield Divergence(a.step, "threshold", a.threshold, b.threshold)


def _besides_numbers(pair: CallPair, stage: Stage) -> Iterator[Divergence]:
    a, b = pair.a, pair.b
    only_a = tuple(sorted(set(a.parameters) - set(pair.names)))
    only_b = tuple(sorted(set(b.parameters) - set(pair.names.values())))
    if stage == "norm" and a.parameters and b.parameters and (only_a or only_b):
        yield Divergence(a.step, "gradient", only_a, only_b)
    if stage == "norm" and a.rule == b.rule and len(a.norms()) != len(b.norms()):
        yield Divergence(a.step, "norms", len(a.norms()), len(b.norms()))
    if stage == "coefficient":
        yield from (Divergence(a.step, stage, of_a, of_b, name) for name, of_a, of_b in one_known_coefficient(pair))
    if stage == "coefficient" and a.rule == b.rule and have_one_threshold(a, b):
        above, changed = ([check(line) for line in (a, b)] for check in (_is_above, _is_changed))
        if None not in (*above, *changed) and above[0] == above[1] and changed[0] != changed[1]:
            yield Divergence(a.step, "clipped", changed[0], changed[1])


def _is_above(line: RecordedCall) -> bool | None:
    norms = line.norms()
    if not isinstance(line.threshold, float) or not norms or any(map(math.isnan, (line.threshold, *norms))):
        return None
    greatest = max(norms)
    return None if distance(single(greatest), single(line.threshold)).ulps <= ROUNDING else greatest > line.threshold


def _is_changed(line: RecordedCall) -> bool | None:
    coefs = line.known_coefs()
    if not coefs or any(map(math.isnan, coefs)):
        return None
    least = min(coefs)
    return False if least == 1 else None if distance(single(least), 1.0).ulps <= ROUNDING else True
