"""A clipper for one model, which counts steps and keeps the last outcome."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import _dispatch
from .._api import groups
from .._api.framework import Resolve
from .._api.groups import Outcome
from .._core import containers, entry
from .._core.backend import Backend
from .._core.collect import (
    ParamGrads,
    collect_in_one_pass,
    collect_in_place,
    collected_in_place,
    from_tree,
    in_place,
    listed,
    read_pairs,
)
from .._core.containers import Tree
from .._core.distributed import INFERRED, DistributedSpec
from .._core.gradients import GradientList, Writer
from .._core.names import as_mapping
from .._core.types import Leaf, Tensor
from ..errors import NothingClippedError
from .adaptive import AdaptiveStates, States
from .outcome import ClipOutcome, Traced
from .schema import Settings
from .selection import ParameterSelection, consecutive_ranges, copied_names
from .steps import STATE_VERSION, Step, checked_step, loaded_step, resolve_step, threshold_at

INSTEAD = "the ClipConfig itself, clip(grads)"

WINDOW = 100

Collected = tuple[GradientList, Writer, list[range]]
"""(gradients, writer of the results, indices of the gradients of each of `settings.parts`)."""


class Clipper:
    """Clips the gradients of one model as a configuration describes.

    `names` can be a function that returns the name of a `Leaf`.
    """

    recorded_as = "ClipConfig"

    def __init__(
        self,
        settings: Settings,
        names: Any = None,
        *,
        details: bool = False,
        spec: DistributedSpec = INFERRED,
        unmatched: str = "",
        all_names: Sequence[str] = (),
        resolve: Resolve = _dispatch.resolve,
    ) -> None:
        names = as_mapping(names)
        self.settings, self.details, self.spec = settings, details, spec
        self._arguments: dict[str, Any] = {"settings": settings, "names": names, "details": details, "spec": spec}
        self._arguments |= {"unmatched": unmatched}
        self._resolve, self._selection = resolve, ParameterSelection(settings, names, unmatched)
        self.declare_names(all_names)
        self._parts = parts = settings.parts
        # a clip by value compares numbers, but complex numbers have no order
        self._needs_order = all(part.rule == "value" for part in parts)
        self._is_simple = settings.allows_one_list and not details
        self._titles = titles = [*(group.name for group in settings.groups), ""]
        self._adaptive = AdaptiveStates(
            {title: part.adaptive for title, part in zip(titles, parts, strict=True) if part.adaptive}
        )
        self._options: dict[str, Any] = {"reject_complex": self._needs_order, "spec": spec, "measures": "total"}
        self._step, self._counting = 0, threading.Lock()
        self._last: ClipOutcome | None = None
        self._recent: deque[ClipOutcome] = deque(maxlen=WINDOW)

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["arguments"])  # type: ignore[misc]
        self.load_state_dict(state["state"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Clipper:
        copied = type(self)(**{**self._arguments, "names": copied_names(self._arguments["names"], memo)})
        copied.load_state_dict(self.state_dict())
        return copied

    def state_dict(self) -> dict[str, Any]:
        """Return the step number and the states of adaptive rules, in a form that JSON files can contain."""
        with self._adaptive.lock:
            step, current = self._step, dict(self._adaptive.current)
        return {"version": STATE_VERSION, "step": step, "adaptive": self._adaptive.save(current)}

    def data(self, step: int, packed: Sequence[Tensor]) -> dict[str, Any]:
        """Return the dict that `state_dict` returns for this step and these states."""
        states = self._adaptive.save(dict(zip(self._adaptive.current, packed, strict=True)))
        return {"version": STATE_VERSION, "step": step, "adaptive": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned. The state can come from another framework."""
        step = loaded_step(state)
        self._adaptive.load(state["adaptive"])
        self._step = step

    def declare_names(self, names: Sequence[str]) -> None:
        """Add parameter names. Patterns that match one of these names cause no warning."""
        self._arguments["all_names"] = names
        self._selection.declare(names)

    # Not by `entry.public`: until this package has seen a tensor of Paddle, Paddle translates the source of methods.

    def __call__(self, grads: Any, *, step: Any = None, parameters: Any = None) -> Any:
        return entry.run(Clipper._call, self, grads, step, parameters)

    def _call(self, grads: Any, step: Any, parameters: Any) -> Any:
        return self._clip_container(grads, step, parameters)[0]

    def current_states(self, backend: Backend) -> list[Tensor]:
        return self._adaptive.to_packed(self._adaptive.current, backend)

    def traced(self, grads: Any, *, step: Any = None, states: Sequence[Tensor] = (), parameters: Any = None) -> Traced:
        """Return the clipped gradients and the outcome as tensors that a compiled graph can return."""
        return entry.run(Clipper._traced, self, grads, step, states, parameters)

    def _traced(self, grads: Any, step: Any, states: Sequence[Tensor], parameters: Any) -> Traced:
        backend, grads = self._resolve(grads)
        given = self._adaptive.from_packed(states, backend)
        result, outcome = self._clip_container(grads, step, parameters, given)
        coef, finite = groups.smallest_coefficient(outcome), groups.all_finite(outcome)
        self._advance_states(given, outcome)
        return Traced(result, outcome.norm, coef, finite, self._adaptive.to_packed(given, backend))

    def _clip_container(
        self, grads: Any, step: Any, parameters: Any, states: States | None = None
    ) -> tuple[Any, Outcome]:
        backend, grads = self._resolve(grads)
        step = resolve_step(backend, step, self._step)
        one_by_one = self.settings.uses_names or self.spec.is_given
        plain, arrange = None, self._selection.group_leaves
        if self._is_simple and step.is_known() and not one_by_one:
            plain = collect_in_one_pass(backend, grads, "ClipConfig", arrange=arrange, reuse_unchanged=True)
        if plain is not None:
            gradients, writer = plain
            outcome = self._clip(backend, gradients, [range(len(gradients.values))], step, states)
            if outcome.skipped:
                writer.drop()
            return writer.result(), outcome
        tree = containers.flatten(backend, grads)
        for leaf in tree.leaves:
            if backend.is_parameter(leaf.tensor):
                raise TypeError(f"{leaf.place} is a parameter. Pass gradients, or pass the parameters to clip_.")
        leaves = tree.leaves if parameters is None else containers.with_parameters(backend, tree.leaves, parameters)
        results, outcome = self._clip_leaves(backend, leaves, step, states, differentiable=True)
        return tree.rebuild(results), outcome

    def clip_(self, parameters: Any, *, step: Any = None) -> Tensor:
        return entry.run(Clipper._clip_, self, parameters, step)

    def _clip_(self, parameters: Any, step: Any) -> Tensor:
        backend, parameters = self._resolve(parameters)
        step, parameters = resolve_step(backend, step, self._step), listed(parameters)
        gradients, writer, ranges = self._collect(backend, parameters, step)
        if self.settings.nonfinite == "skip" and backend.parameters is None:
            containers.check_replaceable(backend, parameters, "clip_ with nonfinite = 'skip'", "clip(grads)")
        outcome = self._clip(backend, gradients, ranges, step)
        if outcome.skipped:
            writer.drop()
        writer.finish()
        return outcome.norm

    def pairs(self, params_grads: Iterable[Any], *, step: Any = None) -> ParamGrads:
        return entry.run(Clipper._pairs, self, params_grads, step)

    def _pairs(self, params_grads: Iterable[Any], step: Any) -> ParamGrads:
        backend, params_grads = self._resolve(params_grads)
        leaves, indices = read_pairs(backend, params_grads)
        results, _ = self._clip_leaves(backend, leaves, resolve_step(backend, step, self._step), differentiable=False)
        pairs = [(leaf.parameter, result) for leaf, result in zip(leaves, results, strict=True)]
        return [(b, a) if index else (a, b) for index, (a, b) in zip(indices, pairs, strict=True)]

    @property
    def last(self) -> ClipOutcome:
        """The outcome of the last clip. Before the first clip, this property raises NothingClippedError."""
        if self._last is None:
            raise NothingClippedError(
                "nothing has been clipped yet, so this object's `last` has no outcome. Clip first. If you clip with "
                "an object that attach_to(), clipper() or as_paddle() returned, read `last` of that object. With "
                "as_optax(), call `last(state)` of unified_clip.integrations.optax_transforms."
            )
        return self._last

    @property
    def rate(self) -> float | None:
        """The share of the last 100 clips that changed a gradient. Clips with `clipped=None` are not counted."""
        with self._counting:
            recent = tuple(self._recent)
        clipped = [outcome.clipped for outcome in recent if outcome.clipped is not None]
        return sum(clipped) / len(clipped) if clipped else None

    @property
    def step(self) -> int:
        """The step number of the next clip, counted from 0."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = checked_step(step)

    def _collect(self, backend: Backend, parameters: Any, step: Step) -> Collected:
        is_simple, uses_names = self._is_simple and step.is_known(), self.settings.uses_names
        parts = None
        if uses_names and backend.parameters is not None:
            parts = self._selection.parameters(parameters)  # also checks the names
        if parts is not None and is_simple and not self.spec.is_given:
            collected = self._collect_parts(backend, backend.parameters, parameters, parts)
            if collected is not None:
                return collected
        in_one_pass = is_simple and not uses_names
        collect = collect_in_place if in_one_pass else in_place
        options: dict[str, Any] = {"arrange": self._selection.group_leaves, **self._options}
        gradients, writer = collect(backend, parameters, "clip_", INSTEAD, **options)
        everything = [range(len(gradients.values))]
        return gradients, writer, everything if in_one_pass else self._selection.group_ranges(gradients)

    def _collect_parts(
        self, backend: Backend, on_parameters: Any, parameters: Any, parts: Sequence[Sequence[Any]]
    ) -> Collected | None:
        """Collect the gradients without a `Leaf` for each gradient. Return None if this is not possible."""
        *included, excluded = parts
        if on_parameters.any_sharded(excluded):
            return None
        whole = on_parameters.collect_parameters([parameter for part in included for parameter in part])
        if whole is None:
            return None
        lengths = [sum(on_parameters.gradient_of(parameter) is not None for parameter in part) for part in included]
        ranges = consecutive_ranges(lengths)
        if ranges[-1].stop != len(whole.tensors):
            return None
        return *collected_in_place(backend, whole, parameters, "clip_", self._selection.group_leaves), ranges

    def _clip_leaves(
        self,
        backend: Backend,
        leaves: Sequence[Leaf],
        step: Step,
        states: States | None = None,
        *,
        differentiable: bool,
    ) -> tuple[list[Any], Outcome]:
        members = Tree(self._selection.group_leaves(leaves), list)
        options: dict[str, Any] = {"differentiable": differentiable, "parameters": leaves, **self._options}
        gradients, writer = from_tree(backend, members, reuse_unchanged=True, **options)
        ranges = self._selection.group_ranges(gradients)
        outcome = self._clip(backend, gradients, ranges, step, states)
        if outcome.skipped:
            return [None] * len(leaves), outcome
        results = {leaf.position: leaf.tensor for leaf in leaves}
        results.update(zip((leaf.position for leaf in members.leaves), writer.result(), strict=True))
        return [results[leaf.position] for leaf in leaves], outcome

    def _clip(
        self,
        backend: Backend,
        gradients: GradientList,
        ranges: Sequence[range],
        step: Step,
        states: States | None = None,
    ) -> Outcome:
        """Clip gradients, and store the outcome as `last`. Calls in compiled graphs are not counted.

        `ranges[i]` has the indices of the gradients of `settings.parts[i]`.
        """
        with self._adaptive.lock_for(gradients, states):
            return self._clip_parts(backend, gradients, ranges, step, states)

    def _clip_parts(
        self, backend: Backend, gradients: GradientList, ranges: Sequence[range], step: Step, states: States | None
    ) -> Outcome:
        settings, own_parts = self.settings, self._parts
        current = self._adaptive.current if states is None else states
        thresholds = [threshold_at(part, step.value) for part in own_parts]
        for index, (title, part) in enumerate(zip(self._titles, own_parts, strict=True)):
            if part.adaptive is not None and (len(ranges[index]) or gradients.shards is not None):
                thresholds[index] = self._adaptive.threshold(title, current, thresholds[index])
        rules = [part.as_clip_rule(threshold) for part, threshold in zip(own_parts, thresholds, strict=True)]
        parts = list(zip(ranges, rules, strict=True))
        gradients.function = "ClipConfig"
        groups.check_order(backend, gradients, parts)
        known, inputs = (step.value, ()) if step.is_known() else (None, (step.value,))
        options: dict[str, Any] = {"details": self.details, "patterns": self._selection.patterns, "step": known}
        outcome = groups.clip(gradients, parts, settings.nonfinite, inputs=inputs, **options)
        in_graph = not outcome.path.on_host and outcome.path.in_graph([outcome.n])
        if in_graph and settings.uses_names:  # a graph makes one call for all steps
            self._selection.check_now()
        if in_graph and step.is_counted and settings.has_schedule:
            raise TypeError(
                "the threshold has a schedule, but a clip inside a compiled graph cannot count its calls. Pass "
                "step=step to the clip, where step is a tensor argument of the compiled function. Or clip in the "
                "optimizer, which counts its steps: attach_to(optimizer), as_optax(optimizer) or as_paddle()."
            )
        if in_graph and states is None and current:
            raise TypeError(
                "the threshold is adaptive, but a clip inside a compiled graph cannot keep its state. Clip in the "
                "optimizer, which keeps the state: attach_to(optimizer) or as_optax(optimizer). Or use the functions "
                "of unified_clip.adaptive: docs/adaptive.md lists the calls."
            )
        named = gradients.leaves if outcome.per_tensor else []
        names = [leaf._replace(name=self._selection.name(leaf)).title for leaf in named]
        dtypes = [{backend.dtype(gradients.values[index]) for index in group} for group, _ in parts]
        self._last = ClipOutcome(outcome, known, settings, parts, names, dtypes)
        if step.is_known() and not in_graph:
            with self._counting:
                self._recent.append(self._last)
                self._step = (self._step if step.is_counted else step.value) + 1
                if states is None and current:
                    self._advance_states(current, outcome)
        return outcome

    def _advance_states(self, states: States, outcome: Outcome) -> None:
        """A group without gradients keeps its state."""
        for title, norms in zip(self._titles, outcome.norms, strict=True):
            if norms and norms[0].state is not None:
                states[title] = norms[0].state
