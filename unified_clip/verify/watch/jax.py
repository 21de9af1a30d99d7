"""Report calls on JAX, at once or whenever a traced function runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ...tensors.files.entries import from_array
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
    """Report a call. `describe` returns it for the value of its threshold. No tensor may be None."""
    observer.wait_with(jax.effects_barrier)
    count = len(before)

    def receive(given: Any, *values: Any) -> None:
        found = [from_array(np.asarray(each)) for each in values]
        observed = ObservedTensors(found[:count], found[count : 2 * count], found[2 * count :], names)
        observer.record(describe(given), observed)

    arrays = [*before, *after, *weights]
    if isinstance(threshold, jax.Array):
        jax.debug.callback(receive, threshold, *arrays)
    else:  # as passed, not as float32
        jax.debug.callback(lambda *values: receive(threshold, *values), *arrays)
