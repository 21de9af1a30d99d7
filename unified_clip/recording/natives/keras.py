"""Record the clipping and the steps of Keras' optimizers. The hooks of TensorFlow and PyTorch record the losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import keras

from ..._core.observer import Rule
from ..._kit import keras_releases
from ..._kit.keras_releases import BaseOptimizer, accumulation_steps
from ...recorder.clips import NativeCall
from ...recorder.guard import Call
from ...recorder.hooks import HOOKS
from ...recorder.lines import caller
from ...recorder.steps import LOSS, STEP, UNSCALED, names_of_step, of_groups, record_step
from .observer import OBSERVER, RunningNativeCall, without_none

CLIPS: Mapping[str, Rule] = {"clipnorm": "each", "global_clipnorm": "global", "clipvalue": "value"}
"""{argument of an optimizer: its clip rule}. Keras uses the first argument that is set."""


def install() -> None:
    for kind in keras_releases.UNRECORDED:
        HOOKS.wrap([(kind, "apply_gradients")], STEP, _unrecorded_step)
    HOOKS.wrap([(BaseOptimizer, "_clip_gradients")], "a clip of a Keras optimizer", OBSERVER.around(_clip_gradients))
    HOOKS.wrap([(BaseOptimizer, keras_releases.STEP)], STEP, _step)
    is_recorded = keras.backend.backend() in ("tensorflow", "torch")  # a tracer of JAX takes no attribute
    for home in keras_releases.SCALED_LOSSES if is_recorded else ():
        HOOKS.wrap([home], LOSS, _mark_scaled)


def _clip_gradients(called: Call) -> Iterator[None]:
    optimizer, grads = called.args
    call, backend = _describe_call(optimizer), keras.backend.backend()
    if call is None:
        return
    known = getattr(optimizer, "_trainable_variables", ())  # TensorFlow's hook finds those of Keras 2
    variables = known if len(known) == len(grads) else ()
    names = [getattr(variable, "path", variable.name) for variable in variables]  # a tf.Variable has no path
    weights = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    if backend == "tensorflow":
        from . import tensorflow

        yield
        called.result = tensorflow.report_call(lambda _: call, [], grads, called.result, weights, names)
        return
    before, weights, names = without_none(grads, weights, names)
    if backend == "jax":
        import jax

        from . import traced

        yield
        _, after = without_none(grads, called.result)
        report = partial(traced.report_call, lambda _: call, None, before, after, weights, names, id(optimizer))
        if accumulation_steps(optimizer):  # JAX also clips if it only adds up gradients, but drops the result
            jax.lax.cond(_updates_weights(optimizer), report, lambda: None)
        else:
            report()
        return
    running = RunningNativeCall(call, before, weights, names)  # a clip may overwrite the gradients
    yield
    running.end(without_none(grads, called.result)[1])


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


def _step(call: Call) -> Iterator[None]:
    optimizer = call.args[0]
    if hasattr(optimizer, "inner_optimizer"):  # which records the steps that are not skipped
        return
    rate = keras_releases.learning_rate(optimizer)  # before the step counts itself
    grads = keras_releases.gradients_of(call.arguments)
    numbers = [rate, _updates_weights(optimizer), _repeated_rows(optimizer, grads)]
    yield
    variables = keras_releases.variables_of(optimizer, call.arguments)
    trained = [each for each, gradient in zip(variables, grads, strict=False) if gradient is not None]
    _record_step(optimizer, variables, trained, numbers)


def _unrecorded_step(call: Call) -> Iterator[None]:
    if call.args:
        raise TypeError("Use the optimizer with this name from keras.optimizers instead of keras.optimizers.legacy")
    yield


def _mark_scaled(call: Call) -> Iterator[None]:
    yield
    loss = call.arguments["loss"]
    if call.result is not loss:
        setattr(call.result, UNSCALED, loss)


def _class_name(optimizer: Any) -> str:
    """Return a name such as "keras.optimizers.Adam". If a subclass has no own `update_step`, return the name of
    its base class."""
    kinds = type(optimizer).__mro__
    kind = next(kind for kind in kinds if kind.__module__.startswith("keras.") or "update_step" in vars(kind))
    return f"keras.optimizers.{kind.__name__}"


def _updates_weights(optimizer: Any) -> Any:
    steps = accumulation_steps(optimizer)
    return keras.ops.equal((optimizer._iterations + 1) % steps, 0) if steps else True


def _repeated_rows(optimizer: Any, grads: Sequence[Any]) -> Any:
    """Accumulated gradients have no repeated rows, because Keras makes them dense."""
    if keras.backend.backend() != "tensorflow" or accumulation_steps(optimizer):
        return 0
    from . import tensorflow

    return tensorflow.repeated_rows(grads)


def _settings(optimizer: Any) -> dict[str, Any]:
    settings = {name: getattr(optimizer, attribute, None) for attribute, name in SETTINGS.items()}
    return settings | {"betas": [getattr(optimizer, "beta_1", None), getattr(optimizer, "beta_2", None)]}


def _weight_decays(optimizer: Any, variables: Sequence[Any]) -> list[float]:
    decay = optimizer.weight_decay or 0.0
    return sorted({decay * optimizer._use_weight_decay(each) for each in variables})


def _record_step(optimizer: Any, variables: Sequence[Any], trained: Sequence[Any], numbers: Sequence[Any]) -> None:
    kind = _class_name(optimizer)
    settings = _settings(optimizer) | {"weight_decay": of_groups(_weight_decays(optimizer, variables))}

    names = names_of_step(getattr(each, "path", each.name) for each in trained)
    known = {**names, "gradients": len(trained), "place": caller()}

    def receive(rate: Any, updates: Any, repeated: Any, **passes: Any) -> None:
        if updates:
            record_step(
                kind, {"lr": rate, **settings}, known | {"repeated_rows": int(repeated), **passes}, id(optimizer)
            )

    backend = keras.backend.backend()
    if backend == "tensorflow":
        from . import tensorflow_graphs

        accumulators = optimizer._accumulated_gradients if accumulation_steps(optimizer) else ()
        tensorflow_graphs.report_numbers(receive, numbers, after=[each.value for each in accumulators])
    elif backend == "jax":
        from . import traced

        traced.report_step(id(optimizer), lambda clips, *values: receive(*values, clips=clips), numbers)
    else:
        receive(*(float(keras.ops.convert_to_numpy(number)) for number in numbers))
