"""Two training steps beside each other: what they clipped, by `parity.parting`, and what came of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..parity import parting
from ..parity.arithmetic import Float64s
from ..parity.parting import Comparison, Distance, Names, Pair
from ..parity.runs import Line, Parameter
from .verify_names import Parameters, Settled, at_step, settle
from .verify_run import Ran, VerifyError

NOTHING = Distance(0.0, 0.0)

Stage = Literal["norm", "coefficient", "tensors", "update"]

STAGES: tuple[Stage, ...] = ("norm", "coefficient", "tensors", "update")
"""In the order in which one follows from another."""


@dataclass(frozen=True)
class Far:
    """The greatest distance between tensors, and whose it is."""

    distance: Distance
    name: str


@dataclass(frozen=True)
class Row:
    """A step of both."""

    step: int
    old: Sequence[Line]
    new: Sequence[Line]
    norm: Distance | None
    """None where there are no two to compare, as of a clip by value; so too below."""

    coefficient: Distance | None
    tensors: Far | None
    """The gradients after clipping."""

    update: Far | None
    """What the step has added to the parameters."""

    clips_alike: bool
    """Whether they clip by the same rule and threshold, in as many calls."""

    def distance(self, stage: Stage) -> Distance | None:
        found = getattr(self, stage)
        return found.distance if isinstance(found, Far) else found

    def apart(self, max_ulp: float) -> list[str]:
        """What differs."""
        stages = [stage for stage in STAGES if (far := self.distance(stage)) is not None and far.ulps > max_ulp]
        return [*(() if self.clips_alike else ("clip",)), *stages]


@dataclass(frozen=True)
class Verified:
    """Two training steps that were run."""

    old: Ran
    new: Ran
    clips: Comparison
    rows: Sequence[Row]
    max_ulp: float

    @property
    def is_same(self) -> bool:
        return self.clips.first is None and not any(row.apart(self.max_ulp) for row in self.rows)


def compare(
    old: Ran, new: Ran, weights: Parameters, steps: int, out: Path, names: Names | None, max_ulp: float
) -> Verified:
    """Compare what two functions did. Their recordings are written into `out`, as `old.jsonl` and `new.jsonl`.

    Raises:
        VerifyError: One of them made no clip call that can be seen, or there is a name that neither has.
    """
    given = _oriented(old, new, names or {})
    settled = []
    for ran, mapped in ((old, {}), (new, {b: a for a, b in given.items()})):
        settled.append(settle(ran, weights, steps, out / f"{ran.script.side}.jsonl", mapped))
        if not settled[-1].calls:
            raise VerifyError(_no_call(ran))
    known = [set(each.names) for each in settled]
    usable = {a: b for a, b in given.items() if a in known[0] and b in known[1]}
    clips = parting.compare(settled[0].path, settled[1].path, names=usable, max_ulp=max_ulp)
    layouts = _Layouts(old, new, weights, steps, given)
    rows = [_row(step, clips, layouts, settled) for step in range(1, steps + 1)]
    return Verified(old, new, clips, [row for row in rows if row.old or row.new or row.update], max_ulp)


def _no_call(ran: Ran) -> str:
    return (
        f"{ran.script} made no clip call that can be seen: none of unified_clip's, and none of the frameworks' own that "
        "docs/verify.md lists. If it clips by hand, give the gradients before clipping as a third dict: "
        "(parameters, gradients, unclipped)"
    )


def _oriented(old: Ran, new: Ran, names: Names) -> Names:
    """A map of names from old to new; it may be given the other way round."""
    ours, theirs = ({name for given in ran.given for name in given.parameters} for ran in (old, new))
    if set(names) <= ours and set(names.values()) <= theirs:
        return names
    if set(names) <= theirs and set(names.values()) <= ours:
        return {other: name for name, other in names.items()}
    unknown = (
        next(each for each in (*names, *names.values()) if each not in ours | theirs)
        if not (set(names) | set(names.values()) <= ours | theirs)
        else next(iter(names))
    )
    raise VerifyError(
        f"--map has {unknown!r}; a line is a name of {old.script} = a name of {new.script}, which give "
        f"{', '.join(sorted(ours))} and {', '.join(sorted(theirs))}"
    )


def _row(step: int, clips: Comparison, layouts: _Layouts, settled: Sequence[Settled]) -> Row:
    old, new = ([line for line in run.lines if line.step == step] for run in (clips.a, clips.b))
    pairs = [pair for pair in clips.pairs if pair.a.step == step]
    alike = len(pairs) == len(old) == len(new) and all(map(_alike, pairs))
    return Row(
        step,
        old,
        new,
        _furthest(pairs, "norm"),
        _furthest(pairs, "coefficient"),
        layouts.tensors(step, settled),
        layouts.update(step),
        alike,
    )


def _alike(pair: Pair) -> bool:
    a, b = pair.a, pair.b
    same_limit = None in (a.threshold, b.threshold) or parting.threshold(a) == parting.threshold(b)
    return a.rule == b.rule and a.norm_type == b.norm_type and same_limit


def _furthest(pairs: Sequence[Pair], stage: Literal["norm", "coefficient"]) -> Distance | None:
    found = [parting.distance(ours, theirs) for pair in pairs for _, ours, theirs in parting.numbers(pair, stage)]
    return max(found, default=None)


# -- tensors


class _Layouts:
    """Which tensors belong together, and in which order the axes of the new one are the old one's."""

    def __init__(self, old: Ran, new: Ran, weights: Parameters, steps: int, names: Names) -> None:
        self._runs, self._weights, self._steps = (old, new), weights, steps
        first = next(step for step in range(1, steps + 1) if at_step(old, step, steps) and at_step(new, step, steps))
        ours, theirs = (self._values(side, first) for side in (0, 1))
        self._names = parting.matched(_as_parameters(ours), _as_parameters(theirs), names)
        self._axes = {name: _axes(ours[name], theirs[other]) for name, other in self._names.items()}
        self._begin = [self._initial(values) for values in (ours, theirs)]

    def _values(self, side: int, step: int) -> dict[str, Float64s]:
        given = at_step(self._runs[side], step, self._steps)
        return {name: each.values() for name, each in given.parameters.items()} if given else {}

    def _initial(self, values: Mapping[str, Float64s]) -> dict[str, Float64s]:
        """The weights that the step began with, laid out like those that it gave, as far as names tell."""
        mapped = self._names | {b: a for a, b in self._names.items()}
        found = {}
        for name, value in values.items():
            weight = self._weights.get(name) or self._weights.get(mapped.get(name, name))
            axes = None if weight is None else _axes(value, weight.values())
            if weight is not None and axes is not None:
                found[name] = weight.values().transpose(axes)
        return found

    def tensors(self, step: int, settled: Sequence[Settled]) -> Far | None:
        """The gradients after clipping: what the functions gave, or else what the clip calls left."""
        sides = []
        for ran, each in zip(self._runs, settled, strict=True):
            given = at_step(ran, step, self._steps)
            held = (given.gradients if given else None) or each.clipped.get(step, {})
            sides.append({name: dense.values() for name, dense in held.items()})
        return self._far(sides[0], sides[1], sides[0], sides[1])

    def update(self, step: int) -> Far | None:
        """In units in the last place of the parameters: those round what is added to them."""
        now = [self._values(side, step) for side in (0, 1)]
        before = [self._values(side, step - 1) if step > 1 else self._begin[side] for side in (0, 1)]
        if all(len(ran.given) == 1 for ran in self._runs):
            before = self._begin
        updates = [
            {name: each - before[side][name] for name, each in now[side].items() if name in before[side]}
            for side in (0, 1)
        ]
        return self._far(updates[0], updates[1], now[0], now[1])

    def _far(
        self,
        ours: Mapping[str, Float64s],
        theirs: Mapping[str, Float64s],
        our_scale: Mapping[str, Float64s],
        their_scale: Mapping[str, Float64s],
    ) -> Far | None:
        found = []
        for name, other in self._names.items():
            axes = self._axes[name]
            if name in ours and other in theirs and axes is not None:
                scale = max(_greatest(our_scale[name]), _greatest(their_scale[other]))
                found.append(Far(apart(ours[name], theirs[other].transpose(axes), scale), name))
        return max(found, key=lambda far: far.distance, default=None)


def _as_parameters(values: Mapping[str, Float64s]) -> dict[str, Parameter]:
    return {name: Parameter(shape=each.shape, norm=0.0) for name, each in values.items()}


def _axes(ours: Float64s, theirs: Float64s) -> tuple[int, ...] | None:
    """The order of axes in which the second tensor is most like the first; None where its shape does not fit."""
    orders = [axes for axes in itertools.permutations(range(theirs.ndim)) if theirs.transpose(axes).shape == ours.shape]
    return min(orders, key=lambda axes: float(np.abs(ours - theirs.transpose(axes)).max(initial=0.0)), default=None)


def apart(ours: Float64s, theirs: Float64s, scale: float) -> Distance:
    """How far two tensors are from each other: the greatest difference of two numbers.

    In units in the last place of the greatest number `scale`, in float32, and relative to the greatest number: what
    frameworks round differently are sums, whose error goes by their greatest term, and not by what is left of it.
    """
    differ = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
    if not differ.any():
        return NOTHING
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours[differ] - theirs[differ])
    if not np.isfinite(difference).all():
        return Distance(math.inf, math.inf)
    greatest = float(difference.max())
    unit = float(np.spacing(np.float32(min(scale, parting.GREATEST))))
    return Distance(greatest / unit, greatest / max(_greatest(ours), _greatest(theirs)))


def _greatest(values: Float64s) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0))
