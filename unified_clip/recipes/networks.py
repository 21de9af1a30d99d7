"""Which parameters each optimizer trains, and to which of them the gradients of a clip call belong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..recorder.lines import unique_name
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedCall

PARALLEL = 1e-4
"""The clipped sample of a gradient is a multiple of the unclipped one, up to this fraction."""

CONTINUES = 0.5
"""One step changes weights by a smaller fraction."""

ALL = "all gradients"
"""Stands for the gradients of a call whose parameters were not recorded."""


class Network(NamedTuple):
    """The parameters that one optimizer trains."""

    names: Mapping[str, str]
    """{name in the recording: name in the run}. They differ if two networks have equal names. Empty if unknown."""

    steps: Sequence[OptimizerStep]


def find_networks(steps: Sequence[OptimizerStep]) -> list[Network]:
    """Each optimizer trains a network. Recordings of schema 2 do not tell optimizers apart."""
    taken: set[str] = set()
    networks = []
    for own in _by_optimizer(steps):
        names = dict.fromkeys(name for step in own for name in step.parameters)
        unique = {name: unique_name(name, taken) for name in names}
        taken |= {*unique.values()}
        networks.append(Network(unique, own))
    if len(networks) > 1 and not all(network.names for network in networks):
        return [Network({}, list(steps))]  # without names, nothing tells the networks apart
    return networks


def _by_optimizer(steps: Sequence[OptimizerStep]) -> list[list[OptimizerStep]]:
    """A script can make an optimizer anew, as `optax.inject_hyperparams` does for each step. It continues the last one.

    Two networks with equal names have other weights.
    """
    keys = [(step.instance, () if step.instance else tuple(step.parameters)) for step in steps]
    last = {key: place for place, key in enumerate(keys)}
    found: list[list[OptimizerStep]] = []
    of_key: dict[object, list[OptimizerStep]] = {}
    ends: dict[int, int] = {}
    for place, (key, step) in enumerate(zip(keys, steps, strict=True)):
        if key not in of_key:
            ended = sorted((own for own in found if ends[id(own)] < place), key=lambda own: ends[id(own)])
            of_key[key] = min(ended, key=lambda own: _distance(own[-1], step), default=[])
            last_one = of_key[key]
            # at equal weights, the same training begins again, as for another fold
            if not last_one or _distance(last_one[-1], step) > CONTINUES or _begins_again(last_one, step):
                of_key[key] = []
                found.append(of_key[key])
        of_key[key].append(step)
        ends[id(of_key[key])] = last[key]
    return found


def _begins_again(steps: Sequence[OptimizerStep], after: OptimizerStep) -> bool:
    return len(steps) > 1 and bool(after.tensors) and _distance(steps[0], after) == 0 < _distance(steps[0], steps[-1])


def _distance(before: OptimizerStep, after: OptimizerStep) -> float:
    """Return how far the weights are apart, as a fraction. Without weights, one line of code steps one network."""
    if before.optimizer != after.optimizer or not before.parameters or {*before.parameters} != {*after.parameters}:
        return math.inf
    tensors = [(each, after.tensors.get(name)) for name, each in before.tensors.items()]
    known = [
        (np.array(old.weight_sample), np.array(new.weight_sample))
        for old, new in tensors
        if new is not None and old.weight_sample is not None and new.weight_sample is not None
    ]
    if any(old.shape != new.shape for old, new in known):
        return math.inf
    total = math.hypot(*(float(np.linalg.norm(old)) for old, _ in known))
    if not total:
        return 0.0 if before.place is not None and before.place == after.place else math.inf
    return math.hypot(*(float(np.linalg.norm(new - old)) for old, new in known)) / total


def find_loops(lines: Sequence[RecordedCall]) -> list[list[int]]:
    """Return the places of the calls of each training step, if no optimizer steps were recorded.

    Each call on plain arrays has a step of its own. If each of them clips one gradient without a name, and their shapes
    repeat, then the repeated shapes are a loop over the gradients of one training step.
    """
    places = range(len(lines))
    shapes = [line.parameters["0"].shape if [*line.parameters] == ["0"] else None for line in lines]
    size = 1
    if None not in shapes and len({line.step for line in lines}) == len(lines):
        fitting = (each for each in places[1:] if not len(lines) % each and shapes[each:] == shapes[:-each])
        size = next(fitting, 1)
    if size > 1:
        return [list(places[start : start + size]) for start in places[::size]]
    return [list(group) for _, group in itertools.groupby(places, key=lambda place: lines[place].step)]


def find_owners(line: RecordedCall, steps: Sequence[tuple[Network, OptimizerStep]]) -> dict[str, str]:
    """Return {name of the gradient in the call: parameter}.

    A gradient with only a position as its name, or with a name that several networks have, belongs to the parameter
    whose gradient at the step is a multiple of it.
    """
    if not line.parameters:
        return {ALL: ALL}
    known: dict[str, str] = {}
    free = {unique: step.tensors.get(name) for network, step in steps for name, unique in network.names.items()}
    has_tensors = any(each is not None for each in free.values())
    for own, gradient in line.parameters.items():
        named = [network.names[own] for network, _ in steps if own in network.names]
        candidates = named if len(named) > 1 else [*free] if own.isdecimal() else []
        chosen = [each for each in candidates if each in free and _is_multiple(gradient, free[each])]
        # a gradient of another shape than all free parameters belongs to none that is trained
        may_be_trained = any(each is None or each.shape == gradient.shape for each in free.values())
        owner = next(iter(chosen or named), None if own.isdecimal() and has_tensors and may_be_trained else own)
        if owner is not None and not (own.isdecimal() and not has_tensors and not named):
            known[own] = owner
            free.pop(owner, None)
    names = [unique for network, _ in steps for unique in network.names.values()]
    if not known and all(own.isdecimal() for own in line.parameters) and not has_tensors:
        in_order = len(line.parameters) == len(names)  # the optimizer lists them in the same order
        return dict(zip(line.parameters, names if in_order else line.parameters, strict=True))
    return known


def _is_multiple(gradient: Parameter, at_step: Parameter | None) -> bool:
    if at_step is None or gradient.shape != at_step.shape or gradient.sample is None or at_step.sample is None:
        return False
    a, b = (np.array(each.sample) for each in (gradient, at_step))
    size = float(a @ a)
    factor = float(a @ b) / size if size else 0.0
    return bool(np.abs(b - factor * a).max(initial=0.0) <= PARALLEL * np.abs(b).max(initial=0.0))
