"""Record the clips and steps of optax, and of Keras on JAX, whenever a compiled graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.7
    from jax.core import get_opaque_trace_state

from ...recorder.clips import NativeCall, record_call, rows_of
from ...recorder.hooks import HOOKS, OUTPUT, RecordingHook
from ...recorder.lines import caller
from ..dispatcher import DISPATCHER


def _trace() -> object:
    return get_opaque_trace_state(convention="flax")


TOP = _trace()
"""The state outside of graphs."""


@dataclass(eq=False)
class TracedEvent:
    """A clip call with its number of clips, or a step, which has none."""

    key: object
    trace: object
    program: TracedProgram
    clips: int = 0
    runs: int | None = None
    """How often it has run, or None if nothing reports this."""


@dataclass(eq=False)
class TracedProgram:
    """What JAX traces until the first step runs, in the order of the code. A compiled graph can report it in another
    order."""

    events: list[TracedEvent] = field(default_factory=list)
    has_run: bool = False

    def add(self, event: TracedEvent) -> None:
        """JAX can trace the same code several times, and run only the last trace."""
        for place, earlier in enumerate(self.events):
            if earlier.key == event.key and earlier.trace != event.trace:
                self.events[place] = event
                return
        self.events.append(event)

    def clips(self, until: TracedEvent | None = None) -> int:
        """Return the number of clips before an event, or of all clips."""
        events = self.events[: self.events.index(until)] if until in self.events else self.events
        return sum(each.clips for each in events)

    def runs_everything(self) -> bool:
        """Return whether all events have run equally often, in any order, as outside of conditions and loops."""
        runs = [each.runs for each in self.events if each.runs is not None]
        return max(runs) - min(runs) <= 1


class TracedOrder:
    """Count the clips before each step."""

    def __init__(self) -> None:
        self._reset()
        HOOKS.on_switch(self._reset, self._reset)

    def _reset(self) -> None:
        self._program = TracedProgram()
        self._eager = 0  # clips outside of graphs
        self._running: TracedProgram | None = None
        self._reported: set[TracedEvent] = set()
        self._counted = 0
        """The clips of the running program that the last step has counted, minus those that no step has counted."""

    def on_clips(self, count: int, key: object = None) -> TracedEvent | None:
        if _trace() == TOP:
            self._eager += count
            return None
        return self._add(key or caller(), count)

    def on_eager_step(self) -> None:
        """Outside of graphs, the order of the lines is that of the code."""
        self._eager = 0

    def on_step(self, key: object) -> TracedEvent:
        event = self._add(key, 0)
        event.runs = 0
        return event

    def _add(self, key: object, clips: int) -> TracedEvent:
        jax.effects_barrier()  # the steps of an earlier program show that it has been traced
        if self._program.has_run:
            self._program = TracedProgram()
        event = TracedEvent((key, bool(clips)), _trace(), self._program, clips)
        self._program.add(event)
        return event

    def clips_before(self, step: TracedEvent) -> int | None:
        """Return the number of clips since the previous step, or None if a condition or loop hides their order."""
        program, step.program.has_run = step.program, True
        step.runs = (step.runs or 0) + 1
        if self._running is not program or step in self._reported:
            if self._running is not None:  # the clips after the last step of the run before
                self._counted -= self._running.clips()
            self._running, self._reported = program, set()
        self._reported.add(step)
        place = program.clips(step)
        clips = place - self._counted + self._eager
        self._counted, self._eager = place, 0
        return clips if clips >= 0 and program.runs_everything() else None


REPORT_CALL = RecordingHook("a clip of a JAX graph", "a call in a graph")
REPORT_STEP = RecordingHook("a step of a JAX graph", "a step of an optimizer")

TRACED = TracedOrder()
DISPATCHER.on_jax_clips = TRACED.on_clips


def report_step(key: object, receive: Callable[..., None], numbers: Sequence[Any]) -> None:
    """`receive` gets the number of clips since the previous step, or None, and the values of `numbers`.

    key: Identifies the optimizer.
    """
    DISPATCHER.wait_with(jax.effects_barrier)
    if _trace() == TOP:
        jax.effects_barrier()  # the clips of earlier graphs come first
        TRACED.on_eager_step()
        REPORT_STEP.guarded(partial(receive, None))(*map(np.asarray, numbers))
        return
    step = TRACED.on_step(key)
    jax.debug.callback(REPORT_STEP.guarded(lambda *values: receive(TRACED.clips_before(step), *values)), *numbers)


def report_call(
    describe: Callable[[Any], NativeCall],
    threshold: Any,
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
    key: object = None,
) -> None:
    """`before`, `after` and `weights` must not contain None.

    key: Identifies the call. The default is its line.
    """
    DISPATCHER.wait_with(jax.effects_barrier)
    event, place = TRACED.on_clips(1, key), caller()
    if event is not None:
        event.runs = 0

    def receive(value: Any, *arrays: Any) -> None:
        if event is not None:
            event.runs = (event.runs or 0) + 1
        rest, call = map(np.asarray, arrays), describe(value)
        gradients, results, of_weights = ([next(rest) for _ in part] for part in parts)
        rows = rows_of(call, gradients, of_weights, names)
        record_call(call, rows, place, results=[*map(OUTPUT.copy, results)])

    parts = (before, after if OUTPUT.stores_results else (), weights if OUTPUT.norms else ())
    arrays = [array for part in parts for array in part]
    receive_call = REPORT_CALL.guarded(receive)
    if isinstance(threshold, jax.Array):
        jax.debug.callback(receive_call, threshold, *arrays)
    else:  # a Python number, recorded as it was passed, not rounded to float32
        jax.debug.callback(partial(receive_call, threshold), *arrays)
