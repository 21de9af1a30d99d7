"""Record the clipping and the steps of Keras' optimizers. The hooks of TensorFlow and PyTorch record the losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
from keras.optimizers import LossScaleOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ..._core.observer import Rule
from .hooks import HOOKS
from .native_call import NativeCall
from .observer import OBSERVER, RunningNativeCall, without_none
from .optimizer_steps import UNSCALED, decayed_elements, of_groups, record_step, warn_on_error

CLIPS: Mapping[str, Rule] = {"clipnorm": "each", "global_clipnorm": "global", "clipvalue": "value"}
"""{argument of an optimizer: its clip rule}. Keras uses the first argument that is set."""


def install() -> None:
    HOOKS.wrap([(BaseOptimizer, "_clip_gradients")], OBSERVER.around(_clip_gradients))
    HOOKS.wrap([(BaseOptimizer, "apply")], _stepped)
    is_recorded = keras.backend.backend() in ("tensorflow", "torch")  # a tracer of JAX takes no attribute
    for owner in (BaseOptimizer, LossScaleOptimizer) if is_recorded else ():  # each class has its own `scale_loss`
        HOOKS.wrap([(owner, "scale_loss")], _marking_scaled)


def _clip_gradients(function: Callable[..., Any], self: Any, grads: Any) -> Any:
    call, backend = _describe_call(self), keras.backend.backend()
    if call is None:
        return function(self, grads)
    variables = self._trainable_variables if len(self._trainable_variables) == len(grads) else ()
    names = [getattr(variable, "path", variable.name) for variable in variables]  # a tf.Variable has no path
    weights = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    if backend == "tensorflow":
        from . import tensorflow

        clipped = function(self, grads)
        return tensorflow.report_call(lambda _: call, [], grads, clipped, weights, names)
    before, weights, names = without_none(grads, weights, names)
    if backend == "jax":
        import jax

        from . import traced

        clipped = function(self, grads)
        _, after = without_none(grads, clipped)
        report = partial(traced.report_call, lambda _: call, None, before, after, weights, names)
        if self.gradient_accumulation_steps:  # JAX also clips if it only adds up gradients, but drops the result
            jax.lax.cond(_updates_weights(self), report, lambda: None)
        else:
            report()
        return clipped
    running = RunningNativeCall(call, before, weights, names)  # a clip may overwrite the gradients
    clipped = function(self, grads)
    running.end(without_none(grads, clipped)[1])
    return clipped


def _describe_call(optimizer: Any) -> NativeCall | None:
    for argument, rule in CLIPS.items():
        if (limit := getattr(optimizer, argument)) and limit > 0:
            name = f"keras.optimizers.{type(optimizer).__name__}({argument}=)"
            if rule == "value":
                bounds = (-float(limit), float(limit))
                return NativeCall(name, keras.backend.backend(), rule, bounds, None, None)
            return NativeCall(name, keras.backend.backend(), rule, float(limit))
    return None


SETTINGS = {
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "alpha",
    "centered": "centered",
    "epsilon": "eps",
    "amsgrad": "amsgrad",
    "initial_accumulator_value": "initial_accumulator_value",
}


def _stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self, "inner_optimizer"):  # which records the steps that are not skipped
            return function(self, grads, *args, **kwargs)
        numbers: list[Any] = []
        with warn_on_error("a step of an optimizer"):  # before the step counts itself
            rate = keras.ops.convert_to_tensor(self._get_current_learning_rate())
            numbers = [rate, _updates_weights(self), _repeated_rows(self, grads)]
        result = function(self, grads, *args, **kwargs)
        if numbers:
            with warn_on_error("a step of an optimizer"):
                _record_step(self, numbers)
        return result

    return apply


def _marking_scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss(self: Any, loss: Any) -> Any:
        scaled = function(self, loss)
        if scaled is not loss:
            with warn_on_error("a loss without scale"):
                setattr(scaled, UNSCALED, loss)
        return scaled

    return scale_loss


def _class_name(optimizer: Any) -> str:
    """Return a name such as "keras.optimizers.Adam". If a subclass has no own `update_step`, return the name of
    its base class."""
    kinds = type(optimizer).__mro__
    kind = next(kind for kind in kinds if kind.__module__.startswith("keras.") or "update_step" in vars(kind))
    return f"keras.optimizers.{kind.__name__}"


def _updates_weights(optimizer: Any) -> Any:
    steps = optimizer.gradient_accumulation_steps
    return keras.ops.equal((optimizer._iterations + 1) % steps, 0) if steps else True


def _repeated_rows(optimizer: Any, grads: Sequence[Any]) -> Any:
    """Accumulated gradients have no repeated rows, because Keras makes them dense."""
    if keras.backend.backend() != "tensorflow" or optimizer.gradient_accumulation_steps:
        return 0
    from . import tensorflow

    return tensorflow.repeated_rows(grads)


def _settings(optimizer: Any) -> dict[str, Any]:
    settings = {name: getattr(optimizer, attribute, None) for attribute, name in SETTINGS.items()}
    return settings | {"betas": [getattr(optimizer, "beta_1", None), getattr(optimizer, "beta_2", None)]}


def _weight_decays(optimizer: Any) -> list[tuple[float, int]]:
    decay = optimizer.weight_decay or 0.0
    variables = optimizer._trainable_variables
    return [(decay * optimizer._use_weight_decay(each), math.prod(each.shape)) for each in variables]


def _record_step(optimizer: Any, numbers: Sequence[Any]) -> None:
    kind, decays = _class_name(optimizer), _weight_decays(optimizer)
    decayed = decayed_elements(decays, [getattr(each, "path", None) for each in optimizer._trainable_variables])
    settings = _settings(optimizer) | {"weight_decay": of_groups(sorted({decay for decay, _ in decays}))}

    def receive(rate: Any, updates: Any, repeated: Any, **passes: Any) -> None:
        if updates:
            record_step(kind, {"lr": rate, **settings}, {"repeated_rows": int(repeated), **decayed, **passes})

    backend = keras.backend.backend()
    if backend == "tensorflow":
        from . import tensorflow_graphs

        accumulators = optimizer._accumulated_gradients if optimizer.gradient_accumulation_steps else ()
        tensorflow_graphs.report_numbers(receive, numbers, after=[each.value for each in accumulators])
    elif backend == "jax":
        from . import traced

        traced.report_step(lambda clips, *values: receive(*values, clips=clips), numbers)
    else:
        receive(*(float(keras.ops.convert_to_numpy(number)) for number in numbers))
