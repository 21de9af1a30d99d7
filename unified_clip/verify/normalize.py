"""Read the recordings of two training steps, and name their gradients like the yielded parameters."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..recipes.optimizers.updates import Step
from ..recipes.run import Run
from ..recorder.clips import NativeCall
from ..recording import runs
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedCall
from ..recording.results import line_of_tensors
from ..tensors.arithmetic import Float64s
from ..tensors.samples import Sample, order_of, sample_of
from ..tensors.types import Dense
from .initial_weights import not_loaded
from .launch.outputs import ScriptRun
from .launch.worker import RECORDING
from .layouts import closest_axes
from .name_gradients import NameMatch, NameMatcher, Parameters, clipped_gradients, stored_gradients
from .named_recording import NormalizedRecording
from .step_pairing import StepPairing

BY_HAND = "by hand"
"""Replaces the name of the clip function if a training step clips by its own code."""

SAME_THRESHOLD = 1e-5


def normalize(run: ScriptRun, weights: Parameters, steps: int) -> NormalizedRecording:
    """Give each gradient the name of its parameter in the output of the training step.

    Calls on tensors that are not gradients are removed. If a run has no clip calls, they are computed from the
    gradients that it yields before and after the clip.
    """
    recording = runs.read(run.directory / RECORDING)
    lines = list(_distribute_over_steps(recording.lines, run, steps)) or list(_lines_of_own_clipping(run, steps))
    result = NormalizedRecording(run, recording)
    result.optimizer_steps = list(_distribute_over_steps(recording.optimizer_steps, run, steps))
    result.logged = recording.logged
    if not run.yields:
        result.logged = tuple(each.model_copy(update={"step": steps}) for each in recording.logged)
    matchers = {step: NameMatcher(run, weights, step, steps) for step in dict.fromkeys(line.step for line in lines)}
    same_calls = _same_calls(lines)
    for step, group in itertools.groupby(lines, key=lambda line: line.step):
        for line in group:
            others = [(matchers[each.step].weights, each) for each in same_calls[id(line)] if each is not line]
            match = matchers[step].match(line, run.directory, others)
            if match is None:
                result.not_gradients[line.call] += 1
                continue
            result.before[step] |= _renamed(stored_gradients(line, run.directory), match)
            result.clipped[step] |= _renamed(clipped_gradients(line, run.directory), match)
            result.unclipped |= {step} if match.yields_unclipped else set()
            result.lines.append(line.model_copy(update={"parameters": _renamed(line.parameters, match)}))
    return result


def as_run(
    result: NormalizedRecording, pairing: StepPairing, side: int, steps: int, name: str, not_loaded: Sequence[str]
) -> Run:
    """Return the run that the engine compares: the clip calls, and for each step the tensors that the script yields.

    not_loaded: The parameters that do not begin with the values of --weights.
    """
    lines = [_in_layout_of_output(line, result, pairing, side) for line in result.lines]
    # the clips of one step tell the networks apart, and not in which order they are trained
    place_of = {name: place for place, names in enumerate(pairing.names.items()) for name in names[side : side + 1]}
    groups = sorted(_networks(lines), key=lambda group: min(place_of.get(name, len(place_of)) for name in group))
    grouped = {each for group in groups for each in group}
    found = []
    for step in range(1, steps + 1):
        recorded = [each for each in result.optimizer_steps if each.step == step]
        earlier = sum(line.step < step for line in result.recorded.lines)
        is_late = bool(recorded) and all(each.calls <= earlier for each in recorded)
        tensors = _tensors(result, pairing, side, step, not_loaded, is_late=is_late)
        calls = sum(line.step < step if is_late else line.step <= step for line in lines)
        if is_late:  # the script yields what its late clip returns, and the optimizer got what the clip gets
            for name, each in (item for line in lines if line.step == step for item in line.parameters.items()):
                if name in tensors and each.sample is not None and each.shape == tensors[name].shape:
                    tensors[name] = tensors[name].model_copy(update={"norm": each.norm, "sample": each.sample})
        base = recorded[0] if len(recorded) == 1 else OptimizerStep(step=step, optimizer="", settings={})
        if len(recorded) > 1 and (settings := _common_settings(recorded)):
            base = base.model_copy(update={"settings": settings, "optimizer": recorded[0].optimizer})
        rest = [each for each in tensors if each not in grouped]
        for place, group in enumerate(groups or [()]):
            own = {each: tensors[each] for each in [*group, *(() if place else rest)] if each in tensors}
            changes = {"step": step, "parameters": tuple(own), "tensors": own, "rates": {}, "place": None}
            found.append(base.model_copy(update={**changes, "calls": calls, "losses": ()}))
    update = {"lines": lines, "optimizer_steps": tuple(found), "name": name, "logged": result.logged}
    return Run(result.recorded.model_copy(update=update))


def not_loaded_by(result: NormalizedRecording, pairing: StepPairing, side: int, steps: int) -> list[str]:
    """Return the parameters that do not begin with the values of --weights, as the recording or the updates show."""
    early = min((each.calls for each in result.optimizer_steps), default=0)  # the clips before the first update
    if early and not result.not_gradients:
        before, _ = pairing.weights_of(side, 1)
        recorded = {name: each for line in result.lines[:early] for name, each in line.parameters.items()}
        if changed := [name for name in recorded if name in before and _is_other(recorded[name], before[name])]:
            return changed
    found: list[Step] = []
    for step in range(1, steps + 1):
        gradients = pairing.gradients_of(side, step, result.unclipped, result.clipped, result.before)
        before, after = pairing.weights_of(side, step)
        names = [name for name, each in gradients.items() if name in before and before[name].shape == each.shape]
        if found and [*found[0].gradients] != names:
            return []
        updates = {name: after[name] - before[name] for name in names}
        sampled = [{name: sample_of(each[name]).elements for name in names} for each in (gradients, before, updates)]
        found.append(Step(*sampled))
    return not_loaded(found)


def _is_other(recorded: Parameter, weight: Float64s) -> bool:
    if recorded.weight_sample is None or recorded.shape != weight.shape:
        return False
    return order_of(Sample(weight.shape, np.array(recorded.weight_sample)), sample_of(weight)) == "other"


def _in_layout_of_output(
    line: RecordedCall, result: NormalizedRecording, pairing: StepPairing, side: int
) -> RecordedCall:
    """A script can yield the transpose of what it clips."""
    gradients = pairing.gradients_of(side, line.step, result.unclipped, result.clipped, result.before)
    changed = {}
    for name, each in line.parameters.items():
        target, stored = gradients.get(name), result.before.get(line.step, {}).get(name)
        if target is None or (stored is None and each.shape == target.shape):
            continue
        axes = closest_axes(_direction(target), _direction(stored.values())) if stored else None
        if axes == tuple(range(target.ndim)):
            continue
        sample = None if stored is None or axes is None else _sample(stored.values().transpose(axes))
        shape = each.shape if axes is None else target.shape
        changed[name] = each.model_copy(update={"shape": shape, "sample": sample, "weight_sample": None})
    return line.model_copy(update={"parameters": {**line.parameters, **changed}}) if changed else line


def _direction(gradient: Float64s) -> Float64s:
    """A clip changes the size of a gradient, and keeps its direction."""
    norm = _norm(gradient)
    return gradient / norm if norm and math.isfinite(norm) else gradient


def _networks(lines: Sequence[RecordedCall]) -> list[tuple[str, ...]]:
    """Return the parameters of each clip call, if the calls clip several parameters each, and none in common."""
    groups = list(dict.fromkeys(tuple(line.parameters) for line in lines if len(line.parameters) > 1))
    names = [name for group in groups for name in group]
    are_separate = len(names) == len(set(names)) and all(set(line.parameters) <= {*names} for line in lines)
    return groups if are_separate else []


def _common_settings(steps: Sequence[OptimizerStep]) -> dict[str, Any]:
    if not steps or len({each.optimizer for each in steps}) > 1:
        return {}
    names = [name for name in steps[0].settings if all(name in each.settings for each in steps)]
    return {name: steps[0].settings[name] for name in names if len({str(each.settings[name]) for each in steps}) == 1}


def _tensors(
    result: NormalizedRecording,
    pairing: StepPairing,
    side: int,
    step: int,
    not_loaded: Sequence[str],
    *,
    is_late: bool,
) -> dict[str, Parameter]:
    gradients = pairing.gradients_of(side, step, result.unclipped, result.clipped, result.before)
    if is_late and step in result.before:  # the step gets what the clip gets later
        gradients = {name: dense.values() for name, dense in result.before[step].items()}
    before, after = pairing.weights_of(side, step)
    found = {}
    for name, gradient in gradients.items():
        fields: dict[str, Any] = {"shape": gradient.shape, "norm": _norm(gradient), "sample": _sample(gradient)}
        weight, later = before.get(name), after.get(name)
        if step == 1 and name in not_loaded:  # the weight was about the one after the step
            weight, later = later, None
        if weight is not None and weight.shape == gradient.shape:
            fields |= {"weight": _norm(weight), "weight_sample": _sample(weight)}
            if later is not None and later.shape == gradient.shape:
                fields["update_sample"] = _sample(later - weight)
        found[name] = Parameter(**fields)
    return found


def _norm(array: Float64s) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(array.reshape(-1)))
    return norm if not math.isnan(norm) else math.nan


def _sample(array: Float64s) -> tuple[float, ...]:
    return tuple(sample_of(array).elements.tolist())


def _same_calls(lines: Sequence[RecordedCall]) -> dict[int, list[RecordedCall]]:
    """Group the calls by function, names, shapes, and position in the step. Return {id of a call: its group}."""
    groups: dict[tuple[Any, ...], list[RecordedCall]] = defaultdict(list)
    places: Counter[tuple[Any, ...]] = Counter()
    for line in lines:
        call = line.call, tuple((name, each.shape) for name, each in line.parameters.items())
        place = (line.step, *call)
        groups[(*call, places[place])].append(line)
        places[place] += 1
    return {id(line): group for group in groups.values() for line in group}


Line = TypeVar("Line", RecordedCall, OptimizerStep)


def _distribute_over_steps(lines: Sequence[Line], run: ScriptRun, steps: int) -> Iterator[Line]:
    """If the function returns only after the last step, divide its recorded calls equally among the steps."""
    if run.yields or len(lines) % steps:
        yield from lines
        return
    for index, line in enumerate(lines):
        yield line.model_copy(update={"step": index // (len(lines) // steps) + 1})


def _lines_of_own_clipping(run: ScriptRun, steps: int) -> Iterator[RecordedCall]:
    """Yield a clip call for each step of a run that clips by its own code.

    If every step multiplies all its gradients by one coefficient, the calls clip by the total norm. Otherwise, the
    calls clip per tensor. The threshold is the one that explains all coefficients.
    """
    observed: list[tuple[int, tuple[list[str], list[Dense], list[Dense]]]] = []
    for step, output in enumerate(run.outputs, start=1 if run.yields else steps):
        before, after = output.unclipped or {}, output.gradients or {}
        if names := [name for name in before if name in after]:
            observed.append((step, (names, [before[name] for name in names], [after[name] for name in names])))
    calls = [NativeCall(BY_HAND, "", rule, None, 2.0, None) for rule in ("global", "each")]
    together, per_tensor = (
        [RecordedCall(step=step, **line_of_tensors(call, *rest)) for step, rest in observed] for call in calls
    )
    lines = together if all(line.known_coefs() for line in together) else per_tensor
    threshold = _threshold(lines)
    for (_, (names, tensors, _)), line in zip(observed, lines, strict=True):
        samples = {name: _sample(each.values()) for name, each in zip(names, tensors, strict=True)}
        parameters = {name: each.model_copy(update={"sample": samples[name]}) for name, each in line.parameters.items()}
        yield line.model_copy(update={"threshold": threshold, "parameters": parameters})


def _threshold(lines: Sequence[RecordedCall]) -> float | None:
    """Return the threshold to which all clipped norms are scaled, or None if they differ."""
    both = [pair for line in lines for pair in zip(line.norms(), line.known_coefs(), strict=False)]
    results = [norm * coef for norm, coef in both if coef != 1 and norm * coef]
    if not results or not all(math.isclose(each, results[0], rel_tol=SAME_THRESHOLD) for each in results):
        return None
    return float(f"{results[0]:.5g}")


def _renamed(table: Mapping[str, Any], match: NameMatch) -> dict[str, Any]:
    return {match.names.get(name, name): entry for name, entry in table.items()}
