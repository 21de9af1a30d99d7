"""Which parameters each optimizer trains, and to which of them the gradients of a clip call belong."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..recorder.lines import unique_name
from ..recorder.samples import FLAT
from ..recording.recorded_run import OptimizerStep, Parameter, RecordedCall
from ..tensors.samples import Sample, order_of

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
    whose gradient at the step is a multiple of it, or whose weight is the same.
    """
    if not line.parameters:
        return {ALL: ALL}
    known: dict[str, str] = {}
    free = {unique: step.tensors.get(name) for network, step in steps for name, unique in network.names.items()}
    has_tensors = any(each is not None for each in free.values())
    for own, gradient in line.parameters.items():
        named = [network.names[own] for network, _ in steps if own in network.names]
        candidates = named if len(named) > 1 else [*free] if own.isdecimal() else []
        near = {each: at_step for each in candidates if (at_step := free.get(each)) is not None}
        chosen = [*match_gradients([({own: gradient}, near)]).values()]
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


Gradients = Mapping[str, Parameter]


def match_gradients(calls: Sequence[tuple[Gradients, Gradients]]) -> dict[str, str]:
    """Return {gradient of a call: gradient at the step} for those with the same elements up to a factor, or with the
    same weight. The best matches come first.

    calls: The gradients of a call, and those at the step. Further ones are of the same call at other steps, and break
        ties, such as between weights that all begin with 0.
    """
    (gradients, at_step), *others = calls
    known = _match_certain(gradients, at_step)
    gradients = {own: each for own, each in gradients.items() if own not in known}
    at_step = {name: each for name, each in at_step.items() if name not in known.values()}
    found = [(_likeness(gradients[own], at_step[name]), own, name) for own in gradients for name in at_step]
    ties = Counter((likeness, place, each) for likeness, *both in found for place, each in enumerate(both))

    def certainty(candidate: tuple[Likeness, str, str]) -> tuple[object, ...]:
        likeness, own, name = candidate
        is_tied = max(ties[likeness, 0, own], ties[likeness, 1, name]) > 1
        fits = [sum(_likeness(left[own], right[name])) for left, right in others if is_tied and name in right]
        last, parts = (re.split(r"[./:]", each) for each in (own, name))
        return likeness, sum(fits), last[-len(parts) :] == parts  # "net/bn/beta" fits "bn.beta"

    for _, own, name in sorted((each for each in found if each[0]), key=certainty, reverse=True):
        if own not in known and name not in known.values():
            known[own] = name
    return known


def _match_certain(gradients: Gradients, at_step: Gradients) -> dict[str, str]:
    """Match by the direction of some elements, which most gradients share with only one other: a large model has too
    many pairs to compare all."""
    left, right = _by_direction(gradients), _by_direction(at_step)
    pairs = {own: right[key][0] for key, (own, *more) in left.items() if not more and len(right.get(key, ())) == 1}
    return {own: name for own, name in pairs.items() if _likeness(gradients[own], at_step[name])[:2] == (True, True)}


def _by_direction(gradients: Gradients) -> dict[object, list[str]]:
    found: dict[object, list[str]] = {}
    for name, each in gradients.items():
        elements = np.asarray((each.sample or ())[:FLAT])
        greatest = np.abs(elements).max(initial=0.0)
        if 0 < greatest < math.inf:
            direction = np.round(elements / greatest, 3) + 0.0  # no -0
            found.setdefault((each.shape, tuple(direction.tolist())), []).append(name)
    return found


Likeness = tuple[bool, ...]


def _likeness(gradient: Parameter, at_step: Parameter) -> Likeness:
    """Return what shows that a gradient belongs to one at a step, or () if nothing does."""
    if without_ones(gradient.shape) != without_ones(at_step.shape):
        return ()
    own, other = (_sample(each.shape, each.sample) for each in (gradient, at_step))
    weight, other_weight = (_sample(each.shape, each.weight_sample) for each in (gradient, at_step))
    is_multiple, has_weight = own is not None and other is not None and _is_multiple(own, other), False
    is_constant = own is not None and other is not None  # many weights begin with 0 or 1, which proves nothing
    if weight is not None and other_weight is not None:
        has_weight = order_of(weight, other_weight) in ("same", "transposed")
        is_constant &= bool(np.ptp(weight.elements) == 0)
    if not is_multiple and (is_constant or not has_weight):
        return ()
    return is_multiple, has_weight, math.isclose(gradient.norm, at_step.norm, rel_tol=PARALLEL)


def without_ones(shape: Sequence[int | None]) -> list[str]:
    """Return what a shape and that of the transposed weight have in common."""
    return sorted(str(length) for length in shape if length != 1)


def _sample(shape: Sequence[int | None], elements: Sequence[float] | None) -> Sample | None:
    lengths = [length for length in shape if length is not None]
    return Sample(lengths, np.array(elements)) if elements is not None and len(lengths) == len(shape) else None


def _is_multiple(gradient: Sample, at_step: Sample) -> bool:
    for a, b in gradient.pairings(at_step):
        size = float(a @ a)
        factor = float(a @ b) / size if size else 0.0
        if np.abs(b - factor * a).max(initial=0.0) <= PARALLEL * np.abs(b).max(initial=0.0):
            return True
    return False
