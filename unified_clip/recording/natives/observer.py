"""Record calls of the frameworks' own clip functions."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..._dispatch import adapter_of, resolve
from ...recorder.clips import NativeCall, describe_call
from ...recorder.guard import Call, Observer
from ...recorder.hooks import OUTPUT
from ...tensors.types import Dense
from ..dispatcher import DISPATCHER
from .native_call import ObservedTensors, line_fields, norm_of_rows, read, stored
from .native_event import CallTensors, NativeEvent

Recording = Any
CallRecorder = Any
"""Classes of `recorder`. This module cannot import `recorder`, which imports this package."""


class Needs(NamedTuple):
    results: bool  # whether a recording stores the gradients
    leaves: bool  # whether a recording needs the name, the norm and the weight of each gradient


class NativeCallObserver:
    def __init__(self) -> None:
        self._thread = threading.local()

    @contextmanager
    def outermost(self) -> Iterator[bool]:
        """Yield False inside a recorded call, and inside a function of unified_clip."""
        if getattr(self._thread, "inside", False) or DISPATCHER.running:
            yield False
            return
        self._thread.inside = True
        try:
            yield True
        finally:
            self._thread.inside = False

    def around(self, observe: Observer) -> Observer:
        def observe_outermost(call: Call) -> Iterator[None]:
            with self.outermost() as is_outermost:
                yield from observe(call) if is_outermost else ran(call)

        return observe_outermost

    def needs(self) -> Needs:
        recordings = DISPATCHER.natives
        return Needs(any(each.stores_results for each in recordings), any(each.needs_leaves for each in recordings))

    def wait_with(self, wait: Callable[[], object]) -> None:
        for recording in DISPATCHER.natives:
            recording.wait_with(wait)

    def record(self, call: NativeCall, observed: ObservedTensors) -> None:
        weights = [None if each is None else _array(each) for each in observed.weights]
        running = RunningNativeCall(
            call,
            list(map(_array, observed.before)),
            weights,
            observed.names,
            observed,
            returns_norm=observed.returned_norm is not None,
        )
        running.end((), observed.returned_norm)


class RunningNativeCall:
    def __init__(
        self,
        call: NativeCall,
        before: Sequence[Any],
        weights: Sequence[Any] = (),
        names: Sequence[str] = (),
        observed: ObservedTensors | None = None,
        returns_norm: bool = False,
    ) -> None:
        recordings = DISPATCHER.natives if before else ()
        self._call, self._names, self._observed = call, names, observed
        self._parameters = weights if observed is None and call.threshold != math.inf else ()
        self._evidence = [recording for recording in recordings if recording.stores_results]
        if self._evidence and observed is None:
            self._before, self._weights = list(map(read, before)), list(map(read, weights))
        self._events: list[tuple[CallRecorder, NativeEvent]] = []
        if observed is not None and observed.is_gradient is False:
            return
        for recording in recordings:
            if not recording.stores_results:
                recorder = recording.begin(call.name, observed.place if observed else None)
                known = recording.names_of(observed.sources) if observed else [None] * len(names)
                own = [name or other for name, other in zip(known, names, strict=True)] if any(known) else names
                tensors = CallTensors(resolve(before)[0], before, weights, own)
                event = NativeEvent(call, tensors, recorder, returns_norm)
                event.fields["is_gradient"] = observed is None or observed.is_gradient
                if observed and observed.sparse:
                    event.fields["sparse"] = observed.sparse
                    if (stored_norm := norm_of_rows(call, observed)) is not None:
                        event.fields["stored_norm"] = stored_norm
                self._events.append((recorder, event))

    def end(self, after: Sequence[Any], returned_norm: Any = None) -> None:
        """`after` is ignored if `__init__` got `observed`."""
        for recorder, event in self._events:
            event.end(returned_norm)
            recorder.events = [event]
            recorder.end(None, None)
        OUTPUT.report_clipped(self._call.name, self._parameters)
        if not self._evidence:
            return
        observed = self._observed
        if observed is None:
            observed = ObservedTensors(self._before, list(map(read, after)), self._weights, self._names)
        for recording in self._evidence:
            results = (stored(observed, tensors) for tensors in (observed.before, observed.after))
            recording.add(line_fields(self._call, observed), *results)

    def fail(self, error: BaseException | None) -> None:
        for recorder, _ in self._events:
            recorder.end(None, error)


def _array(dense: Dense) -> Any:
    """Convert bfloat16 to float32, because NumPy has no bfloat16."""
    return dense.values().astype(np.float32) if dense.dtype == "bfloat16" else dense.array


OBSERVER = NativeCallObserver()


def without_none(before: Sequence[Any], *others: Sequence[Any]) -> list[list[Any]]:
    places = [index for index, each in enumerate(before) if each is not None]
    return [[each[index] for index in places] if each else [] for each in (before, *others)]


def ran(call: Call) -> Iterator[None]:
    yield


def clip_parameters(
    called: Call,
    value_of: Callable[[Any], Any] = lambda norm: norm,
    on_empty: Callable[[Sequence[Any]], object] = lambda parameters: None,
    inner: Observer = ran,
) -> Iterator[None]:
    """The first argument must be the parameters."""
    function = called.function
    framework = function.__module__.partition(".")[0]
    arguments = called.arguments
    passed = next(iter(arguments.values()))
    parameters = list(passed) if adapter_of(type(passed)) is None else [passed]
    clipped = [parameter for parameter in parameters if getattr(parameter, "grad", None) is not None]
    names = [parameter.name for parameter in clipped] if framework == "paddle" else ()
    if not clipped:
        on_empty(parameters)
    call = describe_call(framework, function.__name__, arguments)
    returns_norm = call.rule == "global" and call.passed_norm is None
    before = [parameter.grad for parameter in clipped]
    running = RunningNativeCall(call, before, clipped, names, returns_norm=returns_norm)
    try:
        yield from inner(called)
    except GeneratorExit:
        running.fail(called.error)
        raise
    running.end([parameter.grad for parameter in clipped], value_of(called.result) if returns_norm else None)
