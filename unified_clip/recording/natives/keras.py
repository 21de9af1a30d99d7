"""Record the clipping and the steps of Keras' optimizers. The hooks of TensorFlow and PyTorch record the losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras

from ..._core.observer import Rule
from ..._kit import keras_releases
from ..._kit.keras_releases import BaseOptimizer, accumulation_steps
from ...recorder.clips import NativeCall, norm_of, record_around, without_none
from ...recorder.guard import Call
from ...recorder.hooks import CLIP_CALLS, HOOKS, OUTPUT, RecordingHook, ran
from ...recorder.lines import caller, canonical
from ...recorder.samples import positions, sample
from ...recorder.steps import (
    LOSS,
    LOSS_SCALE,
    RETURNED_CLIPS,
    STEP,
    UNSCALED,
    count_changed,
    names_of_step,
    of_groups,
    record_step,
    tensor_at_step,
)

BACKEND = keras.backend.backend()

# each imports its framework
if BACKEND == "tensorflow":
    from . import tensorflow
elif BACKEND == "jax":
    import jax

    from . import traced
elif BACKEND == "torch":
    from ...recorder import pytorch

CLIPS: Mapping[str, Rule] = {"clipnorm": "each", "global_clipnorm": "global", "clipvalue": "value"}
"""{argument of an optimizer: its clip rule}. Keras uses the first argument that is set."""


def install() -> None:
    for kind in keras_releases.UNRECORDED:
        HOOKS.wrap([(kind, "apply_gradients")], STEP, _unrecorded_step)
    clip = CLIP_CALLS.observer(_clip_gradients)
    HOOKS.wrap([(BaseOptimizer, "_clip_gradients")], "a clip of a Keras optimizer", clip)
    HOOKS.wrap([(BaseOptimizer, keras_releases.STEP)], STEP, _step)
    is_recorded = BACKEND in ("tensorflow", "torch")  # a tracer of JAX takes no attribute
    for home in keras_releases.SCALED_LOSSES if is_recorded else ():
        HOOKS.wrap([home], LOSS, _mark_scaled)


class SampledParameter(NamedTuple):
    """The elements of the samples, with the norm behind them. In a graph of TensorFlow, whole tensors."""

    name: str
    shape: tuple[int, ...]
    gradient: Any
    weight: Any
    raw: Any
    """The gradient of the tape, or None if a recorded clip has changed it, or if it is unknown."""

    is_whole: bool


SAMPLE = RecordingHook("samples of a step of Keras", "a sample of a gradient")
SAMPLED: dict[int, list[SampledParameter]] = {}
"""{`id` of an optimizer: what its next step gets}."""


def _clip_gradients(called: Call) -> Iterator[None]:
    optimizer = called.args[0]
    call = _describe_call(optimizer)
    yield from ran(called) if call is None else _recorded_clip(called, call)
    if call is None and OUTPUT.norms and not accumulation_steps(optimizer):  # the line of a clip has its own samples
        SAMPLED[id(optimizer)] = SAMPLE.run(_sample, optimizer, called.result) or []


def _sample(optimizer: Any, grads: Sequence[Any]) -> list[SampledParameter]:
    variables = getattr(optimizer, "_trainable_variables", ())
    if len(variables) != len(grads):
        return []
    raw, is_whole = dict.fromkeys(map(id, variables)), False
    if BACKEND == "tensorflow":
        raw, is_whole = tensorflow.raw_gradients(variables), not tensorflow.is_eager()
        if None in raw.values():  # a recorded clip
            return []
    return [
        SampledParameter(_name(each), tuple(each.shape), _row(gradient), _row(_value(each)), raw[id(each)], is_whole)
        for each, gradient in zip(variables, grads, strict=True)
        if gradient is not None and hasattr(gradient, "shape") and not hasattr(gradient, "indices")
    ]


def _name(variable: Any) -> str:
    return canonical(getattr(variable, "path", variable.name))  # a tf.Variable has no path


def _value(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _row(tensor: Any) -> Any:
    if BACKEND == "tensorflow":
        return tensorflow.sampled(tensor)
    flat, places = keras.ops.reshape(tensor, [-1]), positions(tuple(tensor.shape)).astype("int32")
    flat = keras.ops.cast(flat, "float32") if keras.backend.standardize_dtype(flat.dtype) != "float64" else flat
    return keras.ops.concatenate([keras.ops.take(flat, places), keras.ops.reshape(keras.ops.norm(flat), [1])])


def _recorded_clip(called: Call, call: NativeCall) -> Iterator[None]:
    optimizer, grads = called.args
    known = getattr(optimizer, "_trainable_variables", ())  # TensorFlow's hook finds those of Keras 2
    variables = known if len(known) == len(grads) else ()
    names, weights = list(map(_name, variables)), list(map(_value, variables))
    if BACKEND == "tensorflow":
        yield
        called.result = tensorflow.report_call(lambda _: call, [], grads, called.result, weights, names)
        return
    before, weights, names = without_none(grads, weights, names)
    if BACKEND == "jax":
        yield
        _, after = without_none(grads, called.result)
        report = partial(traced.report_call, lambda _: call, None, before, after, weights, names, id(optimizer))
        _if_updating(optimizer, _updates_weights(optimizer), report)
        return
    known = zip(names or map(str, range(len(before))), before, weights or [None] * len(before), strict=True)
    rows = [pytorch.row(*each, call, returns_norm=False) for each in known]  # a clip may overwrite the gradients
    yield from record_around(called, call, rows, lambda: without_none(grads, called.result)[1])


def _describe_call(optimizer: Any) -> NativeCall | None:
    for argument, rule in CLIPS.items():
        if (limit := getattr(optimizer, argument)) and limit > 0:
            name = f"keras.optimizers.{type(optimizer).__name__}({argument}=)"
            if rule == "value":
                bounds = (-float(limit), float(limit))
                return NativeCall(name, BACKEND, rule, bounds, None, None)
            return NativeCall(name, BACKEND, rule, float(limit))
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
    # PyTorch's recorder searches gradients without a clip
    given = tensorflow.fixed(grads) if BACKEND == "tensorflow" else []
    # what Keras itself clips reaches the step
    lost = RETURNED_CLIPS.fields_of_step(given) if _describe_call(optimizer) is None else {}
    SAMPLED.pop(id(optimizer), None)  # of a step that failed
    yield
    variables = keras_releases.variables_of(optimizer, call.arguments)
    trained = [each for each, gradient in zip(variables, grads, strict=False) if gradient is not None]
    _record_step(optimizer, variables, trained, numbers, lost)
    RETURNED_CLIPS.step_ends(each for _, each in given)


def _unrecorded_step(call: Call) -> Iterator[None]:
    if call.args:
        raise TypeError("Use the optimizer with this name from keras.optimizers instead of keras.optimizers.legacy")
    yield


def _mark_scaled(call: Call) -> Iterator[None]:
    yield
    loss = call.arguments["loss"]
    if call.result is not loss:
        setattr(call.result, UNSCALED, loss)
        setattr(call.result, LOSS_SCALE, keras_releases.loss_scale(call.args[0]))


def _class_name(optimizer: Any) -> str:
    """Return a name such as "keras.optimizers.Adam". If a subclass has no own `update_step`, return the name of
    its base class."""
    kinds = type(optimizer).__mro__
    kind = next(kind for kind in kinds if kind.__module__.startswith("keras.") or "update_step" in vars(kind))
    return f"keras.optimizers.{kind.__name__}"


def _updates_weights(optimizer: Any) -> Any:
    steps = accumulation_steps(optimizer)
    return keras.ops.equal((optimizer._iterations + 1) % steps, 0) if steps else True


def _if_updating(optimizer: Any, updates: Any, report: Callable[[], None]) -> None:
    """On JAX, report a clip or a step. JAX also clips if it only adds up gradients, but drops the result."""
    if accumulation_steps(optimizer):
        jax.lax.cond(updates, report, lambda: None)
    else:
        report()


def _repeated_rows(optimizer: Any, grads: Sequence[Any]) -> Any:
    """Accumulated gradients have no repeated rows, because Keras makes them dense."""
    if BACKEND != "tensorflow" or accumulation_steps(optimizer):
        return 0
    return tensorflow.repeated_rows(grads)


def _settings(optimizer: Any) -> dict[str, Any]:
    settings = {name: getattr(optimizer, attribute, None) for attribute, name in SETTINGS.items()}
    return settings | {"betas": [getattr(optimizer, "beta_1", None), getattr(optimizer, "beta_2", None)]}


def _weight_decays(optimizer: Any, variables: Sequence[Any]) -> list[float]:
    decay = optimizer.weight_decay or 0.0
    return sorted({decay * optimizer._use_weight_decay(each) for each in variables})


def _record_step(
    optimizer: Any, variables: Sequence[Any], trained: Sequence[Any], numbers: Sequence[Any], lost: Mapping[str, Any]
) -> None:
    kind = _class_name(optimizer)
    settings = _settings(optimizer) | {"weight_decay": of_groups(_weight_decays(optimizer, variables))}

    names = names_of_step(getattr(each, "path", each.name) for each in trained)
    known = {**names, "gradients": len(trained), "place": caller(), **lost}
    sampled = SAMPLED.pop(id(optimizer), [])
    is_whole = bool(sampled) and sampled[0].is_whole
    rows = [row for each in sampled for row in (each.gradient, each.weight, each.raw) if row is not None]

    def receive(rate: Any, updates: Any, repeated: Any, *arrays: Any, **passes: Any) -> None:
        if updates:
            fields = known | {"repeated_rows": int(repeated), **passes, **_tensors(sampled, arrays, is_whole=is_whole)}
            record_step(kind, {"lr": rate, **settings}, fields, id(optimizer))

    if BACKEND == "tensorflow":
        accumulators = optimizer._accumulated_gradients if accumulation_steps(optimizer) else ()
        tensorflow.report_numbers(receive, [*numbers, *rows], after=[each.value for each in accumulators])
    elif BACKEND == "jax":
        step = partial(
            traced.report_step, id(optimizer), lambda clips, *values: receive(*values, clips=clips), [*numbers, *rows]
        )
        _if_updating(optimizer, numbers[1], step)
    else:
        arrays = [keras.ops.convert_to_numpy(row) for row in rows]
        receive(*(float(keras.ops.convert_to_numpy(number)) for number in numbers), *arrays)


def _tensors(sampled: Sequence[SampledParameter], arrays: Sequence[Any], *, is_whole: bool) -> dict[str, Any]:
    """Return the fields of the gradients that the step gets. If the script's own code changed them, add those of the
    tape."""
    tensors, raw = dict[str, Any](), dict[str, Any]()
    found = ([*sample(array), norm_of(array, 2.0)] if is_whole else array.tolist() for array in arrays)
    for each in sampled:
        gradient, weight = next(found), next(found)
        tensors[each.name] = tensor_at_step(each.shape, gradient, weight[:-1])
        if each.raw is not None:
            raw[each.name] = next(found)
    changed = count_changed(tensors, raw)
    return ({"tensors": tensors} if tensors else {}) | ({} if changed is None else {"changed": changed})
