"""What a recorded run does to each parameter: its gradients, clips, weights and optimizer steps."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..recorder.clips import combined_norm
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedCall, RecordedRun
from ..recording.rounding import PRODUCT, ROUNDING
from ..tensors.arithmetic import Float64s
from ..tensors.samples import Sample
from . import by_hand
from .networks import ALL, PARALLEL, Network, find_loops, find_networks, find_owners
from .precision import divided, largest_unit, unscaled

Threshold = float | tuple[float, float] | None


class Clip(NamedTuple):
    """What one clip call does to one gradient."""

    line: RecordedCall
    name: str
    """The name of the gradient in the call."""

    group: frozenset[str]
    """The parameters that share the norm."""

    norm: float | None
    """The norm from which the function computes the coefficient."""

    coef: float | None

    @property
    def exact(self) -> Parameter:
        whole = self.line.parameters.get(self.name)
        norms = self.line.known_norms()
        return whole or Parameter(shape=(None,), norm=combined_norm(norms, self.line.order) if norms else math.nan)

    @property
    def scaled_threshold(self) -> Threshold:
        """The threshold that the script passes. That of `line` is without the loss scale."""
        return divided(self.line.threshold, 1 / (self.line.loss_scale or 1.0))  # type: ignore[no-any-return]

    def has_other_gradient(self, earlier: Clip) -> bool:
        """Return whether the call does not get the result of an earlier one, such as that of another micro-batch."""
        return earlier.coef is not None and not math.isclose(
            earlier.exact.norm * earlier.coef, self.exact.norm, rel_tol=PRODUCT
        )

    def applied(self, gradient: Float64s) -> Float64s | None:
        if self.line.rule == "value" and isinstance(self.line.threshold, tuple):
            return np.clip(gradient, *self.line.threshold)
        return None if self.coef is None else gradient * self.coef


def clips_of(line: RecordedCall, owners: Mapping[str, str], norms: Sequence[float | None]) -> dict[str, Clip]:
    """Return {parameter: what the call does to its gradient}. owners: {name of the gradient in the call: parameter}."""
    coefs, known = _by_name(line, line.coefs()), _by_name(line, norms)
    every = frozenset(owners.values())
    return {
        name: Clip(line, own, every if line.rule == "global" else frozenset([name]), known.get(own), coefs.get(own))
        for own, name in owners.items()
    }


@dataclass
class ParameterStep:
    """One step of the optimizer of one parameter."""

    number: int
    """Counts the steps of this parameter from 1."""

    step: OptimizerStep | None
    """None if no optimizer step was recorded."""

    clips: list[Clip] = field(default_factory=list)
    shape: tuple[int, ...] | None = None
    raw: Float64s | None = None
    """The sample of the gradient before all clips."""

    raw_norm: float | None = None
    norm_type: float = 2.0
    """The type of `raw_norm`."""

    gradient: Float64s | None = None
    """The sample of the gradient that the optimizer gets."""

    weight: Float64s | None = None
    """The sample of the weight before the step."""

    weight_norm: float | None = None
    update: Float64s | None = None

    @property
    def clipped(self) -> Float64s | None:
        """The sample of what the last clip returns, or None if it is unknown."""
        sample = self.clips[-1].exact.sample if self.clips else None
        return None if sample is None else self.clips[-1].applied(np.array(sample))


class Run:
    """All recorded facts, by parameter. All gradients, norms and thresholds are without a loss scale."""

    def __init__(self, recorded: RecordedRun) -> None:
        self.recorded, self.name = recorded, recorded.name
        self.lines = [unscaled(line) for line in recorded.lines if line.rule is not None and line.count != 0]
        self._calls = _calls_before(recorded)
        self.is_late = _is_late(self._calls, len(self.lines))
        self.networks = find_networks(recorded.optimizer_steps)
        self._position = {id(step): place for place, step in enumerate(recorded.optimizer_steps)}
        self.parameters: dict[str, list[ParameterStep]] = {}
        self._loops = find_loops(self.lines)
        self._owners = self._find_owners()
        for network in self.networks:
            self._add(network)
        if not self.networks:
            self._add_without_steps()
        else:
            self._add_untrained()
        if not self.lines:
            self._add_own_clips()
        for steps in self.parameters.values():
            if self.is_late:
                _undo_late_clips(steps)
            _add_updates(steps)

    def with_loss_scale(self, factor: float) -> Run:
        """Return the run as if the recording said that its clips get gradients times this loss scale."""
        lines = [line.model_copy(update={"loss_scale": factor}) for line in self.recorded.lines]
        return Run(self.recorded.model_copy(update={"lines": lines}))

    @property
    def has_clips(self) -> bool:
        return any(each.clips for steps in self.parameters.values() for each in steps)

    def _add_own_clips(self) -> None:
        """Without recorded clip calls, find out whether the script's own code clips."""
        for network in self.networks:
            names = [name for name in network.names.values() if name in self.parameters]
            columns = list(zip(*(self.parameters[name] for name in names), strict=False))
            changes = [_changes(dict(zip(names, column, strict=True))) for column in columns]
            calls = by_hand.identify(changes) if changes and all(changes) else None
            for column, call in zip(columns, calls or [], strict=bool(calls)):
                clips = clips_of(call, {name: name for name in call.parameters}, call.norms())
                for name, each in zip(names, column, strict=True):
                    each.clips = [clips[name]] if name in clips else []

    @functools.cached_property
    def frameworks(self) -> set[str]:
        return {line.framework for line in self.lines if line.framework}

    @functools.cached_property
    def sums(self) -> dict[str, tuple[float, float]]:
        return {
            name: each.sums for line in self.lines for name, each in line.parameters.items() if each.sums is not None
        }

    @functools.cached_property
    def gradient_unit(self) -> float:
        """The rounding error of the least precise gradients."""
        floor, every = functools.cache(self.noise_floor), self.parameters.values()
        kept = ([e for e in steps if e.raw_norm is None or e.raw_norm > floor(e.number)] for steps in every)
        return largest_unit([each.gradient if each.raw is None else each.raw for each in steps] for steps in kept)

    @functools.cached_property
    def weight_unit(self) -> float:
        return largest_unit([each.weight for each in steps] for steps in self.parameters.values())

    def first(self, name: str) -> ParameterStep:
        return self.parameters[name][0]

    def network_of(self, name: str) -> int | None:
        return next((place for place, each in enumerate(self.networks) if name in each.names.values()), None)

    def shape(self, name: str) -> tuple[int, ...] | None:
        return next((each.shape for each in self.parameters[name] if each.shape is not None), None)

    def weight_at_start(self, name: str) -> Sample | None:
        first = self.first(name)
        return None if first.weight is None or first.shape is None else Sample(first.shape, first.weight)

    def total_norm(self, number: int) -> float:
        """Return the total norm of the gradients before the clip, in the step `number` of each parameter."""
        norms = [norm or 0.0 for norm in self._norms(number)]
        return math.hypot(*norms) if all(map(math.isfinite, norms)) else math.inf

    def at(self, number: int) -> list[ParameterStep]:
        """Return the step `number` of each parameter that has so many."""
        return [steps[number - 1] for steps in self.parameters.values() if len(steps) >= number]

    def is_zero(self, number: int) -> bool:
        """Return whether all gradients before the clip are 0."""
        norms = self._norms(number)
        return bool(norms) and all(norm == 0 for norm in norms)

    def _norms(self, number: int) -> list[float | None]:
        return [each.raw_norm for each in self.at(number)]

    def noise_floor(self, number: int) -> float:
        """Gradients with smaller norms are only rounding."""
        total = self.total_norm(number)
        return ROUNDING * 2.0**-24 * total if math.isfinite(total) else 0.0

    # -- collecting

    def _find_owners(self) -> list[dict[str, str]]:
        """For each clip call, return {name of the gradient in the call: parameter}."""
        steps = [(network, self.steps_of(network)) for network in self.networks]
        owners = [find_owners(line, self._next_steps(steps, place)) for place, line in enumerate(self.lines)]
        for loop in () if self.networks else self._loops:
            if len(loop) > 1 and all([*owners[place]] == ["0"] for place in loop):  # over gradients without names
                owners[loop[0] : loop[-1] + 1] = [{"0": str(number)} for number in range(len(loop))]
        return owners

    def _next_steps(
        self, steps: Sequence[tuple[Network, Sequence[tuple[OptimizerStep, int]]]], place: int
    ) -> list[tuple[Network, OptimizerStep]]:
        """Return the next step of each network after a clip call, or the last one before it if the run clips late."""
        found = []
        for network, own in steps:
            near = [step for step, calls in own if (calls <= place) == self.is_late]
            chosen = near[-1:] if self.is_late else near[:1]
            found.append((network, chosen[0] if chosen else own[-1][0]))
        return sorted(found, key=lambda each: self._position[id(each[1])])

    def steps_of(self, network: Network) -> list[tuple[OptimizerStep, int]]:
        """Return each step with the number of clip calls before it."""
        of_network = {id(step) for step in network.steps}
        both = zip(self.recorded.optimizer_steps, self._calls, strict=True)
        return [(step, calls) for step, calls in both if id(step) in of_network]

    def _add(self, network: Network) -> None:
        start = 0
        has_all = any(ALL in owners for owners in self._owners)
        known = tuple(dict.fromkeys(name for owners in self._owners for name in owners.values()))
        names = (ALL,) if has_all else tuple(network.names.values()) or known
        steps = self.steps_of(network)
        for number, (step, end) in enumerate(steps, start=1):
            if self.is_late:
                start, end = end, steps[number][1] if number < len(steps) else len(self.lines)
            self._add_step(names, number, step, range(start, end), network.names)
            start = end

    def _add_without_steps(self) -> None:
        names = tuple(dict.fromkeys(name for owners in self._owners for name in owners.values()))
        for number, places in enumerate(self._loops, start=1):
            self._add_step(names, number, None, places)

    def _add_untrained(self) -> None:
        """Add the gradients that are clipped, although no optimizer trains their parameters."""
        trained = {name for network in self.networks for name in network.names.values()}
        names = {name: None for owners in self._owners for name in owners.values() if name not in trained}
        if not trained or ALL in names:
            return
        for place in range(len(self.lines)):
            own = [name for name in self._owners[place].values() if name in names]
            if own:
                self._add_step(own, 1 + max(len(self.parameters.get(name, ())) for name in own), None, [place])

    def _add_step(
        self,
        names: Sequence[str],
        number: int,
        step: OptimizerStep | None,
        places: Sequence[int],
        own_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        tensors = {own_names.get(name, name): each for name, each in (step.tensors if step else {}).items()}
        trained = {own_names.get(name, name) for name in (step.parameters if step else ())}
        found: dict[str, list[Clip]] = {name: [] for name in names}
        for place in places:
            line = self.lines[place]
            for name, clip in clips_of(line, self._owners[place], line.used_norms()).items():
                if name in found:
                    found[name].append(clip)
        for name, clips in found.items():
            each = ParameterStep(number, step, _of_last_iteration(clips))
            self._fill(each, tensors.get(name))
            if clips or name in tensors or name in trained or (name == ALL and step):
                self.parameters.setdefault(name, []).append(each)

    def _may_have_changed(self, step: OptimizerStep) -> bool:
        """Return whether the script's own code may change gradients between the backward pass and the step."""
        is_unknown = bool(step.optimizer) and (step.changed is None or step.backward_calls == 0) and not self.lines
        return is_unknown or bool(step.changed or step.hooks)

    def _fill(self, each: ParameterStep, at_step: Parameter | None) -> None:
        clips = [] if self.is_late and at_step else each.clips  # which may get the updates
        first = clips[0].exact if clips else at_step
        last = clips[-1].exact if clips else at_step
        if first is None or last is None:
            return
        if None not in first.shape:
            each.shape = tuple(length or 0 for length in first.shape)
        is_changed = each.step is not None and not clips and self._may_have_changed(each.step)
        if at_step and not clips and at_step.raw_sample is not None:
            each.raw, each.raw_norm = _array(at_step.raw_sample), at_step.raw_norm
        elif clips and clips[0].line.parameters and any(clip.has_other_gradient(clips[0]) for clip in clips[1:2]):
            pass  # the clips of micro-batches
        elif not is_changed:  # otherwise, the step gets what the script's own code made of the gradient
            # without parameters, calls that clip one gradient each are parts of a loop
            parts = [clip.exact.norm for clip in clips if not clip.line.parameters and clip.line.count == 1]
            norm = math.hypot(*parts) if len(parts) == len(clips) > 1 else first.norm
            each.raw, each.raw_norm = _array(first.sample), None if math.isnan(norm) else norm
            each.norm_type = clips[0].line.order if clips else 2.0
        weights = at_step if at_step and at_step.weight_sample else first
        each.weight = _array(weights.weight_sample)
        each.weight_norm = first.weight if weights.weight is None else weights.weight
        clipped = each.clips[-1].applied(np.array(last.sample)) if each.clips and last.sample is not None else None
        at_the_step = _array(at_step.sample) if at_step else None
        if at_the_step is not None and clipped is not None and _is_decayed(clipped, at_the_step, each.weight):
            each.gradient = clipped  # the weight decay between the clip and the step is part of the update
        elif at_the_step is not None:
            each.gradient = at_the_step
        else:
            each.gradient = each.raw if clipped is None else clipped
        if at_step and at_step.update_sample is not None:
            each.update = _array(at_step.update_sample)


def _changes(steps: Mapping[str, ParameterStep]) -> dict[str, by_hand.Change]:
    return {
        name: by_hand.Change(each.raw, each.raw_norm, each.gradient, each.shape)
        for name, each in steps.items()
        if each.raw is not None and each.raw_norm is not None and each.gradient is not None and each.shape is not None
    }


def _of_last_iteration(clips: list[Clip]) -> list[Clip]:
    """Leave out the clips of training iterations without a step, whose gradients were not finite."""
    are_finite = [all(map(math.isfinite, clip.line.known_norms())) for clip in clips]
    bad = [place for place, is_finite in enumerate(are_finite[:-1]) if not is_finite]
    return clips[bad[-1] + 1 :] if bad and are_finite[-1] else clips


def _is_decayed(clipped: Float64s, gradient: Float64s, weight: Float64s | None) -> bool:
    """Return whether the difference of two samples is a multiple of the weight."""
    if weight is None or not len(weight) == len(clipped) == len(gradient) or np.ptp(weight) == 0:
        return False
    added = gradient - clipped
    decay = float(added @ weight) / float(weight @ weight)
    return decay > 0 and bool(
        np.abs(added - decay * weight).max() <= PARALLEL * np.abs(added).max() < np.abs(clipped).max() / PARALLEL
    )


def _array(sample: Sequence[float] | None) -> Float64s | None:
    return None if sample is None else np.array(sample, np.float64)


def _calls_before(recorded: RecordedRun) -> list[int]:
    """For each optimizer step, count the clip calls before it that got a gradient."""
    counts = [0, *itertools.accumulate(line.rule is not None and line.count != 0 for line in recorded.lines)]
    return [counts[min(step.calls, len(recorded.lines))] for step in recorded.optimizer_steps]


def _is_late(calls: Sequence[int], total: int) -> bool:
    """Return whether the run clips after each optimizer step, instead of before it."""
    counts = list(dict.fromkeys(calls))  # several optimizers can step one after the other
    size = counts[1] if len(counts) > 1 else total
    return 0 < size * len(counts) <= total and all(count == place * size for place, count in enumerate(counts))


def _by_name(line: RecordedCall, values: Sequence[float | None]) -> Mapping[str, float | None]:
    if line.rule == "global" and len(values) == 1:
        return dict.fromkeys(line.parameters or [ALL], values[0])
    return dict(zip(line.parameters, values, strict=False)) if len(values) == len(line.parameters) else {}


def _undo_late_clips(steps: Sequence[ParameterStep]) -> None:
    """The step gets the unclipped gradient, and the clip sees the weight after the step."""
    weights = [each.weight for each in steps]
    for place, each in enumerate(steps):
        if not (each.step and each.step.tensors):
            each.gradient = each.raw
            each.weight, each.weight_norm = (weights[place - 1] if place else None), None


def _add_updates(steps: Sequence[ParameterStep]) -> None:
    """Only `verify` records updates, and leaves out those that are unknown, although it has the weights."""
    has_updates = any(step.update is not None for step in steps)
    for step, later in () if has_updates else itertools.pairwise(steps):
        if (
            step.update is None
            and step.weight is not None
            and later.weight is not None
            and len(step.weight) == len(later.weight)
        ):
            step.update = later.weight - step.weight
