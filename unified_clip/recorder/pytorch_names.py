"""Find the names of PyTorch's parameters, and detect code that changes gradients."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

import torch

from .hooks import HOOKS, OUTPUT, RecordingHook
from .lines import unique_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    State = tuple[int, int]
    """(id of a gradient, number of in-place changes)."""


KEEPS_OBJECTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (1, 9)
"""Whether `.grad` is the same Python object as long as the gradient exists."""


def gradient_state(gradient: Any) -> State:
    return (id(gradient) if KEEPS_OBJECTS else gradient.data_ptr()), gradient._version


class NamesByTensor:
    """A dict of tensors, which cannot be the keys of a dict: == compares their elements. It keeps no tensor alive."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[ref[Any], str | None]] = {}

    def __contains__(self, tensor: Any) -> bool:
        found = self._items.get(id(tensor))
        return found is not None and found[0]() is tensor  # a new tensor can have the `id` of a deleted one

    def get(self, tensor: Any) -> str | None:
        return self._items[id(tensor)][1] if tensor in self else None

    def add(self, tensor: Any, name: str | None) -> None:
        self._items[id(tensor)] = (ref(tensor), name)

    def names(self) -> set[str]:
        return {name for tensor, name in self._items.values() if name is not None and tensor() is not None}


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
        self._recorded_calls = OUTPUT.recorded_calls

    def add(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer

    def optimizers(self) -> list[Any]:
        return list(self._optimizers.values())

    def store(self) -> None:
        self._recorded_calls = OUTPUT.recorded_calls
        self._states, self._clipped = self._all_states(), {}

    def store_clipped(self, call: str) -> None:
        is_in_place = call.endswith("_")  # other functions return the clipped gradients
        self._clipped = self._all_states() if is_in_place else {}

    def _all_states(self) -> dict[int, State]:
        return {key: state for optimizer in self._optimizers.values() for key, state in _states(optimizer)}

    def count_changed(self, optimizer: Any) -> int | None:
        if not self._states or self._recorded_calls != OUTPUT.recorded_calls:
            return None
        return _count_changed((self._states.get(key), state) for key, state in _states(optimizer))

    def count_changed_after_clip(self, optimizer: Any) -> int | None:
        """Each clip is compared with one step."""
        return _count_changed((self._clipped.pop(key, None), state) for key, state in _states(optimizer))


def _count_changed(pairs: Iterable[tuple[State | None, State]]) -> int | None:
    known = [before != after for before, after in pairs if before is not None]
    return sum(known) if known else None


def _states(optimizer: Any) -> Iterator[tuple[int, State]]:
    for parameter in _listed(trained_by, optimizer):
        if parameter.grad is not None:
            yield id(parameter), gradient_state(parameter.grad)


SEARCHED = (torch.nn.Module, torch.nn.Parameter, torch.optim.Optimizer)

SEARCH = RecordingHook("names of parameters", "the names of parameters")

MOST_SEARCHES = 8
"""Stop after this number of consecutive searches that found no new name. A search is slow in a large program."""


class ModelNames:
    """The names of the parameters that optimizers train."""

    def __init__(self) -> None:
        self._names = NamesByTensor()
        self._begin()
        HOOKS.on_switch(self._begin, self._begin)

    def _begin(self) -> None:
        self._reset()
        self._unique = NamesByTensor()

    def _reset(self) -> None:
        self._vain_searches = 0

    def name_of(self, parameter: Any) -> str | None:
        if not isinstance(parameter, torch.nn.Parameter):
            return None
        if parameter not in self._names and self._vain_searches < MOST_SEARCHES:
            self._vain_searches += 1
            SEARCH.run(self._search)
            if parameter not in self._names:
                self._names.add(parameter, None)
        name = self._names.get(parameter)
        if name is not None and parameter not in self._unique:  # two models are told apart by their first use
            self._unique.add(parameter, unique_name(name, self._unique.names()))
        return self._unique.get(parameter)

    def _search(self) -> None:
        """Give each parameter the name that it has in the smallest model with this parameter."""
        objects = _objects(SEARCHED)
        trained = {id(each) for optimizer in objects for each in _listed(trained_by, optimizer)}
        modules = [each for each in objects if issubclass(type(each), torch.nn.Module)]
        inner = {id(child) for module in modules for child in _listed(torch.nn.Module.children, module)}
        models = [_listed(type(each).named_parameters, each) for each in modules if id(each) not in inner]
        for name, parameter in (item for model in sorted(models, key=len) for item in model):
            if id(parameter) in trained and parameter not in self._names:
                self._names.add(parameter, name)
                self._reset()
        for each in objects:
            if id(each) in trained and each not in self._names:
                self._names.add(each, None)


def _objects(classes: type | tuple[type, ...]) -> list[Any]:
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, classes)}  # `isinstance` may run code
    return [each for each in objects if type(each) in kinds]


def trained_by(optimizer: Any) -> Iterator[Any]:
    if issubclass(type(optimizer), torch.optim.Optimizer):
        for group in optimizer.param_groups:
            yield from group["params"]


def _listed(read: Callable[[Any], Iterable[Any]], owner: Any) -> list[Any]:
    """Return [] after an error, because an incompletely initialized object can raise any error."""
    try:
        return list(read(owner))
    except Exception:  # its parameters then have positions as names
        return []
