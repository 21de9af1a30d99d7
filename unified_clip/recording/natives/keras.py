"""Record the clipping of Keras' own optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from .base import OBSERVER, Observer, RunningCall, without_none
from .evidence import NativeCall
from .hooks import HOOKS


def install() -> None:
    HOOKS.wrap([(BaseOptimizer, "_clip_gradients")], OBSERVER.around(_clip_gradients))


def _clip_gradients(observer: Observer, function: Callable[..., Any], self: Any, grads: Any) -> Any:
    """Run and record an optimizer's own clipping.

    In a graph, the returned gradients depend on the recording operation, so that the graph runs it.
    """
    call, backend = _describe_call(self), keras.backend.backend()
    if call is None:
        return function(self, grads)
    variables = self._trainable_variables if len(self._trainable_variables) == len(grads) else ()
    names, weights = [variable.path for variable in variables], [variable.value for variable in variables]
    if backend == "tensorflow":
        from . import tensorflow

        clipped = function(self, grads)
        return tensorflow.report_call(observer, lambda _: call, [], grads, clipped, weights, names)
    before, weights, names = without_none(grads, weights, names)
    if backend == "jax":
        from . import jax

        clipped = function(self, grads)
        _, after = without_none(grads, clipped)
        jax.report_call(observer, lambda _: call, None, before, after, weights, names)
        return clipped
    running = RunningCall(call, before, weights, names)  # a clip may overwrite the gradients
    clipped = function(self, grads)
    running.end(without_none(grads, clipped)[1])
    return clipped


def _describe_call(optimizer: Any) -> NativeCall | None:
    """Return the settings of an optimizer's own clipping; None if it has none."""
    kind = f"keras.optimizers.{type(optimizer).__name__}"
    backend = keras.backend.backend()
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        return NativeCall(f"{kind}(clipnorm=)", backend, "each", float(optimizer.clipnorm))
    if optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        return NativeCall(f"{kind}(global_clipnorm=)", backend, "global", float(optimizer.global_clipnorm))
    if optimizer.clipvalue and optimizer.clipvalue > 0:
        threshold = float(optimizer.clipvalue)
        return NativeCall(f"{kind}(clipvalue=)", backend, "value", (-threshold, threshold), None, None)
    return None
