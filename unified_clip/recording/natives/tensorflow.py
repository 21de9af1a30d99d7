"""Record TensorFlow's own clipping functions, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import clip_ops, gradients_util

from ..._backends.tensorflow.arithmetic import is_for_xla
from .base import OBSERVER, Observer, without_none
from .evidence import NativeCall, ObservedTensors
from .hooks import HOOKS

Describe = Callable[[Sequence[Any]], NativeCall]
"""A function that returns a call's settings for the values of its thresholds."""

ARGUMENTS = ("Placeholder", "PlaceholderWithDefault")

GRADIENTS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By `id`, the tensors that are gradients: results of a tape or of `tf.gradients`, and eager tensors that are computed
from such results."""


def install() -> None:
    HOOKS.wrap([(tf.GradientTape, "gradient")], partial(_not_converted, _marking))
    HOOKS.wrap([(gradients_util, "_GradientsHelper")], partial(_not_converted, _marking))
    HOOKS.on_switch(
        partial(op_callbacks.add_op_callback, _mark_computed), partial(op_callbacks.remove_op_callback, _mark_computed)
    )
    for clip in (clip_by_global_norm, clip_by_norm, clip_by_value):
        homes = [(module, clip.__name__) for module in (clip_ops, tf, tf.compat.v1, tf.compat.v2)]
        HOOKS.wrap(homes, partial(_not_converted, OBSERVER.around(clip)))


def _not_converted(wrapper: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """Return the function in this wrapper, marked so that AutoGraph does not convert the wrapper."""
    return tf.autograph.experimental.do_not_convert(wrapper(function))


def _marking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that marks the tensors in its result as gradients."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        for each in tf.nest.flatten(result):
            if each is not None:
                GRADIENTS[id(_values(each))] = _values(each)
        return result

    return watched


def _mark_computed(
    op_type: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[Any], op_name: Any = None, graph: Any = None
) -> None:
    """Mark the results of an eager operation on a gradient, such as `g / n`, as gradients.

    In graphs this is not needed: `from_tape` follows the inputs of operations.
    """
    if graph is None and any(map(_is_marked, inputs)):
        GRADIENTS.update((id(each), each) for each in outputs)


def _values(tensor: Any) -> Any:
    return tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor


def _is_marked(tensor: Any) -> bool:
    return GRADIENTS.get(id(_values(tensor))) is _values(tensor)


def from_tape(tensor: Any) -> bool | None:
    """Return whether a tensor was computed from a gradient; None if it may come from an argument of its graph."""
    tensor = _values(tensor)
    if not tf.is_symbolic_tensor(tensor):
        return _is_marked(tensor)
    visited: set[int] = set()
    stack, has_arguments = [tensor], False
    while stack:
        source = stack.pop()
        if _is_marked(source):
            return True
        has_arguments |= source.op.type in ARGUMENTS
        stack += [new for new in source.op.inputs if id(new) not in visited]
        visited.update(map(id, source.op.inputs))
    graphs = [gradient.graph for gradient in list(GRADIENTS.values()) if tf.is_symbolic_tensor(gradient)]
    return None if has_arguments and not any(graph is tensor.graph for graph in graphs) else False


def clip_by_global_norm(
    observer: Observer, function: Any, t_list: Any, clip_norm: Any, use_norm: Any = None, name: Any = None
) -> Any:
    clipped, norm = function(t_list, clip_norm, use_norm, name)
    thresholds = [clip_norm] if use_norm is None else [clip_norm, use_norm]
    return report_call(observer, _describe("tf.clip_by_global_norm", "global"), thresholds, t_list, clipped), norm


def clip_by_norm(observer: Observer, function: Any, t: Any, clip_norm: Any, axes: Any = None, name: Any = None) -> Any:
    clipped = function(t, clip_norm, axes, name)
    if axes is not None:
        return clipped
    call = _describe("tf.clip_by_norm", "each")
    return report_call(observer, call, [clip_norm], [t], [clipped], is_gradient=partial(from_tape, t))[0]


def clip_by_value(
    observer: Observer, function: Any, t: Any, clip_value_min: Any, clip_value_max: Any, name: Any = None
) -> Any:
    clipped = function(t, clip_value_min, clip_value_max, name)
    if not getattr(clipped, "dtype", tf.int32).is_floating:
        return clipped
    call, thresholds = _describe("tf.clip_by_value", "value"), [clip_value_min, clip_value_max]
    return report_call(observer, call, thresholds, [t], [clipped], is_gradient=partial(from_tape, t))[0]


def _describe(name: str, rule: Any) -> Describe:
    def call(thresholds: Sequence[Any]) -> NativeCall:
        if any(np.ndim(value) for value in thresholds):
            return NativeCall(name, "tensorflow", rule, None)
        numbers = list(map(float, thresholds))
        if rule == "value":
            return NativeCall(name, "tensorflow", rule, (numbers[0], numbers[1]), None, None)
        return NativeCall(name, "tensorflow", rule, numbers[0], passed_norm=numbers[1] if len(numbers) > 1 else None)

    return call


def report_call(
    observer: Observer,
    describe: Describe,
    thresholds: Sequence[Any],
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
    is_gradient: Callable[[], bool | None] = lambda: True,
) -> list[Any]:
    """Record a call, and return `after`. If nothing else in a graph would run the recording operation, the returned
    tensors depend on it.

    As few operations as possible read the tensors, because TensorFlow optimizes a graph by the operations that read
    each tensor.
    """
    needs = OBSERVER.needs()
    present = without_none(before, after if needs.results else (), weights if needs.leaves else (), names)

    def receive(*values: Any) -> None:
        numbers, arrays = values[: len(thresholds)], values[len(thresholds) :]
        lengths = [len(part) for part in present[:3]]
        observed = ObservedTensors.from_arrays(arrays, lengths, present[3], is_gradient())
        observer.record(describe(numbers), observed)

    tensors = [tf.convert_to_tensor(tensor) for part in present[:3] for tensor in part]
    are_tensors = [tf.is_tensor(value) or isinstance(value, tf.Variable) for value in thresholds]
    dtypes = [None if is_tensor else tf.float64 for is_tensor in are_tensors]  # float64 represents all numbers exactly
    inputs = [*map(tf.convert_to_tensor, thresholds, dtypes), *tensors]
    if tf.executing_eagerly():
        receive(*(tensor.numpy() for tensor in inputs))
        return list(after)
    if is_for_xla():
        return list(after)
    report = tf.numpy_function(receive, inputs, [])
    if not needs.results and tf.compat.v1.get_default_graph().building_function:
        return list(after)  # the function runs what has an effect
    with tf.control_dependencies([report]):
        return [None if tensor is None else tf.nest.map_structure(tf.identity, tensor) for tensor in after]
