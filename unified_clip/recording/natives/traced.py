"""Record the clips and steps of optax, and of Keras on JAX, whenever a compiled graph runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.7
    from jax.core import get_opaque_trace_state

from ..dispatcher import DISPATCHER
from ..lines import caller
from .hooks import HOOKS, RecordingHook
from .native_call import NativeCall, ObservedTensors
from .observer import OBSERVER


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
    is_conditional: bool = False


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

    def clips(self, until: TracedEvent | None, *, is_met: bool) -> int:
        """Return the number of clips before an event, or of all clips."""
        events = self.events[: self.events.index(until)] if until in self.events else self.events
        return sum(each.clips for each in events if is_met or not each.is_conditional)


class TracedOrder:
    """Count the clips before each step."""

    def __init__(self) -> None:
        self.condition: Any = None
        """Whether the code that is traced has an effect, such as an optimizer that may only add up gradients."""

        self._reset()
        HOOKS.on_switch(self._reset, self._reset)

    def _reset(self) -> None:
        self._program = TracedProgram()
        self._eager = 0  # clips outside of graphs
        self._running: tuple[TracedProgram, bool] | None = None
        self._reported: set[TracedEvent] = set()
        self._counted = 0
        """The clips of the running program that the last step has counted, minus those that no step has counted."""

    def on_clips(self, count: int, key: object = None) -> None:
        if _trace() == TOP:
            self._eager += count
        else:
            self._add(key or caller(), count)

    def on_step(self, key: object) -> TracedEvent:
        return self._add(key, 0)

    def _add(self, key: object, clips: int) -> TracedEvent:
        jax.effects_barrier()  # the steps of an earlier program show that it has been traced
        if self._program.has_run:
            self._program = TracedProgram()
        event = TracedEvent((key, bool(clips)), _trace(), self._program, clips, self.condition is not None)
        self._program.add(event)
        return event

    def clips_before(self, step: TracedEvent, *, is_met: bool) -> int | None:
        """Return the number of clips since the previous step, or None if the step has no effect."""
        program, step.program.has_run = step.program, True
        if self._running is None or self._running[0] is not program or step in self._reported:
            if self._running is not None:  # the clips after the last step of the run before
                self._counted -= self._running[0].clips(None, is_met=self._running[1])
            self._running, self._reported = (program, is_met), set()
        self._reported.add(step)
        clips = program.clips(step, is_met=is_met) - self._counted + self._eager
        if not is_met:
            return None
        self._counted, self._eager = self._counted + clips - self._eager, 0
        return clips


REPORT_CALL = RecordingHook("a clip of a JAX graph", "a call in a graph")
REPORT_STEP = RecordingHook("a step of a JAX graph", "a step of an optimizer")

TRACED = TracedOrder()
DISPATCHER.on_jax_clips = TRACED.on_clips


@contextlib.contextmanager
def only_if(condition: Any) -> Iterator[None]:
    """Clips and steps inside have an effect only if the condition is met."""
    outer = TRACED.condition
    TRACED.condition = condition if outer is None else jnp.logical_and(outer, condition)
    try:
        yield
    finally:
        TRACED.condition = outer


def report_step(key: object, receive: Callable[..., None], numbers: Sequence[Any]) -> None:
    """`receive` gets the number of clips since the previous step, and the values of `numbers`.

    key: Identifies the optimizer.
    """
    OBSERVER.wait_with(jax.effects_barrier)
    step = TRACED.on_step(key)

    def report(is_met: Any, *values: Any) -> None:
        if (clips := TRACED.clips_before(step, is_met=bool(is_met))) is not None:
            receive(clips, *values)

    jax.debug.callback(REPORT_STEP.guarded(report), _condition(), *numbers)


def _condition() -> Any:
    return True if TRACED.condition is None else TRACED.condition


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
    OBSERVER.wait_with(jax.effects_barrier)
    TRACED.on_clips(1, key)
    place = caller()

    def receive(is_met: Any, value: Any, *arrays: Any) -> None:
        if is_met:
            observed = ObservedTensors.from_arrays(arrays, [len(part) for part in parts], names)
            OBSERVER.record(describe(value), replace(observed, place=place))

    needs = OBSERVER.needs()
    parts = (before, after if needs.results else (), weights if needs.leaves else ())
    arrays = [array for part in parts for array in part]
    receive_call = REPORT_CALL.guarded(receive)
    if isinstance(threshold, jax.Array):
        jax.debug.callback(receive_call, _condition(), threshold, *arrays)
    else:  # a Python number, recorded as it was passed, not rounded to float32
        jax.debug.callback(lambda is_met, *values: receive_call(is_met, threshold, *values), _condition(), *arrays)
