"""The clipping of Keras' own optimizers, watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ..parity.convert import read_tensor
from ..parity.tensors import Dense, densify
from .observe import Native, Observer, Seen, wrap


def install(observer: Observer) -> None:
    wrap([(BaseOptimizer, "_clip_gradients")], lambda function: _watched(observer, function))


def _watched(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    def _clip_gradients(self: Any, grads: Any) -> Any:
        native = _native(self)
        with observer.outermost() as counts:
            if not counts or native is None:
                return function(self, grads)
            variables = self._trainable_variables if len(self._trainable_variables) == len(grads) else ()
            names = [each.path for each in variables]
            if keras.backend.backend() == "tensorflow":
                from . import observe_tensorflow

                values = [each.value for each in variables]
                clipped = function(self, grads)
                return observe_tensorflow.tell(observer, lambda _: native, [], grads, clipped, values, names)
            before = [_read(each) for each in grads if each is not None]
            weights = [_read(each) for each, grad in zip(variables, grads, strict=False) if grad is not None]
            clipped = function(self, grads)
            after = [_read(each) for each in clipped if each is not None]
            known = [name for name, grad in zip(names, grads, strict=False) if grad is not None]
            observer.see(native, Seen(before, after, weights, known))
            return clipped

    return _clip_gradients


def _native(optimizer: Any) -> Native | None:
    """What an optimizer clips by, as it asks itself."""
    kind = f"keras.optimizers.{type(optimizer).__name__}"
    backend = keras.backend.backend()
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        return Native(f"{kind}(clipnorm=)", backend, "each", float(optimizer.clipnorm))
    if optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        return Native(f"{kind}(global_clipnorm=)", backend, "global", float(optimizer.global_clipnorm))
    if optimizer.clipvalue and optimizer.clipvalue > 0:
        limit = float(optimizer.clipvalue)
        return Native(f"{kind}(clipvalue=)", backend, "value", (-limit, limit), None, None)
    return None


def _read(tensor: Any) -> Dense:
    found = densify(read_tensor("a gradient", keras.ops.copy(tensor)))
    assert found is not None
    return found
