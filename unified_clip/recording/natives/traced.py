"""Record the clips and steps of optax, and of Keras on JAX, whenever a compiled graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from ..dispatcher import DISPATCHER
from ..lines import caller
from .hooks import HOOKS, RecordingHook
from .native_call import NativeCall, ObservedTensors
from .observer import OBSERVER


@dataclass
class TracedStep:
    """`before` and `after` count the clips around an optimizer step."""

    before: int
    after: int = 0
    has_run: bool = False


class TracedOrder:
    """The order of clips and steps while JAX traces. A compiled graph can report clips and steps in another order."""

    def __init__(self) -> None:
        self._reset()
        HOOKS.on_switch(self._reset, self._reset)

    def _reset(self) -> None:
        self._clips, self._after = 0, 0
        self._step: TracedStep | None = None

    def on_clips(self, count: int) -> None:
        if self._step is not None and not self._step.has_run:
            self._step.after += count
        else:
            self._clips += count

    def on_step(self) -> TracedStep:
        self._step = TracedStep(self._clips)
        self._clips = 0
        return self._step

    def clips_before(self, step: TracedStep) -> int:
        step.has_run = True
        clips, self._after = step.before + self._after, step.after
        return clips


REPORT_CALL = RecordingHook("a clip of a JAX graph", "a call in a graph")
REPORT_STEP = RecordingHook("a step of a JAX graph", "a step of an optimizer")

TRACED = TracedOrder()
DISPATCHER.on_jax_clips = TRACED.on_clips


def report_step(receive: Callable[..., None], numbers: Sequence[Any]) -> None:
    """`receive` gets the number of clips since the previous step, and the values of `numbers`."""
    OBSERVER.wait_with(jax.effects_barrier)
    step = TRACED.on_step()
    jax.debug.callback(REPORT_STEP.guarded(lambda *values: receive(TRACED.clips_before(step), *values)), *numbers)


def report_call(
    describe: Callable[[Any], NativeCall],
    threshold: Any,
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
) -> None:
    """`before`, `after` and `weights` must not contain None."""
    OBSERVER.wait_with(jax.effects_barrier)
    TRACED.on_clips(1)
    place = caller()

    def receive(value: Any, *arrays: Any) -> None:
        observed = ObservedTensors.from_arrays(arrays, [len(part) for part in parts], names)
        OBSERVER.record(describe(value), replace(observed, place=place))

    needs = OBSERVER.needs()
    parts = (before, after if needs.results else (), weights if needs.leaves else ())
    arrays = [array for part in parts for array in part]
    receive_call = REPORT_CALL.guarded(receive)
    if isinstance(threshold, jax.Array):
        jax.debug.callback(receive_call, threshold, *arrays)
    else:  # a Python number, recorded as it was passed, not rounded to float32
        jax.debug.callback(partial(receive_call, threshold), *arrays)
