"""Which parameters each optimizer trains, and to which of them the gradients of a clip call belong."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..recorder.lines import unique_name
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedCall

PARALLEL = 1e-4
"""The clipped sample of a gradient is a multiple of the unclipped one, up to this fraction."""

ALL = "all gradients"
"""Stands for the gradients of a call whose parameters were not recorded."""


class Network(NamedTuple):
    """The parameters that one optimizer trains."""

    names: Mapping[str, str]
    """{name in the recording: name in the run}. They differ if two networks have equal names. Empty if unknown."""

    steps: Sequence[OptimizerStep]


def find_networks(steps: Sequence[OptimizerStep]) -> list[Network]:
    """Each optimizer trains a network. Recordings of schema 2 do not tell optimizers apart."""
    by_optimizer: dict[tuple[int | None, tuple[str, ...]], list[OptimizerStep]] = {}
    for step in steps:
        by_optimizer.setdefault((step.instance, () if step.instance else tuple(step.parameters)), []).append(step)
    taken: set[str] = set()
    networks = []
    for own in by_optimizer.values():
        names = dict.fromkeys(name for step in own for name in step.parameters)
        unique = {name: unique_name(name, taken) for name in names}
        taken |= {*unique.values()}
        networks.append(Network(unique, own))
    if len(networks) > 1 and not all(network.names for network in networks):
        return [Network({}, list(steps))]  # without names, nothing tells the networks apart
    return networks


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
