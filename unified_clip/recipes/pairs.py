"""Pair the parameters of two runs: by name, by their first weights, by shape, or one with several that it packs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..recorder.lines import canonical
from ..tensors.samples import SAME, Order, Sample, have_same_elements, order_of
from .run import ParameterStep, Run

CLOSE_NORMS = 1e-5


class Pair(NamedTuple):
    old: tuple[str, ...]
    new: tuple[str, ...]
    order: Order | None
    """How the elements of the first weight are ordered in the new run. None if unknown, or for packed weights."""

    are_rearranged: bool = False
    """Whether the weights have the same elements in an order that is unknown, such as the gates of a GRU."""

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.old, self.new

    @property
    def is_single(self) -> bool:
        return len(self.old) == len(self.new) == 1

    @property
    def name(self) -> str:
        """The name in sentences."""
        return ", ".join(self.old)

    @property
    def text(self) -> str:
        """All names, which tell what kind of layer the parameter belongs to."""
        return " ".join((*self.old, *self.new))


class Both(NamedTuple):
    """The same step of a pair in both runs."""

    pair: Pair
    number: int
    every: tuple[Sequence[ParameterStep], Sequence[ParameterStep]]
    """The steps of all parameters of each run, of which a pair with a packed parameter has several."""

    @property
    def sides(self) -> tuple[ParameterStep, ParameterStep]:
        """The step of the first parameter of each run."""
        return self.every[0][0], self.every[1][0]


class PairedRuns:
    """Two runs, and which of their parameters belong together."""

    def __init__(self, a: Run, b: Run, pairs: Sequence[Pair]) -> None:
        self.a, self.b, self.pairs = a, b, pairs
        self.steps = {pair: self._steps_of(pair) for pair in pairs}

    def _steps_of(self, pair: Pair) -> list[Both]:
        columns = [
            zip(*(run.parameters[name] for name in names), strict=False)
            for run, names in zip(self.sides, pair.sides, strict=True)
        ]
        return [Both(pair, number, sides) for number, sides in enumerate(zip(*columns, strict=False), start=1)]

    @property
    def sides(self) -> tuple[Run, Run]:
        return self.a, self.b

    @property
    def count(self) -> int:
        """The number of steps that both runs have of some parameter, because others may step less often."""
        return max(map(len, self.steps.values()), default=0)

    @property
    def weight_unit(self) -> float:
        """The rounding error of the less precise weights."""
        return max(self.a.weight_unit, self.b.weight_unit)

    def every(self) -> list[Both]:
        return [each for steps in self.steps.values() for each in steps]

    def at(self, number: int) -> list[Both]:
        return [steps[number - 1] for steps in self.steps.values() if len(steps) >= number]

    def total_norms(self, number: int) -> tuple[float, float]:
        return self.a.total_norm(number), self.b.total_norm(number)


def pair_parameters(a: Run, b: Run, names: Mapping[str, str]) -> list[Pair]:
    """names: {parameter of `a`: parameter of `b`}."""
    rest = [name for name in a.parameters if name not in names]
    others = [name for name in b.parameters if name not in {*names.values()}]
    pairs = {name: other for name, other in names.items() if name in a.parameters and other in b.parameters}
    for matched in (_by_name, _by_weights, partial(_by_shape, pairs=pairs), _in_order):
        found_pairs = dict(matched(a, b, rest, others))
        pairs |= found_pairs
        rest = [name for name in rest if name not in found_pairs]
        others = [name for name in others if name not in found_pairs.values()]
    found = [Pair((name,), (other,), *_order(a, b, name, other)) for name, other in pairs.items()]
    blocks = list(_packed(a, b, rest, others))
    found += [Pair(tuple(left), tuple(right), None) for left, right in blocks]
    place = {name: index for index, name in enumerate(a.parameters)}
    return sorted(found, key=lambda pair: place[pair.old[0]])


def _order(a: Run, b: Run, name: str, other: str) -> tuple[Order | None, bool]:
    left, right = a.weight_at_start(name), b.weight_at_start(other)
    if left is None or right is None:
        return None, False
    order = order_of(left, right, max(SAME, 2 * a.weight_unit, 2 * b.weight_unit))
    if order == "other" and name in a.sums and other in b.sums:
        norm = float(a.first(name).weight_norm or 0.0)
        return order, have_same_elements(a.sums[name], b.sums[other], norm)
    return order, False


def _sorted_shape(run: Run, name: str) -> tuple[int, ...] | None:
    shape = run.shape(name)
    return None if shape is None else tuple(sorted(length for length in shape if length != 1))


def _by_name(a: Run, b: Run, rest: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, str]]:
    known = {canonical(other): other for other in others}
    # two networks with equal names, whose order can differ
    repeated = {name.partition("#")[0] for run in (a, b) for name in run.parameters if "#" in name}
    for name in rest:
        other = known.get(canonical(name))
        if other is not None and not name.isdecimal() and name.partition("#")[0] not in repeated:
            shapes = {_sorted_shape(a, name), _sorted_shape(b, other)} - {None}
            if len(shapes) < 2:
                del known[canonical(name)]
                yield name, other


def _by_weights(a: Run, b: Run, rest: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, str]]:
    free = list(others)
    for name in rest:
        weight = a.weight_at_start(name)
        if weight is None or _constant(a, name) is not None:
            continue
        same = [other for other in free if have_one_order(weight, b.weight_at_start(other))]
        if same:  # several parameters can have the same weights, such as an embedding and the last layer
            other = next((each for each in same if _have_near_gradients(a, b, name, each)), same[0])
            free.remove(other)
            yield name, other


def _constant(run: Run, name: str) -> float | None:
    """Return the number with which all elements of a weight start, such as 1 or 0 in a normalization."""
    weight = run.weight_at_start(name)
    is_constant = weight is not None and len(weight.elements) > 0 and np.ptp(weight.elements) == 0
    return float(weight.elements[0]) if weight is not None and is_constant else None


def have_one_order(weight: Sample, other: Sample | None) -> bool:
    is_possible = other is not None and len(weight.shape) == len(other.shape)
    return other is not None and is_possible and order_of(weight, other) in ("same", "transposed")


def _by_shape(
    a: Run, b: Run, rest: Sequence[str], others: Sequence[str], *, pairs: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Pair in order, within paired networks. Prefer parameters whose first gradients have equal norms.

    pairs: Those so far.
    """
    free, done = list(others), set[str]()
    partners = {a.network_of(name): b.network_of(other) for name, other in pairs.items()}
    known_shapes: set[tuple[int, ...]] = set()
    for are_near in (True, False):
        for name in rest:
            shape = _sorted_shape(a, name)
            same_shape = [other for other in free if _sorted_shape(b, other) == shape and shape is not None]
            same_shape = [each for each in same_shape if _constant(a, name) == _constant(b, each)] or same_shape
            network = partners.get(a.network_of(name))
            candidates = [each for each in same_shape if b.network_of(each) == network] or same_shape
            candidates = [each for each in candidates if not are_near or _have_near_gradients(a, b, name, each)]
            if shape is None or name in done or not candidates or (shape in known_shapes and not are_near):
                continue
            other = candidates[0]
            free.remove(other)
            done.add(name)
            yield name, other
        # if some gradients agree and the numbers differ, the other parameters of this shape are in one run only
        counts = Counter(_sorted_shape(run, name) for run, names in ((a, rest), (b, others)) for name in names)
        known_shapes = {shape for shape in map(partial(_sorted_shape, a), done) if shape and counts[shape] % 2}


def _in_order(a: Run, b: Run, rest: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair the parameters whose shapes were not recorded, because they have no clip."""
    is_unknown = any(run.shape(name) is None for run, names in ((a, rest), (b, others)) for name in names)
    if is_unknown and len(rest) == len(others):
        yield from zip(rest, others, strict=True)


def _have_near_gradients(a: Run, b: Run, name: str, other: str) -> bool:
    norms = a.first(name).raw_norm, b.first(other).raw_norm
    return None not in norms and math.isclose(norms[0] or 0.0, norms[1] or 0.0, rel_tol=CLOSE_NORMS)


def _packed(a: Run, b: Run, rest: Sequence[str], others: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    if blocks := _single_to_many(a, b, rest, others):
        return blocks
    found = []
    for is_matrix in (True, False):
        left, right = (
            [name for name in names if (len(run.shape(name) or ()) > 1) == is_matrix]
            for run, names in ((a, rest), (b, others))
        )
        found += _single_to_many(a, b, left, right)
    return found


def _single_to_many(a: Run, b: Run, left: Sequence[str], right: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Split both lists into blocks with as many elements. One side of each block has one parameter."""
    ends = [
        list(itertools.accumulate(math.prod(run.shape(name) or (0,)) for name in names))
        for run, names in ((a, left), (b, right))
    ]
    if not (left and right) or ends[0][-1] != ends[1][-1]:
        return []
    blocks, starts = [], [0, 0]
    for end in sorted({*ends[0]} & {*ends[1]}):
        stops = [side.index(end) + 1 for side in ends]
        blocks.append((list(left[starts[0] : stops[0]]), list(right[starts[1] : stops[1]])))
        starts = stops
    return blocks if all(min(map(len, block)) == 1 for block in blocks) else []
