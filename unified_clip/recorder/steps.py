"""Record the steps of optimizers."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary, ref

from .hooks import HOOKS, OUTPUT, RecordingHook
from .lines import caller, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SETTINGS = (
    "lr", "momentum", "dampening", "nesterov", "weight_decay", "betas", "alpha", "centered", "eps", "eps_in_sqrt",
    "amsgrad", "maximize", "initial_accumulator_value",
)  # fmt: skip
"""The recorded settings of optimizers."""

MOST_LOSSES = 1024

UNSCALED = "_unified_clip_unscaled"
"""The hook for Keras stores the unscaled loss in this attribute of the scaled loss."""

LOSS_SCALE = "_unified_clip_loss_scale"
"""The hook for Keras stores the factor in this attribute of the scaled loss."""


BACKWARD, LOSS, STEP = "a backward pass", "a loss", "a step of an optimizer"

READ_LOSS = RecordingHook("read a loss", LOSS)
"""A recording reads a loss after the backward pass, so that the device can compute it."""


class Losses:
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], float | None]] = deque(maxlen=MOST_LOSSES)
        HOOKS.on_switch(self._waiting.clear, self._waiting.clear)

    def add(self, read: Callable[[], Any]) -> None:
        """Keep `read`, which waits for the device to compute the loss, for the next optimizer step."""
        scale = OUTPUT.loss_scale

        def loss() -> float | None:
            number, factor = plain(read()), scale()
            return None if number is None else float(number) / (factor or 1.0)

        self._waiting.append(loss)

    def take(self) -> list[float]:
        losses: list[float | None] = []
        while self._waiting:
            losses.append(READ_LOSS.run(self._waiting.popleft()))
        return [loss for loss in losses if loss is not None]


LOSSES = Losses()


class ClippedGradient(NamedTuple):
    parameter: ref[Any]  # the recording keeps no parameter alive
    times: int  # the number of clips since the last backward pass that changed the gradient
    state: object
    call: int  # the number of the last clip call
    is_used: bool = False  # whether a step has used the gradient


class ClipCounts:
    """Count the clips of each gradient between its backward pass and the steps that use it."""

    def __init__(
        self,
        state_of: Callable[[Any], object],
        is_parameter: Callable[[Any], bool],
        is_cleared: Callable[[Any], bool],
    ) -> None:
        """state_of: Return a value that changes with the gradient of a parameter.

        is_cleared: Return whether the gradient of a parameter is None or zero."""
        self._state_of, self._is_parameter, self.is_cleared = state_of, is_parameter, is_cleared
        self.reset()

    def reset(self) -> None:
        self._clipped: dict[int, ClippedGradient] = {}  # by the `id` of the parameter
        self._early: dict[int, ClippedGradient] = {}  # clipped since the last step, but before the last backward pass
        self._dropped: dict[int, ClippedGradient] = {}  # clipped since the last step, and then cleared
        self._calls = 0
        self._are_known, self._has_stepped = True, False

    def add(self, parameters: Sequence[Any]) -> None:
        """A call that gets gradients without their parameters passes None or the gradients."""
        self._calls += 1
        for each in parameters:
            if each is None or not self._is_parameter(each):
                self._are_known = False
            else:
                times = self.times(each) + 1
                self._clipped[id(each)] = ClippedGradient(ref(each), times, self._state_of(each), self._calls)

    def times(self, parameter: Any) -> int:
        clipped = _of(self._clipped, parameter)
        is_old = clipped is None or (clipped.is_used and clipped.state != self._state_of(parameter))
        return 0 if clipped is None or is_old else clipped.times

    def before_backward(self) -> None:
        """Forget gradients that a step has used, and gradients that were cleared, for example by a skipped step."""
        self._are_known, self._has_stepped = self._are_known or self._has_stepped, False
        self._clipped = {key: each for key, each in self._clipped.items() if not each.is_used}
        self._move({key: each for key, each in self._changed() if self.is_cleared(each.parameter())}, self._dropped)

    def after_backward(self) -> None:
        self._move({key: each for key, each in self._changed() if not each.is_used}, self._early)

    def _changed(self) -> list[tuple[int, ClippedGradient]]:
        living = [(key, each, each.parameter()) for key, each in self._clipped.items()]
        return [(key, each) for key, each, owner in living if owner is not None and self._state_of(owner) != each.state]

    def _move(self, clipped: Mapping[int, ClippedGradient], reason: dict[int, ClippedGradient]) -> None:
        reason.update(clipped)
        for key in clipped:
            del self._clipped[key]

    def take(self, parameters: Sequence[Any], name_of: Callable[[Any], str | None]) -> dict[str, Any]:
        """Return the fields of a step that updates these parameters."""
        fields: dict[str, Any] = {"gradients": len(parameters)}
        times = {id(each): self.times(each) for each in parameters}
        clipped = [key for key, number in times.items() if number]
        if self._are_known:
            fields["clip_counts"] = dict(sorted(Counter(times.values()).items()))
            is_partial = clipped or OUTPUT.recorded_calls  # otherwise, nobody needs the names
            unclipped = [name_of(each) for each in parameters if is_partial and not times[id(each)]]
            fields.update({"unclipped": unclipped} if unclipped and None not in unclipped else {})
            early = sum(bool(_of(self._early, each) or self._was_dropped(each)) for each in parameters)
            fields.update({"clipped_early": early} if early else {})
            calls = len({self._clipped[key].call for key in clipped})
            fields.update({"clip_calls": calls} if calls > 1 else {})
        for key in clipped:
            self._clipped[key] = self._clipped[key]._replace(is_used=True)
        for key in times:
            self._early.pop(key, None)
            self._dropped.pop(key, None)
        self._has_stepped = True
        return fields

    def _was_dropped(self, parameter: Any) -> bool:
        """Return whether a clip was lost, and no later one replaced it."""
        return _of(self._dropped, parameter) is not None and not self.times(parameter)


def _of(clipped: Mapping[int, ClippedGradient], parameter: Any) -> ClippedGradient | None:
    """A new parameter can have the `id` of a deleted one."""
    found = clipped.get(id(parameter))
    return found if found is not None and found.parameter() is parameter else None


class StepWatcher:
    def __init__(self, clips: ClipCounts, trained_by: Callable[[Any], Iterable[Any]]) -> None:
        """trained_by: Return the parameters of an optimizer."""
        self.clips, self._trained_by = clips, trained_by
        self._begin()
        HOOKS.on_switch(self._begin, self._begin)

    def _begin(self) -> None:
        self._stepped: dict[int, ref[Any]] = {}  # by the `id` of the optimizer
        self._cleared: dict[int, bool] = {}  # whether the first backward pass of this step began without gradients
        self.raw: dict[int, Any] = {}  # the gradients after the last backward pass, by the `id` of the parameter
        self.scaling_ends()
        self.clips.reset()
        self._reset()

    def _reset(self) -> None:
        self._backward_calls = 0
        self.changed: int | None = None  # number of gradients that unrecorded code changed
        self.changed_after_clip: int | None = None
        self.tensors: dict[str, Any] | None = None  # the gradients and weights that the step gets
        self._empty_clips: list[tuple[bool, int]] = []  # (whether the clip got parameters, earlier backward passes)

    def before_backward(self) -> None:
        self._backward_calls += 1
        self.clips.before_backward()
        if self._backward_calls == 1:
            living = {key: optimizer() for key, optimizer in self._stepped.items()}
            self._cleared = {  # a deleted optimizer counts as cleared
                key: own is None or all(map(self.clips.is_cleared, self._trained_by(own)))
                for key, own in living.items()
            }

    def skip_step(self) -> None:
        """Forget what belongs to a step that is not recorded."""
        self._reset()

    def on_empty_clip(self, parameters: Sequence[Any]) -> None:
        self._empty_clips.append((bool(parameters), self._backward_calls))

    def around_unscaling(
        self, parameters: Sequence[Any], row_of: Callable[[Any], Any], scale: float, where: Callable[..., Any]
    ) -> Iterator[None]:
        """Keep the gradients of a backward pass without their loss scale, which is taken away while this waits. The
        script may have changed the scaled gradients."""
        before = list(map(row_of, parameters))
        yield
        self.scaling_ends()
        for each, old, new in zip(parameters, before, list(map(row_of, parameters))):
            raw = self.raw.get(id(each))
            if raw is None or self.clips.times(each):
                self.raw[id(each)] = new
            else:
                self.raw[id(each)] = where((raw == old).all(), new, raw / scale)

    def add_raw(self, tensors: dict[str, Any], raw: Mapping[str, Any]) -> None:
        """Call this only if no recorded clip changes the gradients."""
        rows = {name: row.tolist() for name, row in raw.items() if row is not None}
        self.changed = count_changed(tensors, rows, self.changed or 0)

    def scaling_begins(self, loss_scale: Callable[[], Any]) -> None:
        OUTPUT.loss_scale = lambda: plain(loss_scale())

    def scaling_ends(self) -> None:
        OUTPUT.loss_scale = lambda: None

    def after_step(
        self,
        optimizer: Any,
        name: str,
        settings: Mapping[str, Any],
        fields: Mapping[str, Any],
        parameters: Sequence[Any],
        name_of: Callable[[Any], str | None],
    ) -> None:
        """parameters: The parameters with a gradient."""
        key = id(optimizer)
        passes: dict[str, Any] = {"backward_calls": self._backward_calls, "cleared": self._cleared.get(key), **fields}
        passes.update({**self.clips.take(parameters, name_of), **names_of_step(map(name_of, parameters))})
        for field in ("changed", "changed_after_clip", "tensors"):
            if getattr(self, field) is not None:
                passes[field] = getattr(self, field)
        if self._empty_clips:
            passes["empty_clips"] = len(self._empty_clips)
            if (False, self._backward_calls) in self._empty_clips:
                passes["empty_because"] = "no parameters"
            elif parameters and (True, self._backward_calls) in self._empty_clips:
                passes["empty_because"] = "other parameters"
        self._reset()
        self._stepped[key] = ref(optimizer)
        record_step(name, settings, passes, key)


class ReturnedClips:
    """Which tensors clips took, and which tensors steps got, in frameworks whose clips return new tensors.

    Pass only tensors whose numbers cannot change: the same variable or buffer can have other numbers at the step.
    """

    def __init__(self) -> None:
        self._taken: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._names: dict[int, str] = {}
        self._used: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def fields_of_clip(self, before: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """before: Names, or empty texts, and gradients. The gradients of two parameters can be one tensor."""
        named = list(before)
        self._taken.update((id(each), each) for _, each in named)
        self._names = {key: name for key, name in self._names.items() if key in self._taken}
        self._names.update((id(each), name) for name, each in named)
        return {"late": True} if any(self._used.get(id(each)) is each for _, each in named) else {}

    def fields_of_step(self, gradients: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        lost = sum(self._taken.get(id(each)) is each and self._names.get(id(each)) == name for name, each in gradients)
        return {"lost_clips": lost} if lost else {}

    def step_ends(self, gradients: Iterable[Any]) -> None:
        self._used.update((id(each), each) for each in gradients)


RETURNED_CLIPS = ReturnedClips()

INSTANCES: dict[int, int] = {}
"""{`id` of an optimizer: its number in the recording}."""
HOOKS.on_switch(INSTANCES.clear, INSTANCES.clear)


def record_step(optimizer: str, settings: Mapping[str, Any], passes: Mapping[str, Any], key: int) -> None:
    """Only numeric settings are recorded. `key` is the `id` of the optimizer."""
    numbers = {name: plain(raw) for name, raw in settings.items()}
    known = {name: value for name, value in numbers.items() if value is not None}
    instance = INSTANCES.setdefault(key, len(INSTANCES) + 1)
    fields = {"optimizer": optimizer, "instance": instance, "settings": known, "place": caller(), **passes}
    fields["losses"] = LOSSES.take()
    for recording in OUTPUT.recordings:
        recording.add_line(fields)


def paddle_settings(optimizer: Any, weight_decay: Any) -> dict[str, Any]:
    is_momentum = {"Momentum", "MomentumOptimizer"} & {kind.__name__ for kind in type(optimizer).__mro__}
    return {
        "momentum": getattr(optimizer, "_momentum", None),
        "dampening": 0.0 if is_momentum else None,
        "nesterov": getattr(optimizer, "_use_nesterov", None),
        "betas": [getattr(optimizer, "_beta1", None), getattr(optimizer, "_beta2", None)],
        "alpha": getattr(optimizer, "_rho", None),
        "centered": getattr(optimizer, "_centered", None),
        "eps": getattr(optimizer, "_epsilon", None),
        "initial_accumulator_value": getattr(optimizer, "initial_accumulator_value", None),
        "amsgrad": getattr(optimizer, "_amsgrad", None),
        "weight_decay": weight_decay,
    }


def rate_factor(parameter: Any) -> float:
    factor = (getattr(parameter, "optimize_attr", None) or {}).get("learning_rate", 1.0)
    return float(factor) if isinstance(factor, (int, float)) else 1.0


def of_groups(values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0] if values else None
    return [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]


def names_of_step(names: Iterable[str | None]) -> dict[str, list[str]]:
    listed = list(names)
    known = [canonical(name) for name in listed if name] if OUTPUT.norms and all(listed) else []
    unique = [name if known.count(name) == 1 else f"{name}#{place}" for place, name in enumerate(known)]
    return {"parameters": unique} if known else {}


def tensor_at_step(shape: Sequence[int], gradient: Sequence[float], weight: Sequence[float] | None) -> dict[str, Any]:
    """gradient: The elements of the sample, and the norm."""
    *sample, norm = gradient
    weights = {} if weight is None else {"weight_sample": list(weight)}
    return {"shape": list(shape), "norm": norm, "sample": sample, **weights}


def count_changed(tensors: dict[str, Any], raw: Mapping[str, Sequence[float]], known: int = 0) -> int | None:
    """Return how many gradients differ from those after the backward pass, or None if some of these are unknown. If any
    gradient differs, add the samples after the backward pass.

    raw: {parameter: the elements of the sample, and the norm}
    known: How many gradients have changed at least."""
    changed = max(known, sum(not _is_same(row[:-1], tensors[name]["sample"]) for name, row in raw.items()))
    for name, (*sample, norm) in raw.items() if changed else ():
        tensors[name].update({"raw_sample": sample, "raw_norm": norm})
    return changed if changed or (tensors and raw.keys() == tensors.keys()) else None


def _is_same(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(left == right or (left != left and right != right) for left, right in zip(a, b))  # NaN is the same


def rates_by_name(rates: Iterable[tuple[str | None, Any]]) -> dict[str, Any]:
    """Return {"rates": {name: learning rate}}, or {} if a name is unknown or all rates are equal."""
    known = {name and canonical(name): plain(rate) for name, rate in rates} if OUTPUT.norms else {}
    return {} if {None} & {*known, *known.values()} or len({*known.values()}) < 2 else {"rates": known}


def plain(value: Any) -> Any:
    """Convert a value for JSON. If this is not possible, return None. NaN in a tensor becomes None, and NaN as a
    Python float stays NaN."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        numbers = [plain(each) for each in value]
        return None if None in numbers else numbers
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if math.isnan(number) else number
