"""Watch the clipping of Keras' own optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ...tensors.types import Dense
from .base import NativeCall, ObservedTensors, Observer, read, without_none, wrap


def install(observer: Observer) -> None:
    wrap([(BaseOptimizer, "_clip_gradients")], observer.around(_clip_gradients))


def _clip_gradients(observer: Observer, function: Callable[..., Any], self: Any, grads: Any) -> Any:
    call = _describe_call(self)
    if call is None:
        return function(self, grads)
    # on PyTorch a clip may overwrite the gradients
    before = [read(each) for each in grads if each is not None] if keras.backend.backend() == "torch" else []
    return _report_call(observer, call, before, grads, function(self, grads), self._trainable_variables)


def _report_call(
    observer: Observer,
    call: NativeCall,
    before: Sequence[Dense],
    grads: Sequence[Any],
    clipped: Sequence[Any],
    variables: Sequence[Any],
) -> Sequence[Any]:
    """Report a call. Return the gradients for the optimizer, which in a graph wait for the report."""
    if len(variables) != len(grads):
        variables = ()
    names, weights = [each.path for each in variables], [each.value for each in variables]
    if keras.backend.backend() == "tensorflow":
        from . import tensorflow

        return tensorflow.report_call(observer, lambda _: call, [], grads, clipped, weights, names)
    kept = without_none(grads, clipped, weights, names)
    if keras.backend.backend() == "jax":
        from . import jax

        jax.report_call(observer, lambda _: call, None, *kept)
    else:
        observer.record(call, ObservedTensors(before, [*map(read, kept[1])], [*map(read, kept[2])], kept[3]))
    return clipped


def _describe_call(optimizer: Any) -> NativeCall | None:
    """Return the clip of an optimizer, chosen in its own order; None if it has none."""
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
