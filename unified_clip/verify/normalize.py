"""Read the recordings of two training steps, and name their gradients like the yielded parameters."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..recipes.networks import match_gradients, without_ones
from ..recipes.optimizers.compare import known_steps
from ..recipes.optimizers.updates import RATE, Recipe, Step, Tensors, differences, recipes
from ..recipes.run import Run
from ..recorder.clips import NativeCall
from ..recorder.samples import sample
from ..recording import runs
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedCall
from ..recording.results import line_of_tensors
from ..tensors.arithmetic import Float64s, nearest_float
from ..tensors.files import formats
from ..tensors.samples import Sample, order_of, sample_of
from ..tensors.types import Dense, encode
from .launch.outputs import ScriptRun
from .launch.worker import RECORDING
from .named_recording import NormalizedRecording, values
from .step_pairing import closest_axes, norm_of, parameter_of

BY_HAND = "by hand"
"""Replaces the name of the clip function if a training step clips by its own code."""

SAME_THRESHOLD = 1e-5
SAME_NORM = 1e-4

Shape = Sequence[int | None]


def read(run: ScriptRun, steps: int) -> NormalizedRecording:
    """Read a recording, without naming its gradients. If a run has no clip calls, they are computed from the gradients
    that it yields before and after the clip."""
    recording = runs.read(run.directory / RECORDING)
    result = NormalizedRecording(run, recording, steps)
    result.lines = list(_distribute_over_steps(recording.lines, run, steps)) or list(_lines_of_own_clipping(run, steps))
    result.optimizer_steps = list(_distribute_over_steps(recording.optimizer_steps, run, steps))
    result.logged = recording.logged
    if not run.yields:
        result.logged = tuple(each.model_copy(update={"step": steps}) for each in recording.logged)
    return result


def name_gradients(result: NormalizedRecording) -> None:
    """Give each gradient the name of its parameter in the output of the training step.

    Calls on tensors that are not gradients are removed.
    """
    yielded = {step: _yielded(result, step) for step in {line.step for line in result.lines}}
    lines, same_calls = result.lines, _same_calls(result.lines)
    result.lines = []
    for line in lines:
        others = [(each.parameters, yielded[each.step]) for each in same_calls[id(line)] if each is not line]
        before, after = stored_gradients(line, result.run.directory), clipped_gradients(line, result.run.directory)
        clipped = {
            name: each.model_copy(update={"norm": norm_of(tensor), "sample": sample(tensor)})
            for name, each in line.parameters.items()
            if (tensor := after[name].values() if name in after else None) is not None
        }
        at_step = yielded[line.step]
        names = match_gradients([({**line.parameters, **clipped}, at_step), *others])
        names = names or match_gradients([(line.parameters, at_step)])
        if line.after and len(line.parameters) == 1 and not names and not _may_be_gradient(line, at_step):
            result.not_gradients[line.call] += 1
            continue
        names |= _by_shape(line, at_step, names)
        of_parameters = set(names.values())
        names |= {own: f"{own} of the call" for own in line.parameters if own not in names and own in of_parameters}
        result.before[line.step] |= _renamed(before, names)
        result.clipped[line.step] |= _renamed(after, names)
        norms = [
            (at_step[name].norm, clipped.get(own), line.parameters[own])
            for own, name in names.items()
            if name in at_step
        ]
        if line.clipped and not any(each and _agree(norm, each.norm) for norm, each, _ in norms):
            result.unclipped |= {line.step} if any(_agree(norm, each.norm) for norm, _, each in norms) else set()
        result.lines.append(line.model_copy(update={"parameters": _renamed(line.parameters, names)}))


def _yielded(result: NormalizedRecording, step: int) -> dict[str, Parameter]:
    """Return the yielded gradients of a step, with the weights before it."""
    gradients, weights = result.yielded(step) or {}, result.weights_before(step)
    first = result.run.outputs[0].parameters
    return {name: parameter_of(each.shape, gradients.get(name), weights.get(name)) for name, each in first.items()}


def _may_be_gradient(line: RecordedCall, at_step: Mapping[str, Parameter]) -> bool:
    if line.is_gradient is not None:
        return line.is_gradient
    (own,) = line.parameters.values()
    has_shape = any(without_ones(own.shape) == without_ones(each.shape) for each in at_step.values())
    return has_shape and (line.rule != "value" or all(math.isnan(each.norm) for each in at_step.values()))


def _by_shape(line: RecordedCall, at_step: Mapping[str, Parameter], known: Mapping[str, str]) -> dict[str, str]:
    """Pair gradients with the only parameter of their shape, or of their columns: sparse gradients have some rows."""
    rest = {own: each.shape for own, each in line.parameters.items() if own not in known}
    free = {name: each.shape for name, each in at_step.items() if name not in known.values()}
    found: dict[str, str] = {}
    keys: Sequence[Callable[[Shape], object]] = (without_ones, lambda shape: shape[1:] or None)
    for key in keys:
        both = [
            (own, name)
            for own in rest.keys() - found
            for name in free.keys() - set(found.values())
            if key(rest[own]) == key(free[name]) is not None
        ]
        counts = [Counter(pair[side] for pair in both) for side in (0, 1)]
        found |= {own: name for own, name in both if counts[0][own] == counts[1][name] == 1}
    return found


def _agree(norm: float, other: float) -> bool:
    return math.isclose(norm, other, rel_tol=SAME_NORM) or (math.isnan(norm) and math.isnan(other))


def find_networks(recordings: Sequence[NormalizedRecording], names: Mapping[str, str]) -> list[dict[str, str]]:
    """Return {old name: new name} for each of several networks that have a clip and an optimizer of their own.

    Gradients that either run clips together are of one network: the other run may clip it in groups. The clips do not
    tell in which order the networks are trained.
    """
    counts = [Counter(each.step for each in side.optimizer_steps).values() for side in recordings]
    if any(steps and max(steps) == 1 for steps in counts):
        return []  # one optimizer trains all parameters
    to_old: Sequence[Mapping[str, str]] = {}, {new: old for old, new in names.items()}
    calls = [
        {table.get(name, name) for name in line.parameters}
        for table, side in zip(to_old, recordings, strict=True)
        for line in side.lines
    ]
    networks: list[set[str]] = []
    for call in calls:
        if len(call) > 1:
            joined = [each for each in networks if each & call]
            networks = [*(each for each in networks if each not in joined), call.union(*joined)]
    if set().union(*calls) - set().union(*networks):
        return []  # single gradients can be of any network
    found = [{old: new for old, new in names.items() if old in network} for network in networks]
    return sorted(filter(None, found), key=lambda network: [*names].index(next(iter(network))))


def as_run(
    result: NormalizedRecording, networks: Sequence[Sequence[str]], label: str, not_loaded: Sequence[str] = ()
) -> Run:
    """Return the run that the engine compares: the clip calls, and for each step the tensors that the script yields.

    networks: The parameters of each network, by the names of this side. Each call of the script's function is one step
        of each network.
    label: The name of the run in reports.
    not_loaded: The parameters that do not begin with the values of --weights.
    """
    lines = [_in_layout_of_output(line, result) for line in result.lines]
    grouped = {each for network in networks for each in network}
    found = []
    for step in range(1, result.steps + 1):
        recorded = [each for each in result.optimizer_steps if each.step == step]
        earlier = sum(line.step < step for line in result.recorded.lines)
        is_late = bool(recorded) and all(each.calls <= earlier for each in recorded)
        tensors = _tensors(result, step, not_loaded, is_late=is_late)
        calls = sum(line.step < step if is_late else line.step <= step for line in lines)
        if is_late:  # the script yields what its late clip returns, and the optimizer got what the clip gets
            for name, each in (item for line in lines if line.step == step for item in line.parameters.items()):
                if name in tensors and each.sample is not None and each.shape == tensors[name].shape:
                    tensors[name] = tensors[name].model_copy(update={"norm": each.norm, "sample": each.sample})
        base = recorded[0] if len(recorded) == 1 else OptimizerStep(step=step, optimizer="", settings={})
        if len(recorded) > 1 and (settings := _common_settings(recorded)):
            base = base.model_copy(update={"settings": settings, "optimizer": recorded[0].optimizer})
        rest = [each for each in tensors if each not in grouped]
        for place, network in enumerate(networks or [()]):
            own = {each: tensors[each] for each in [*network, *(() if place else rest)] if each in tensors}
            changes = {"step": step, "parameters": tuple(own), "tensors": own, "rates": {}, "place": None}
            found.append(base.model_copy(update={**changes, "calls": calls, "losses": ()}))
    update = {"lines": lines, "optimizer_steps": tuple(found), "name": label, "logged": result.logged}
    return Run(result.recorded.model_copy(update=update))


def not_loaded_by(result: NormalizedRecording, run: Run) -> list[str]:
    """Return the parameters that do not begin with the values of --weights, as the recording or the updates show."""
    early = min((each.calls for each in result.optimizer_steps), default=0)  # the clips before the first update
    if early and not result.not_gradients:
        before, _ = result.weights_of(1)
        recorded = {name: each for line in result.lines[:early] for name, each in line.parameters.items()}
        if changed := [name for name in recorded if name in before and _is_other(recorded[name], before[name])]:
            return changed
    if {len(steps) for steps in run.parameters.values()} != {result.steps}:
        return []
    steps = known_steps(run, {name: name for name in run.parameters})
    return _contradicting(steps, [*steps[0].gradients]) if len(steps) > 1 else []


def _contradicting(steps: Sequence[Step], names: Sequence[str]) -> list[str]:
    """Return the weights whose first update, measured from --weights, does not follow the rule of all later ones."""
    own = [_only(step, names) for step in steps]
    # before an unknown first update, the weights are about those after it
    later = recipes([Step(own[0].gradients, own[1].weights, None), *own[1:]])
    if not names or (later and _have_one_rule(recipes(own), later)):
        return []
    if len(names) == 1:
        return list(names) if later else []
    half = len(names) // 2
    return _contradicting(steps, names[:half]) + _contradicting(steps, names[half:])


def _only(step: Step, names: Sequence[str]) -> Step:
    def part(tensors: Tensors) -> Tensors:
        return {name: tensors[name] for name in names}

    return Step(part(step.gradients), part(step.weights), None if step.updates is None else part(step.updates))


def _have_one_rule(every: Sequence[Recipe], later: Sequence[Recipe]) -> bool:
    """A weight decay of only the first step is no decay."""
    pairs = itertools.product(every, later)  # hundreds of rules explain updates of zero
    return any(all(each.setting == RATE for each in differences(a, b)) for a, b in pairs)


def _is_other(recorded: Parameter, weight: Float64s) -> bool:
    if recorded.weight_sample is None or recorded.shape != weight.shape:
        return False
    return order_of(Sample(weight.shape, np.array(recorded.weight_sample)), sample_of(weight)) == "other"


def _in_layout_of_output(line: RecordedCall, result: NormalizedRecording) -> RecordedCall:
    """A script can yield the transpose of what it clips."""
    gradients = result.gradients(line.step)
    changed = {}
    for name, each in line.parameters.items():
        target, stored = gradients.get(name), result.before.get(line.step, {}).get(name)
        if target is None or (stored is None and each.shape == target.shape):
            continue
        axes = closest_axes(_direction(target), _direction(stored.values())) if stored else None
        if axes == tuple(range(target.ndim)):
            continue
        elements = None if stored is None or axes is None else tuple(sample(stored.values().transpose(axes)))
        shape = each.shape if axes is None else target.shape
        changed[name] = each.model_copy(update={"shape": shape, "sample": elements, "weight_sample": None})
    return line.model_copy(update={"parameters": {**line.parameters, **changed}}) if changed else line


def _direction(gradient: Float64s) -> Float64s:
    """A clip changes the size of a gradient, and keeps its direction."""
    norm = norm_of(gradient)
    return gradient / norm if norm and math.isfinite(norm) else gradient


def _common_settings(steps: Sequence[OptimizerStep]) -> dict[str, Any]:
    if not steps or len({each.optimizer for each in steps}) > 1:
        return {}
    names = [name for name in steps[0].settings if all(name in each.settings for each in steps)]
    return {name: steps[0].settings[name] for name in names if len({str(each.settings[name]) for each in steps}) == 1}


def _tensors(
    result: NormalizedRecording, step: int, not_loaded: Sequence[str], *, is_late: bool
) -> dict[str, Parameter]:
    gradients = result.gradients(step)
    if is_late and step in result.before:  # the step gets what the clip gets later
        gradients = values(result.before[step])
    before, after = result.weights_of(step)
    if step == 1:  # weights that were not loaded were about those after the step
        before = {name: after[name] if name in not_loaded else each for name, each in before.items()}
        after = {name: each for name, each in after.items() if name not in not_loaded}
    return {name: parameter_of(each.shape, each, before.get(name), after.get(name)) for name, each in gradients.items()}


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
    for line in lines:
        yield line.model_copy(update={"threshold": threshold})


def _threshold(lines: Sequence[RecordedCall]) -> float | None:
    """Return the threshold to which all clipped norms are scaled, or None if they differ."""
    both = [pair for line in lines for pair in zip(line.norms(), line.known_coefs(), strict=False)]
    results = [norm * coef for norm, coef in both if coef != 1 and norm * coef]
    if not results or not all(math.isclose(each, results[0], rel_tol=SAME_THRESHOLD) for each in results):
        return None
    return float(f"{results[0]:.5g}")


def _renamed(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): entry for name, entry in table.items()}


# -- the stored tensors of a call


def clipped_gradients(line: RecordedCall, directory: Path) -> dict[str, Dense]:
    """Return {recorded name: gradient after the call}, or {} if the recording has no gradients."""
    if line.after:
        return formats.load(directory / line.after)
    if not (stored := stored_gradients(line, directory)):
        return {}
    if line.rule == "value" and isinstance(line.threshold, tuple):
        return {name: _bounded(tensor, *line.threshold) for name, tensor in stored.items()}
    coefs = zip(line.parameters, _coefficients(line), strict=False)
    return {name: _product(stored[name], coef) for name, coef in coefs if name in stored}


def stored_gradients(line: RecordedCall, directory: Path) -> dict[str, Dense]:
    """Sparse gradients are never stored."""
    return formats.load(directory / line.gradients) if line.gradients else {}


def _coefficients(line: RecordedCall) -> list[float]:
    count = len(line.parameters)
    coefs = line.known_coefs() * count if line.rule == "global" else line.known_coefs()
    return coefs if len(coefs) == count and line.rule in ("global", "each") else []


def _product(tensor: Dense, coef: float) -> Dense:
    if tensor.dtype == "float64":
        return encode(tensor.values() * coef, tensor.dtype)
    product = (tensor.values() * float(np.float32(coef))).astype(np.float32)
    return encode(product.astype(np.float64), tensor.dtype)


def _bounded(tensor: Dense, low: float, high: float) -> Dense:
    bounds = [nearest_float(bound, tensor.dtype) for bound in (low, high)]
    return encode(np.clip(tensor.values(), bounds[0], bounds[1]), tensor.dtype)
