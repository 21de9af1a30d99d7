"""Find gradients of PyTorch that unrecorded code changes between a backward pass and a step, as a clip by hand does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from ..dispatcher import DISPATCHER
from .hooks import HOOKS

State = tuple[int, int]
"""The identity of a gradient, and how often code changed it in place."""


class GradientVersions:
    """The identity and the version of each gradient at the end of the last backward pass, or after it was unscaled.

    PyTorch raises the version of a tensor with each change in place.
    """

    def __init__(self) -> None:
        self._optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by `id`: some have no hash
        self._reset()
        HOOKS.on_switch(self._reset, self._reset)

    def _reset(self) -> None:
        self._states: dict[int, State] = {}
        self._recorded_calls = DISPATCHER.recorded_calls

    def add(self, optimizer: Any) -> None:
        """Include the parameters of an optimizer from the next backward pass on."""
        self._optimizers[id(optimizer)] = optimizer

    def store(self) -> None:
        """Store the identity and the version of each gradient. Call this at the end of a backward pass."""
        self._recorded_calls = DISPATCHER.recorded_calls
        self._states = {key: state for optimizer in self._optimizers.values() for key, state in _states(optimizer)}

    def count_changed(self, optimizer: Any) -> int | None:
        """Return how many gradients of an optimizer changed since the backward pass.

        Gradients that are new since then do not count. Return None if the number is unknown, or if a call was recorded
        since then, which may have changed the gradients.
        """
        if not self._states or self._recorded_calls != DISPATCHER.recorded_calls:
            return None
        pairs = [(self._states.get(key), state) for key, state in _states(optimizer)]
        known = [before != after for before, after in pairs if before is not None]
        return sum(known) if known else None


def _states(optimizer: Any) -> Iterator[tuple[int, State]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield id(parameter), (id(parameter.grad), parameter.grad._version)
