"""Record the clipping and the steps of Keras' own optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from .base import OBSERVER, Observer, RunningCall, without_none
from .evidence import NativeCall
from .hooks import HOOKS
from .steps import decayed_elements, of_groups, record_step, reported


def install() -> None:
    HOOKS.wrap([(BaseOptimizer, "_clip_gradients")], OBSERVER.around(_clip_gradients))
    HOOKS.wrap([(BaseOptimizer, "apply")], _stepped)


def _clip_gradients(observer: Observer, function: Callable[..., Any], self: Any, grads: Any) -> Any:
    """Run and record an optimizer's own clipping, and return the clipped gradients. Record nothing if it does not clip.

    In a graph of TensorFlow, the returned gradients may depend on the recording operation, so that the graph runs it.
    """
    call, backend = _describe_call(self), keras.backend.backend()
    if call is None:
        return function(self, grads)
    variables = self._trainable_variables if len(self._trainable_variables) == len(grads) else ()
    names = [getattr(variable, "path", variable.name) for variable in variables]  # a tf.Variable has no path
    weights = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    if backend == "tensorflow":
        from . import tensorflow

        clipped = function(self, grads)
        return tensorflow.report_call(observer, lambda _: call, [], grads, clipped, weights, names)
    before, weights, names = without_none(grads, weights, names)
    if backend == "jax":
        from . import traced

        clipped = function(self, grads)
        _, after = without_none(grads, clipped)
        traced.report_call(observer, lambda _: call, None, before, after, weights, names)
        return clipped
    running = RunningCall(call, before, weights, names)  # a clip may overwrite the gradients
    clipped = function(self, grads)
    running.end(without_none(grads, clipped)[1])
    return clipped


def _describe_call(optimizer: Any) -> NativeCall | None:
    """Return the settings of an optimizer's own clipping, or None if the optimizer does not clip."""
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


# -- steps

SETTINGS = {
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "alpha",
    "epsilon": "eps",
}
"""The name of each setting in a recording, by the attribute of Keras' optimizers."""


def _stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self, "inner_optimizer"):  # which records the steps that are not skipped
            return function(self, *args, **kwargs)
        rate = None
        with reported("a step of an optimizer"):
            rate = keras.ops.convert_to_tensor(self._get_current_learning_rate())  # before the step counts itself
        result = function(self, *args, **kwargs)
        if rate is not None:
            with reported("a step of an optimizer"):
                decays = _weight_decays(self)
                settings = _settings(self) | {"weight_decay": of_groups(sorted({decay for decay, _ in decays}))}
                _record_step(f"keras.optimizers.{type(self).__name__}", rate, settings, decayed_elements(decays))
        return result

    return apply


def _settings(optimizer: Any) -> dict[str, Any]:
    settings = {name: getattr(optimizer, attribute, None) for attribute, name in SETTINGS.items()}
    return settings | {"betas": [getattr(optimizer, "beta_1", None), getattr(optimizer, "beta_2", None)]}


def _weight_decays(optimizer: Any) -> list[tuple[float, int]]:
    """Return the weight decay and the number of elements of each variable. An excluded variable has the decay 0."""
    decay = optimizer.weight_decay or 0.0
    variables = optimizer._trainable_variables
    return [(decay * optimizer._use_weight_decay(each), math.prod(each.shape)) for each in variables]


def _record_step(kind: str, rate: Any, settings: dict[str, Any], decayed: dict[str, list[int]]) -> None:
    """Record a step, at once or whenever its graph runs."""

    def receive(value: Any) -> None:
        record_step(kind, {"lr": value, **settings}, decayed)

    def receive_from_jax(clips: int, value: Any) -> None:
        record_step(kind, {"lr": value, **settings}, {"clips": clips, **decayed})

    backend = keras.backend.backend()
    if backend == "tensorflow":
        from . import tensorflow

        tensorflow.report_numbers(receive, [rate])
    elif backend == "jax":
        from . import traced

        traced.report_step(receive_from_jax, [rate])
    else:
        receive(float(keras.ops.convert_to_numpy(rate)))
