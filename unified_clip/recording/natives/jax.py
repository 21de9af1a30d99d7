"""Record calls on JAX, at once or whenever a traced function runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from .base import Observer
from .evidence import NativeCall, ObservedTensors


def report_call(
    observer: Observer,
    describe: Callable[[Any], NativeCall],
    threshold: Any,
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
) -> None:
    """Record a call, at once or each time its compiled graph runs. No tensor may be None.

    describe: A function that returns the settings of the call for the value of `threshold`.
    """
    observer.wait_with(jax.effects_barrier)

    def receive(value: Any, *arrays: Any) -> None:
        observed = ObservedTensors.from_arrays(arrays, [len(part) for part in parts], names)
        observer.record(describe(value), observed)

    needs = observer.needs()
    parts = (before, after if needs.results else (), weights if needs.leaves else ())
    arrays = [array for part in parts for array in part]
    if isinstance(threshold, jax.Array):
        jax.debug.callback(receive, threshold, *arrays)
    else:  # a Python number, recorded as it was passed, not rounded to float32
        jax.debug.callback(partial(receive, threshold), *arrays)
