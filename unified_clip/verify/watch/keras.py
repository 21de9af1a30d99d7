"""The clipping of Keras' own optimizers, watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ...tensors.files.convert_worker import read_tensor
from ...tensors.types import Dense, densify
from .base import Native, Observer, Seen, wrap


def install(observer: Observer) -> None:
    wrap([(BaseOptimizer, "_clip_gradients")], lambda function: _watched(observer, function))


def _watched(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    def _clip_gradients(self: Any, grads: Any) -> Any:
        native = _native(self)
        with observer.outermost() as counts:
            if not counts or native is None:
                return function(self, grads)
            before = _read_now(grads)
            clipped = function(self, grads)
            return _tell(observer, native, before, grads, clipped, self._trainable_variables)

    return _clip_gradients


def _read_now(grads: Sequence[Any]) -> list[Dense]:
    """On PyTorch, where a clip may write into them; elsewhere they stay."""
    return [_read(each) for each in grads if each is not None] if keras.backend.backend() == "torch" else []


def _tell(
    observer: Observer,
    native: Native,
    before: Sequence[Dense],
    grads: Sequence[Any],
    clipped: Sequence[Any],
    variables: Sequence[Any],
) -> Sequence[Any]:
    """What an optimizer goes on with; in a graph of TensorFlow it waits for the call to be told."""
    if len(variables) != len(grads):
        variables = ()
    names, weights = [each.path for each in variables], [each.value for each in variables]
    if keras.backend.backend() == "tensorflow":
        from . import tensorflow

        return tensorflow.tell(observer, lambda _: native, [], grads, clipped, weights, names)
    places = [index for index, each in enumerate(grads) if each is not None]
    kept = [[each[index] for index in places] if each else [] for each in (grads, clipped, weights, names)]
    if keras.backend.backend() == "jax":
        from . import jax

        jax.tell(observer, lambda _: native, None, *kept)
    else:
        observer.see(
            native, Seen(before, [_read(each) for each in kept[1]], [_read(each) for each in kept[2]], kept[3])
        )
    return clipped


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
    found = densify(read_tensor("a gradient", tensor))
    assert found is not None
    return found
