from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .._kit import atomic_files
from .._kit.atomic_files import LARGEST_REPORT
from ..recording import runs
from ..recording.lines import encode
from ..recording.natives.native_call import NativeCall, ObservedTensors, line_fields
from ..recording.pairs.loops import count_mergeable, merge_calls
from ..recording.recorded_run import OptimizerStep, RecordedCall
from ..tensors.types import Dense
from .launch.outputs import ScriptRun
from .launch.worker import RECORDING
from .name_gradients import NameMatch, NameMatcher, Parameters, clipped_gradients, stored_gradients

BY_HAND = "by hand"
"""Replaces the name of the clip function if a training step clips by its own code."""


@dataclass
class NormalizedRecording:
    run: ScriptRun
    path: Path = Path()
    lines: list[RecordedCall] = field(default_factory=list)
    before: dict[int, dict[str, Dense]] = field(default_factory=lambda: defaultdict(dict))
    """{step: {name: gradient}}: the gradients before the clip calls, as far as the recording stores them."""

    clipped: dict[int, dict[str, Dense]] = field(default_factory=lambda: defaultdict(dict))

    unclipped: set[int] = field(default_factory=set)
    """The numbers of the steps whose yielded gradients are unclipped."""

    not_gradients: Counter[str] = field(default_factory=Counter)
    """{function: number of calls} for calls on tensors that are not gradients. `lines` does not contain these calls."""

    optimizer_steps: list[OptimizerStep] = field(default_factory=list)

    recorded_steps: list[int] = field(default_factory=list)
    """The step number of each recorded call."""

    calls: dict[int, list[RecordedCall]] = field(default_factory=dict)
    """The calls of each step, before consecutive calls are merged."""

    common_names: Mapping[str, str] = field(default_factory=dict)
    """{parameter of the new run: parameter of the old run}, or {} for the old run."""

    def optimizer_steps_at(self, step: int) -> list[OptimizerStep]:
        return [each for each in self.optimizer_steps if each.step == step]

    def sets(self, step: int) -> list[frozenset[str]]:
        return [self.shared_names(line) for line in self.calls.get(step, ())]

    def shared_names(self, line: RecordedCall) -> frozenset[str]:
        return frozenset(self.common_names.get(name, name) for name in line.parameters)


def normalize(
    old: ScriptRun, new: ScriptRun, weights: Parameters, steps: int, out: Path, names: Mapping[str, str]
) -> list[NormalizedRecording]:
    """Make the recordings of two runs comparable, write the results to `out`, and return them.

    - Each gradient gets the name of its parameter in the output of the training step.
    - Calls in a loop over the parameters are merged. Matching calls of a step get the same order in both runs.
    - Calls on tensors that are not gradients are removed.
    - If a run has no clip calls, they are computed from the gradients that it yields before and after the clip.

    names: {parameter in the old run: parameter in the new run}.
    """
    common_names = {new_name: name for name, new_name in names.items()}
    recordings = [_read_calls(run, weights, steps, each) for run, each in ((old, {}), (new, common_names))]
    order_in_old: dict[int, list[frozenset[str]]] = {}  # the shared names of each call, by step
    for recording, other in (recordings, recordings[::-1]):
        for step, calls in recording.calls.items():
            merged = [_sort_by_name(line, recording.common_names) for line in _merge_calls(calls, recording, other)]
            order = list(map(recording.shared_names, merged))
            recording.lines += _in_order_of(merged, order, order_in_old.setdefault(step, order))
    counts = [Counter(item.step for item in each.optimizer_steps) for each in recordings]
    for recording in recordings:
        has_steps = counts[0] == counts[1] or not recording.lines
        _write(recording, out / f"{recording.run.script.side}.jsonl", steps, has_steps=has_steps)
    return recordings


def _read_calls(
    run: ScriptRun, weights: Parameters, steps: int, common_names: Mapping[str, str]
) -> NormalizedRecording:
    recording = runs.read(run.directory / RECORDING)
    lines = list(_distribute_over_steps(recording.lines, run, steps)) or list(_lines_of_own_clipping(run, steps))
    result = NormalizedRecording(run, common_names=common_names, recorded_steps=[line.step for line in lines])
    result.optimizer_steps = list(_distribute_over_steps(recording.optimizer_steps, run, steps))
    matchers = {step: NameMatcher(run, weights, step, steps) for step in dict.fromkeys(line.step for line in lines)}
    same_calls = _same_calls(lines)
    for step, group in itertools.groupby(lines, key=lambda line: line.step):
        calls = result.calls[step] = []
        for line in group:
            others = [(matchers[each.step].weights, each) for each in same_calls[id(line)] if each is not line]
            match = matchers[step].match(line, run.directory, others)
            if match is None:
                result.not_gradients[line.call] += 1
                continue
            result.before[step] |= _renamed(stored_gradients(line, run.directory), match)
            result.clipped[step] |= _renamed(clipped_gradients(line, run.directory), match)
            result.unclipped |= {step} if match.yields_unclipped else set()
            calls.append(line.model_copy(update={"parameters": _renamed(line.parameters, match)}))
    return result


def _write(result: NormalizedRecording, path: Path, steps: int, *, has_steps: bool) -> None:
    result.path, source = path, result.run.directory / RECORDING
    recording = runs.read(source)
    header = atomic_files.read_text(source, LARGEST_REPORT).partition("\n")[0]
    logged = recording.logged
    if not result.run.yields:
        logged = tuple(each.model_copy(update={"step": steps}) for each in recording.logged)
    recorded = list(_distribute_over_steps(recording.lines, result.run, steps))
    clips = _with_optimizers(result.lines, result.optimizer_steps if has_steps else (), recorded)
    items = [*clips, *logged]
    written = [encode(each.model_dump(mode="json", exclude_unset=True, exclude={"clips", "losses"})) for each in items]
    written += [encode({"step": 1, "warning": each}) for each in recording.warnings]
    atomic_files.write(path, "".join(f"{line}\n" for line in [header, *written]))


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


def _with_optimizers(
    lines: Sequence[RecordedCall], optimizer_steps: Sequence[OptimizerStep], recorded: Sequence[RecordedCall]
) -> list[RecordedCall | OptimizerStep]:
    """Merge the clip calls and the optimizer steps. `recorded` has the clip calls in the order of the recording."""

    def place(item: RecordedCall | OptimizerStep) -> tuple[int, int]:
        if isinstance(item, RecordedCall):
            return item.step, 1
        is_early = bool(recorded) and item.calls <= sum(line.step < item.step for line in recorded)
        return item.step, 0 if is_early else 2

    return sorted([*lines, *optimizer_steps], key=place)


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
    calls clip per tensor.
    """
    observed = []
    for step, output in enumerate(run.outputs, start=1 if run.yields else steps):
        before, after = output.unclipped or {}, output.gradients or {}
        if names := [name for name in before if name in after]:
            observed.append((step, ObservedTensors([before[n] for n in names], [after[n] for n in names], (), names)))
    calls = [NativeCall(BY_HAND, "", rule, None, 2.0, None) for rule in ("global", "each")]
    together, per_tensor = (
        [RecordedCall(step=step, **line_fields(call, tensors)) for step, tensors in observed] for call in calls
    )
    yield from together if all(line.known_coefs() for line in together) else per_tensor


def _renamed(table: Mapping[str, Any], match: NameMatch) -> dict[str, Any]:
    return {match.names.get(name, name): entry for name, entry in table.items()}


def _merge_calls(
    lines: Sequence[RecordedCall], recording: NormalizedRecording, other: NormalizedRecording
) -> list[RecordedCall]:
    """Merge consecutive calls of a step if each call clips one gradient and the settings are equal.

    Calls for two networks are not merged if the other run clips the networks in separate calls.
    """
    groups: list[list[RecordedCall]] = []
    for line in lines:
        group = groups[-1] if groups else []
        names = {name for each in group for name in each.parameters}
        is_apart = any(_are_apart(recording.shared_names(each), recording.shared_names(line), other.sets(line.step))
                       for each in group)  # fmt: skip
        can_merge = group and count_mergeable([*group, line]) > len(group) and names.isdisjoint(line.parameters)
        if can_merge and not is_apart:
            group.append(line)
        else:
            groups.append([line])
    return [merge_calls(group) for group in groups]


def _are_apart(names: frozenset[str], others: frozenset[str], sets: Sequence[frozenset[str]]) -> bool:
    """Return whether `names` and `others` are in different sets, and one of these sets has several names.

    sets: The names of the gradients in each clip call of a run.
    """
    places = [[each for each in sets if each & own] for own in (names, others)]
    is_known = all(places) and not any(each in places[1] for each in places[0])
    return is_known and any(len(each) > 1 for place in places for each in place)


def _in_order_of(
    lines: list[RecordedCall], order: Sequence[frozenset[str]], expected: Sequence[frozenset[str]]
) -> list[RecordedCall]:
    are_disjoint = len(frozenset().union(*order)) == sum(map(len, order))
    if len(order) != len(expected) or set(order) != set(expected) or not are_disjoint:
        return lines
    return [lines[order.index(names)] for names in expected]


def _sort_by_name(line: RecordedCall, common_names: Mapping[str, str]) -> RecordedCall:
    """Frameworks sort parameters differently, so sort the norms and coefficients of a call by name."""
    names = list(line.parameters)
    if line.rule != "each" or len(line.norms()) != len(names):
        return line
    order = sorted(range(len(names)), key=lambda index: common_names.get(names[index], names[index]))
    lists: dict[str, list[Any]] = {"norm": [*line.norms()], "coef": [*line.coefs()]}
    if isinstance(line.stored_norm, list):
        lists["stored_norm"] = [*line.stored_norm]
    changes: dict[str, Any] = {key: [values[index] for index in order] for key, values in lists.items()}
    changes["parameters"] = {names[index]: line.parameters[names[index]] for index in order}
    return line.model_copy(update=changes)
