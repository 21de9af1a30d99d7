"""Watch the clipping of Keras' own optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ...tensors.files.convert_worker import read_tensor
from ...tensors.types import Dense, densify
from .base import NativeCall, ObservedTensors, Observer, wrap


def install(observer: Observer) -> None:
    wrap([(BaseOptimizer, "_clip_gradients")], lambda function: _watched(observer, function))


def _watched(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    def _clip_gradients(self: Any, grads: Any) -> Any:
        call = _describe_call(self)
        with observer.outermost() as is_outermost:
            if not is_outermost or call is None:
                return function(self, grads)
            before = _read_now(grads)
            clipped = function(self, grads)
            return _report_call(observer, call, before, grads, clipped, self._trainable_variables)

    return _clip_gradients


def _read_now(grads: Sequence[Any]) -> list[Dense]:
    """Copy the gradients on PyTorch, where a clip may overwrite them."""
    return [_read(each) for each in grads if each is not None] if keras.backend.backend() == "torch" else []


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
    places = [index for index, each in enumerate(grads) if each is not None]
    kept = [[each[index] for index in places] if each else [] for each in (grads, clipped, weights, names)]
    if keras.backend.backend() == "jax":
        from . import jax

        jax.report_call(observer, lambda _: call, None, *kept)
    else:
        observer.record(
            call,
            ObservedTensors(before, [_read(each) for each in kept[1]], [_read(each) for each in kept[2]], kept[3]),
        )
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


def _read(tensor: Any) -> Dense:
    found = densify(read_tensor("a gradient", tensor))
    assert found is not None
    return found
