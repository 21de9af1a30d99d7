"""Find the names of PyTorch's parameters, and detect code that changes gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..._core.names import unique_name
from ..dispatcher import DISPATCHER
from .hooks import HOOKS, RecordingHook

State = tuple[int, int]
"""(id of a gradient, number of in-place changes)."""


class GradientVersions:
    """Use PyTorch's counter of in-place changes to detect gradients that changed after the last backward pass, or after
    the last clip."""

    def __init__(self) -> None:
        self._optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by `id`: some have no hash
        self._reset()
        HOOKS.on_switch(self._begin, self._reset)

    def _begin(self) -> None:
        self._reset()
        for each in _objects(torch.optim.Optimizer):  # scripts can create optimizers before the recording
            self.add(each)

    def _reset(self) -> None:
        self._states: dict[int, State] = {}
        self._clipped: dict[int, State] = {}
        self._recorded_calls = DISPATCHER.recorded_calls

    def add(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer

    def optimizers(self) -> list[Any]:
        return list(self._optimizers.values())

    def store(self) -> None:
        self._recorded_calls = DISPATCHER.recorded_calls
        self._states, self._clipped = self._all_states(), {}

    def store_clipped(self, call: str) -> None:
        is_in_place = call.endswith("_")  # other functions return the clipped gradients
        self._clipped = self._all_states() if is_in_place else {}

    def _all_states(self) -> dict[int, State]:
        return {key: state for optimizer in self._optimizers.values() for key, state in _states(optimizer)}

    def count_changed(self, optimizer: Any) -> int | None:
        if not self._states or self._recorded_calls != DISPATCHER.recorded_calls:
            return None
        return _count_changed((self._states.get(key), state) for key, state in _states(optimizer))

    def count_changed_after_clip(self, optimizer: Any) -> int | None:
        """Each clip is compared with one step."""
        return _count_changed((self._clipped.pop(key, None), state) for key, state in _states(optimizer))


def _count_changed(pairs: Iterable[tuple[State | None, State]]) -> int | None:
    known = [before != after for before, after in pairs if before is not None]
    return sum(known) if known else None


def _states(optimizer: Any) -> Iterator[tuple[int, State]]:
    for parameter in _listed(_trained_by, optimizer):
        if parameter.grad is not None:
            yield id(parameter), (id(parameter.grad), parameter.grad._version)


SEARCHED = (torch.nn.Module, torch.nn.Parameter, torch.optim.Optimizer)

SEARCH = RecordingHook("names of parameters", "the names of parameters")

MOST_SEARCHES = 8
"""Stop after this number of consecutive searches that found no new name. A search is slow in a large program."""


class ModelNames:
    """The names of the parameters that optimizers train."""

    def __init__(self) -> None:
        self._names: MutableMapping[Any, str | None] = WeakIdKeyDictionary()
        self._begin()
        HOOKS.on_switch(self._begin, self._begin)

    def _begin(self) -> None:
        self._reset()
        self._unique: MutableMapping[Any, str] = WeakIdKeyDictionary()

    def _reset(self) -> None:
        self._vain_searches = 0

    def name_of(self, parameter: Any) -> str | None:
        if not isinstance(parameter, torch.nn.Parameter):
            return None
        if parameter not in self._names and self._vain_searches < MOST_SEARCHES:
            self._vain_searches += 1
            SEARCH.run(self._search)
            self._names.setdefault(parameter, None)
        name = self._names.get(parameter)
        if name is not None and parameter not in self._unique:  # two models are told apart by their first use
            self._unique[parameter] = unique_name(name, {*self._unique.values()})
        return self._unique.get(parameter)

    def _search(self) -> None:
        """Give each parameter the name that it has in the smallest model with this parameter."""
        objects = _objects(SEARCHED)
        trained = {id(each) for optimizer in objects for each in _listed(_trained_by, optimizer)}
        modules = [each for each in objects if issubclass(type(each), torch.nn.Module)]
        inner = {id(child) for module in modules for child in _listed(torch.nn.Module.children, module)}
        models = [_listed(type(each).named_parameters, each) for each in modules if id(each) not in inner]
        new: MutableMapping[Any, str] = WeakIdKeyDictionary()
        for name, parameter in (item for model in sorted(models, key=len) for item in model):
            if id(parameter) in trained and parameter not in self._names:
                new.setdefault(parameter, name)
        self._names.update(new)
        if new:
            self._reset()
        for each in objects:
            if id(each) in trained:
                self._names.setdefault(each, None)


def _objects(classes: type | tuple[type, ...]) -> list[Any]:
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, classes)}  # `isinstance` may run code
    return [each for each in objects if type(each) in kinds]


def _trained_by(optimizer: Any) -> Iterator[Any]:
    if issubclass(type(optimizer), torch.optim.Optimizer):
        for group in optimizer.param_groups:
            yield from group["params"]


def _listed(read: Callable[[Any], Iterable[Any]], owner: Any) -> list[Any]:
    """Return [] after an error, because an incompletely initialized object can raise any error."""
    try:
        return list(read(owner))
    except Exception:  # its parameters then have positions as names
        return []
