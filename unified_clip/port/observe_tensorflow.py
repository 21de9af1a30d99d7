"""TensorFlow's own clipping functions, watched, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import clip_ops

from .._ops.tensorflow_ops import is_for_xla
from ..parity.items import from_array
from .observe import Native, Observer, Seen, wrap

Describe = Callable[[Sequence[Any]], Native]
"""A call, from the values of its limits."""


def install(observer: Observer) -> None:
    for name, watched in (
        ("clip_by_global_norm", _by_global_norm),
        ("clip_by_norm", _by_norm),
        ("clip_by_value", _by_value),
    ):
        homes = [(clip_ops, name), (tf, name), (tf.compat.v1, name), (tf.compat.v2, name)]
        wrap(homes, partial(_as_written, watched, observer))


def _as_written(watched: Callable[..., Any], observer: Observer, function: Callable[..., Any]) -> Any:
    """AutoGraph has nothing to convert in it."""
    return tf.autograph.experimental.do_not_convert(watched(observer, function))


def _by_global_norm(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(t_list: Any, clip_norm: Any, use_norm: Any = None, name: Any = None) -> Any:
        with observer.outermost() as counts:
            clipped, norm = function(t_list, clip_norm, use_norm, name)
            if not counts:
                return clipped, norm
            limits = [clip_norm] if use_norm is None else [clip_norm, use_norm]
            return tell(observer, _describe("tf.clip_by_global_norm", "global"), limits, t_list, clipped), norm

    return watched


def _by_norm(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(t: Any, clip_norm: Any, axes: Any = None, name: Any = None) -> Any:
        with observer.outermost() as counts:
            clipped = function(t, clip_norm, axes, name)
            if not counts or axes is not None:
                return clipped
            return tell(observer, _describe("tf.clip_by_norm", "each"), [clip_norm], [t], [clipped])[0]

    return watched


def _by_value(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any = None) -> Any:
        with observer.outermost() as counts:
            clipped = function(t, clip_value_min, clip_value_max, name)
            if not counts or not _is_floating(clipped):
                return clipped
            limits = [clip_value_min, clip_value_max]
            return tell(observer, _describe("tf.clip_by_value", "value"), limits, [t], [clipped])[0]

    return watched


def _is_floating(tensor: Any) -> bool:
    return bool(getattr(tensor, "dtype", tf.int32).is_floating)


def _describe(name: str, rule: Any) -> Describe:
    def native(limits: Sequence[Any]) -> Native:
        numbers = [float(each) if np.ndim(each) == 0 else None for each in limits]
        if None in numbers:
            return Native(name, "tensorflow", rule, None)
        if rule == "value":
            return Native(name, "tensorflow", rule, (numbers[0], numbers[1]), None, None)  # type: ignore[arg-type]
        return Native(name, "tensorflow", rule, numbers[0], given_norm=numbers[1] if len(numbers) > 1 else None)

    return native


def tell(
    observer: Observer,
    describe: Describe,
    limits: Sequence[Any],
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
) -> list[Any]:
    """`after`; in a graph it waits for the call to be told whenever the graph runs."""
    places = [index for index, each in enumerate(before) if each is not None]
    chosen = [[each[index] for index in places] if each else [] for each in (before, after, weights, names)]

    def receive(*values: Any) -> None:
        count, found = len(places), [from_array(np.array(each)) for each in values[len(limits) :]]
        seen = Seen(found[:count], found[count : 2 * count], found[2 * count :], chosen[3])
        observer.see(describe(values[: len(limits)]), seen)

    tensors = [tf.convert_to_tensor(each) for part in chosen[:3] for each in part]
    given = [tf.convert_to_tensor(each, _dtype(each)) for each in limits]
    if tf.executing_eagerly():
        receive(*(each.numpy() for each in (*given, *tensors)))
        return list(after)
    if is_for_xla():
        return list(after)
    with tf.control_dependencies([tf.numpy_function(receive, [*given, *tensors], [])]):
        return [None if each is None else tf.nest.map_structure(tf.identity, each) for each in after]


def _dtype(limit: Any) -> Any:
    """A number has to be told as it was given: float64 holds all."""
    return None if tf.is_tensor(limit) or isinstance(limit, tf.Variable) else tf.float64
