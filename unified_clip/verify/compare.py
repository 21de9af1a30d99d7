"""Compare the clip calls, clipped gradients and updates of two training steps, and explain the differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..compare.losses import LoggedComparison, compare_logged
from ..compare.parameter_names import Names, oriented
from ..recipes.finding import Finding
from ..recipes.run import Clip, Run, clips_of
from ..recording.recorded_run import RecordedCall
from ..recording.rounding import GROWTH, ROUNDING, distance, single, ulps_at
from .explanation import FACTS, explain
from .launch.outputs import ScriptRun
from .named_recording import NormalizedRecording
from .normalize import as_run, find_networks, name_gradients, not_loaded_by, read
from .rejections import reject_changing_outputs, reject_unpaired, reject_without_clip
from .step_comparison import Number, Sensitivity, StepComparison, TensorComparison
from .step_pairing import Parameters, StepPairing, sorted_distances, without_noise


@dataclass(frozen=True)
class Verification:
    old: ScriptRun
    new: ScriptRun
    runs: tuple[Run, Run]
    rows: Sequence[StepComparison]
    findings: Sequence[Finding]
    logged: Sequence[LoggedComparison]
    unclipped: Sequence[ScriptRun]
    """The runs that yield unclipped gradients. The results of their clip calls are compared instead."""

    max_ulp: float
    calls: Sequence[Mapping[str, int]]
    """{function: number of clip calls} for each run."""

    not_gradients: Sequence[tuple[ScriptRun, str, int]] = ()
    """(run, function, number of calls) for clip calls on tensors that are not gradients."""

    @property
    def without_clip(self) -> list[int]:
        return [row.step for row in self.rows if not row.has_clip]

    @property
    def is_same(self) -> bool:
        has_facts_only = all(each.kind in FACTS for each in self.findings)
        return has_facts_only and not any(row.differing(self.max_ulp) for row in self.rows)


def compare_steps(
    old: ScriptRun,
    new: ScriptRun,
    *,
    weights: Parameters,
    steps: int,
    names: Names | None,
    max_ulp: float,
) -> Verification:
    for run in (old, new):
        reject_changing_outputs(run)
    recordings = read(old, steps), read(new, steps)
    pairs = oriented(names or {}, *((run.script, run.shapes.keys()) for run in (old, new)))
    pairing = StepPairing(*recordings, weights, pairs)
    reject_unpaired(old, new, weights, pairing.names, pairing.axes)
    for each in recordings:
        name_gradients(each)
    reject_without_clip(*recordings)
    rows = list(_rows(pairing, recordings, steps))
    labels = [f"{run.script.file.name}:{run.script.name}" for run in (old, new)]  # file names without directories
    labels = labels if labels[0] != labels[1] else [old.script.text, new.script.text]
    found = find_networks(recordings, pairing.names)
    networks = [[*each] for each in found], [[*each.values()] for each in found]
    left, right = map(as_run, recordings, networks, labels)
    if any(row.beyond_rounding(max(max_ulp, ROUNDING)) for row in rows):
        others = [not_loaded_by(*each) for each in zip(recordings, (left, right), strict=True)]
        if not all(others):  # otherwise, the scripts can begin with the same weights
            left, right = map(as_run, recordings, networks, labels, others)
    findings = explain(pairing, (left, right), rows, max_ulp)
    return Verification(
        old,
        new,
        (left, right),
        rows,
        findings,
        compare_logged(left.recorded, right.recorded),
        [each.run for each in recordings if each.unclipped],
        max_ulp,
        [Counter(line.call for line in each.lines) for each in recordings],
        not_gradients=[(each.run, *item) for each in recordings for item in each.not_gradients.items()],
    )


# -- the rows of the table


def _rows(
    pairing: StepPairing, recordings: tuple[NormalizedRecording, NormalizedRecording], steps: int
) -> Iterator[StepComparison]:
    sensitivity, noise, allowed = Sensitivity(), set[str](), float(ROUNDING)
    for step in range(1, steps + 1):
        clips = [_clips_of(each.at(step)) for each in recordings]
        noise = pairing.noise(step, noise)
        every = list(pairing.gradients(step))
        sensitivity.add(every)
        gradients = [pair for pair in every if pair.name not in noise]
        updates = list(without_noise(list(pairing.updates(step)), noise))
        distance = pairing.distance(gradients, _sizes(clips[0]))
        tensors = TensorComparison(
            sorted_distances(gradients),
            sorted_distances(updates),
            noise,
            is_rounding=distance <= allowed,
            update_is_rounding=pairing.yields_each_step and all(map(sensitivity.explains, updates)),
            allowed=allowed,
        )
        numbers = list(_numbers(pairing, clips[0], clips[1], noise))
        old, new = recordings
        yield StepComparison(step, old.at(step), new.at(step), numbers, tensors, (old.loss(step), new.loss(step)))
        allowed = max(ROUNDING, GROWTH * distance) if distance <= allowed else ROUNDING


Clips = Mapping[str, Sequence[Clip]]
"""{parameter: its clips in one step}"""


def _clips_of(lines: Sequence[RecordedCall]) -> Clips:
    found: dict[str, list[Clip]] = {}
    for line in lines:
        for name, clip in clips_of(line, {name: name for name in line.parameters}, line.norms()).items():
            found.setdefault(name, []).append(clip)
    return found


def _sizes(clips: Clips) -> dict[str, float]:
    """Return the total norm before the clip, multiplied by the coefficients of each gradient."""
    total = _total(clips)
    coefs = {name: [each.coef for each in own] for name, own in clips.items()}
    return {name: total * math.prod(each or 0.0 for each in own) for name, own in coefs.items() if None not in own}


def _numbers(pairing: StepPairing, old: Clips, new: Clips, noise: Collection[str]) -> Iterator[Number]:
    """Compare the norm and the coefficient of each parameter's clips. Clips by a common norm give one number."""
    done = set()
    scale = max(_total(old), _total(new))
    for name, other in pairing.names.items():
        for left, right in zip(old.get(name, ()), new.get(other, ()), strict=False):
            key = id(left.line), id(right.line), left.norm, left.coef, right.norm, right.coef
            if key in done or name in noise or left.line.order != right.line.order:
                continue
            done.add(key)
            is_float64 = left.line.dtype == right.line.dtype == "float64"
            norm = 0.0
            if left.norm is not None and right.norm is not None:
                yield (number := _number("norm", left.norm, right.norm, is_float64, scale))
                norm = number.ulps
            if left.coef is not None and right.coef is not None:
                number = _number("coefficient", left.coef, right.coef, is_float64)
                # a ULP of the coefficient can be half as large, compared with the coefficient, as one of the norm
                yield number._replace(ulps_at_its_size=max(0.0, number.ulps - 2 * norm))
            elif (left.coef is None) != (right.coef is None) and left.line.rule != "value":
                yield Number("coefficient", math.inf, math.inf, math.inf)


def _total(clips: Clips) -> float:
    """Return the total norm before all clips."""
    norms = [own[0].exact.norm for own in clips.values()]
    return math.hypot(*(norm for norm in norms if math.isfinite(norm)))


def _number(stage: str, old: float, new: float, is_float64: bool, scale: float = 0.0) -> Number:
    if not is_float64:
        old, new = single(old), single(new)
    ulps, relative = distance(old, new, is_float64=is_float64)
    return Number(stage, ulps, relative, ulps_at(scale, old, new, is_float64=is_float64))
