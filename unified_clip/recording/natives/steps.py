"""Record the steps of optimizers: the settings of each step, and the number of backward passes before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..dispatcher import DISPATCHER
from .hooks import HOOKS


class StepWatcher:
    """A counter of backward passes, which records each step of an optimizer."""

    def __init__(self) -> None:
        self._reset()
        HOOKS.on_switch(self._reset, self._reset)

    def _reset(self) -> None:
        """Forget the steps before a recording."""
        self._backward_calls = 0
        self._is_cleared: Callable[[], bool] | None = None
        self._cleared: bool | None = None

    def before_backward(self) -> None:
        """Count a backward pass. At the first backward pass after a step, find out whether the gradients were cleared
        since the step.
        """
        self._backward_calls += 1
        if self._is_cleared is not None:
            self._cleared, self._is_cleared = self._is_cleared(), None

    def after_step(self, optimizer: str, settings: Mapping[str, Any], is_cleared: Callable[[], bool]) -> None:
        """Record a step. `is_cleared` returns whether the gradients that it used are None or zero."""
        fields = {
            "optimizer": optimizer,
            "settings": {name: value for name, raw in settings.items() if (value := _plain(raw)) is not None},
            "backward_calls": self._backward_calls,
            "cleared": self._cleared,
        }
        self._backward_calls, self._cleared, self._is_cleared = 0, None, is_cleared
        for recording in DISPATCHER.natives:
            recording.add_optimizer_step(fields)


def _plain(value: Any) -> Any:
    """Return a number, bool or list of numbers for JSON; None for anything else."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        numbers = [_plain(each) for each in value]
        return None if None in numbers else numbers
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if math.isnan(number) else number
