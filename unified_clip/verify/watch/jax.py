"""Record calls on JAX, at once or whenever a traced function runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from .base import NativeCall, ObservedTensors, Observer


def report_call(
    observer: Observer,
    describe: Callable[[Any], NativeCall],
    threshold: Any,
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
) -> None:
    """Record a call. `describe` returns its settings for the value of the threshold. No tensor may be None."""
    observer.wait_with(jax.effects_barrier)

    def receive(value: Any, *arrays: Any) -> None:
        observer.record(describe(value), ObservedTensors.from_arrays(arrays, len(before), names))

    arrays = [*before, *after, *weights]
    if isinstance(threshold, jax.Array):
        jax.debug.callback(receive, threshold, *arrays)
    else:  # as passed, not as float32
        jax.debug.callback(partial(receive, threshold), *arrays)
