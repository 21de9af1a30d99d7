"""A configuration at work: which gradient is clipped by what, at which step, and what happened."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _dispatch
from .._core import checks, classes, containers, entry, plan
from .._core.containers import Leaf, Tree
from .._core.entry import public
from .._core.functions import Resolver
from .._core.gradients import (
    Functional,
    GivenObjects,
    Gradients,
    InPlace,
    SameObjects,
    Whole,
    WholeSame,
    together,
)
from .._core.ops import Ops, Path, Scalar, Tensor
from .._core.plan import Limit, Outcome, Part
from .._core.shards import HERE_OR_TOLD, Across
from ..errors import NothingClippedError
from . import schedules
from .fields import ConfigModel
from .outcome import ClipOutcome
from .schema import Clipping, Settings
from .selection import ParameterSelection

INSTEAD = "the configuration itself, clip(grads)"

WINDOW = 100
"""Over how many of the last clips a rate is taken."""


class Traced(NamedTuple):
    """Clipped gradients, and what happened, as 0-d tensors of their framework."""

    gradients: Any
    norm: Tensor
    coef: Tensor
    """The smallest."""

    finite: Tensor
    """1 where the total norm and those of all parts are finite, else 0."""


class Step(NamedTuple):
    """The step of a call."""

    value: Any
    """A whole number, or a tensor that only a graph knows."""

    is_counted: bool
    """Whether nobody said which, so that calls are counted."""

    @property
    def is_known(self) -> bool:
        return isinstance(self.value, int)


class Clipper:
    """A configuration at work on one model.

    Args:
        settings: What to do.
        names: What to call the parameters, for patterns: a list of names by position, a dict of name to parameter, or a
            model that has `named_parameters()`. None: the keys of dicts and the names in pairs, TensorFlow's and
            Paddle's names of parameters.
        details: Measure the norm of every gradient too, for `last.parameters`; it reads all gradients once more.
        across: What is stated about the processes that hold the gradients.
        unmatched: What to do about a pattern that matches no name, as the end of an error. "": a warning instead.
    """

    recorded_as = "ClipConfig"

    def __init__(
        self,
        settings: Settings,
        names: Any = None,
        *,
        details: bool = False,
        across: Across = HERE_OR_TOLD,
        unmatched: str = "",
        resolve: Resolver = _dispatch.resolve,
    ) -> None:
        self.settings, self.details, self.across = settings, details, across
        self._names, self._resolve, self._selection = names, resolve, ParameterSelection(settings, names, unmatched)
        self._unmatched = unmatched
        self._step = 0
        self._last: ClipOutcome | None = None
        self._recent: deque[ClipOutcome] = deque(maxlen=WINDOW)
        self._counting = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on at the same step, and knows of nothing that has happened."""
        given = {"settings": self.settings, "names": self._names, "details": self.details, "across": self.across}
        given["unmatched"] = self._unmatched
        return {"given": given, "step": self._step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["given"])  # type: ignore[misc]
        self._step = state["step"]

    # -- clipping

    @public
    def __call__(self, grads: Any, *, step: Any = None) -> Any:
        """Clip gradients: a list, a dict or any container of tensors and None; new ones are returned in such another.

        A gradient that is left alone is the object that was given. Where the step is skipped, each is None.
        """
        return self._called(grads, step)[0]

    @public
    def traced(self, grads: Any, *, step: Any = None) -> Traced:
        """The same, and what happened as tensors, for whoever keeps that in the state of an optimizer, graphs included.

        `step` may be a tensor that only a graph knows.
        """
        result, outcome = self._called(grads, step)
        return Traced(result, outcome.norm, plan.smallest_coefficient(outcome), plan.all_finite(outcome))

    def _called(self, grads: Any, step: Any) -> tuple[Any, Outcome]:
        ops, grads = self._resolve(grads)
        step = self._known(ops, step)
        is_plain = self._is_simple(step) and not (
            self.settings.uses_names or self._needs_order or self.across.is_stated
        )
        found = containers.plain_items(grads) if is_plain else None
        whole = ops.whole_of_tensors(found[0], differentiable=True, in_place=False) if found else None
        if found is not None and whole is not None:
            plain = WholeSame(whole, *found)
            outcome = self._clip(ops, plain, [range(len(plain.values))], step)
            return plain.result(), outcome
        tree = containers.flatten(ops, grads)
        for leaf in tree.leaves:
            if ops.is_parameter(leaf.tensor):
                raise TypeError(
                    f"{leaf.place} is a parameter, and gradients are clipped here; pass the gradients, or the "
                    "parameters to clip_"
                )
        members = Tree(self._selection.group_leaves(tree.leaves), list)
        gradients = GivenObjects(
            ops, members, order=self._needs_order, across=self.across, parameters=tree.leaves, measures=True
        )
        results, outcome = self._results(ops, tree.leaves, gradients, step)
        return tree.rebuild(results), outcome

    @public
    def clip_(self, parameters: Any, *, step: Any = None) -> Tensor:
        """Clip in place, as `clip_grad_norm_` does, and return the total norm before clipping."""
        ops, parameters = self._resolve(parameters)
        step = self._known(ops, step)
        if isinstance(parameters, Iterator):
            parameters = list(parameters) or iter(())
        quick = self._quick(ops, parameters, step)
        if quick is not None:
            outcome = self._clip(ops, *quick, step)
            quick[0].finish()
            return outcome.norm
        in_place = InPlace(
            ops,
            parameters,
            "clip_",
            INSTEAD,
            order=self._needs_order,
            arrange=self._selection.group_leaves,
            across=self.across,
            measures=True,
        )
        if self.settings.nonfinite == "skip" and not ops.gradients_on_parameters:
            containers.check_replaceable(ops, parameters, "clip_ with nonfinite = 'skip'", "clip(grads)")
        outcome = self._clip(ops, in_place, self._selection.group_ranges(in_place), step)
        if outcome.skipped:
            in_place.drop()
        in_place.finish()
        return outcome.norm

    @public
    def pairs(self, params_grads: Iterable[Any], *, step: Any = None) -> classes.Pairs:
        """Clip the gradients of (parameter, gradient) pairs, as optimizers have them."""
        ops, params_grads = self._resolve(params_grads)
        leaves, indices = classes.read_pairs(ops, params_grads)
        members = Tree(self._selection.group_leaves(leaves), list)
        gradients = SameObjects(
            ops, members, order=self._needs_order, across=self.across, parameters=leaves, measures=True
        )
        results, _ = self._results(ops, leaves, gradients, self._known(ops, step))
        pairs = [(leaf.parameter, result) for leaf, result in zip(leaves, results, strict=True)]
        return [(b, a) if index else (a, b) for index, (a, b) in zip(indices, pairs, strict=True)]

    # -- what happened

    @property
    def last(self) -> ClipOutcome:
        """What happened at the last clip."""
        if self._last is None:
            raise NothingClippedError("nothing has been clipped yet; clip first, then ask for what happened")
        return self._last

    @property
    def rate(self) -> float | None:
        """The share of the last 100 clips (or fewer) that changed a gradient; None where that is known of none."""
        with self._counting:
            recent = tuple(self._recent)
        known = [last.clipped for last in recent]
        clipped = [each for each in known if each is not None]
        return sum(clipped) / len(clipped) if clipped else None

    @property
    def step(self) -> int:
        """How many steps have been made, which is the step of the next clip: thresholds may depend on it."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = _checked_step(step)

    # -- how

    def _is_simple(self, step: Step) -> bool:
        """Whether nothing has to be known of any one gradient but its name."""
        nonfinite, parts = self.settings.nonfinite, self.settings.parts
        apart = any(p.rule == "norm" and (p.norm_type not in (None, 2.0) or nonfinite == "zero") for p in parts)
        return step.is_known and not self.details and not apart and nonfinite in ("family", "zero")

    def _quick(self, ops: Ops, parameters: Any, step: Step) -> tuple[Whole | InPlace, list[range]] | None:
        """Gradients in place that are found in one go, or need no names; and where each part is among them."""
        by_name = self.settings.uses_names and ops.gradients_on_parameters
        found = self._selection.parameters(parameters) if by_name else None
        if not self._is_simple(step):
            return None
        if not self.settings.uses_names:
            gradients = together(
                ops,
                parameters,
                "clip_",
                INSTEAD,
                plain=True,
                order=self._needs_order,
                across=self.across,
                measures=True,
            )
            return gradients, [range(len(gradients.values))]
        if found is None or self.across.is_stated:
            return None
        *listed, left_out = found  # which may tell of other processes all the same
        whole = None if ops.tell_shards(left_out) else ops.whole_of_parameters([p for part in listed for p in part])
        if whole is None:
            return None
        lengths = [sum(ops.gradient_of(each) is not None for each in part) for part in listed]
        ends = list(itertools.accumulate(lengths))
        ranges = [range(end - length, end) for length, end in zip(lengths, ends, strict=True)]
        return (Whole(whole), ranges) if ends[-1] == len(whole.tensors) else None

    @property
    def _needs_order(self) -> bool:
        """Whether all gradients are clipped by value, so that none may be complex."""
        return all(part.rule == "value" for part in self.settings.parts)

    def _known(self, ops: Ops, step: Any) -> Step:
        """The step, as a number where it is known."""
        entry.leave(
            "a clip configuration counts its steps; clip outside the graph, or by a function of unified_clip.torch"
        )
        if step is None:
            return Step(self._step, True)
        if not ops.is_tensor(step):
            return Step(_checked_step(step), False)
        if ops.shape(ops.adopt(step)) not in ((), (1,)):
            raise ValueError("step is a tensor of several elements, or of none; pass one whole number")
        value = ops.read(ops.adopt(step))
        known = int(value) if value is not None and math.isfinite(value) and value == int(value) else value
        return Step(step if value is None else _checked_step(known), False)

    def _results(
        self, ops: Ops, leaves: Sequence[Leaf], gradients: Functional, step: Step
    ) -> tuple[list[Any], Outcome]:
        """For all leaves, those that were left out included."""
        outcome = self._clip(ops, gradients, self._selection.group_ranges(gradients), step)
        if outcome.skipped:
            return [None] * len(leaves), outcome
        found = {leaf.position: leaf.tensor for leaf in leaves}
        members = gradients.tree.leaves
        found.update(zip((leaf.position for leaf in members), gradients.result(), strict=True))
        return [found[leaf.position] for leaf in leaves], outcome

    def _clip(self, ops: Ops, gradients: Gradients, ranges: Sequence[range], step: Step) -> Outcome:
        settings = self.settings
        limits = [_limit(part, step.value) for part in settings.parts]
        parts = [part.part(limit) for part, limit in zip(settings.parts, limits, strict=True)]
        used = list(zip(ranges, parts, strict=True))
        gradients.function = "ClipConfig"
        _check_order(ops, gradients, used)
        others = () if step.is_known else (step.value,)
        outcome = plan.clip(
            gradients,
            used,
            settings.nonfinite,
            others=others,
            details=self.details,
            chosen=self._selection.patterns,
            step=step.value if step.is_known else None,
        )
        in_graph = not outcome.path.on_host and outcome.path.in_graph([outcome.n])
        if in_graph and step.is_counted and any(isinstance(part.threshold, ConfigModel) for part in settings.parts):
            raise TypeError(
                "the threshold has a schedule, and inside a graph calls are not counted; pass step=, a tensor that the "
                "graph is given, or use the integration with the optimizer"
            )
        names = [self._selection.name(leaf) or str(leaf.position) for leaf in gradients.leaves]
        dtypes = [{ops.dtype(gradients.values[index]) for index in group} for group, _ in used]
        self._last = ClipOutcome(outcome, step.value if step.is_known else None, settings, used, names, dtypes)
        if step.is_known and not in_graph:
            with self._counting:
                self._recent.append(self._last)
                self._step = (self._step if step.is_counted else step.value) + 1
        return outcome


class Reporting:
    """What has a clipper says what happened, as the clipper does."""

    _clipper: Clipper

    @property
    def last(self) -> ClipOutcome:
        """What happened at the last clip."""
        return self._clipper.last

    @property
    def rate(self) -> float | None:
        """The share of the last 100 clips (or fewer) that changed a gradient; None where that is known of none."""
        return self._clipper.rate


def _checked_step(step: Any) -> int:
    if not isinstance(step, int) or isinstance(step, bool):
        raise TypeError(f"step is {step!r}; pass a whole number, or a tensor of one")
    if step < 0:
        raise ValueError(f"step is {step}; steps are counted from 0")
    return step


def _check_order(ops: Ops, gradients: Gradients, parts: Sequence[tuple[range, Part]]) -> None:
    """Complex gradients have none, and cannot be clipped by value."""
    for group, part in parts:
        for leaf in gradients.leaves[group.start : group.stop] if part.kind == "value" else ():
            checks.gradient_dtype(ops.dtype(leaf.tensor), leaf, order=True)


def _limit(part: Clipping, step: Any) -> Limit:
    """A threshold at a step; where only a graph knows the step, how to find it."""
    threshold = part.threshold
    if threshold is None:
        return float("inf")
    if isinstance(step, int):
        return schedules.threshold_at(threshold, step)
    if isinstance(threshold, float):
        return threshold

    def limit(path: Path) -> Scalar:
        found = schedules.evaluate(threshold, path.constant(step), path.where, path.cosine, path.constant)
        return path.single(found) if isinstance(threshold, schedules.Ramp) else found

    return limit
