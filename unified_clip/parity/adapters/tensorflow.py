"""TensorFlow for the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...tensors.frameworks.tensorflow import Converter
from ..modes import COMPILED
from ..outcome import LEARNING_RATE
from ..suite.call_form import leaves
from . import base
from .base import Invocation, NativeResult


class Framework(Converter, base.Adapter):
    packages = ("tensorflow", "keras")
    families = ("tensorflow",)

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        weights = [None if g is None else keras.Variable(tf.ones(g.shape, g.dtype), dtype=g.dtype) for g in gradients]
        pairs = [(g, weight) for g, weight in zip(gradients, weights, strict=True) if weight is not None]
        keras.optimizers.SGD(LEARNING_RATE).apply_gradients(pairs)
        return [None if weight is None else weight.value for weight in weights]

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        return [tf.Variable(0.0) for _ in tensors]

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        return tf.function(function, jit_compile=mode == COMPILED, autograph=False)(tensors)

    def native_norm(self, run: Invocation, p: float) -> NativeResult | None:
        if p != 2:
            return None
        run.calls("tf.linalg.global_norm")
        return NativeResult(run.native, tf.linalg.global_norm(run.given))

    def native_global(self, run: Invocation, limit: float, p: float) -> NativeResult | None:
        run.calls("tf.clip_by_global_norm")
        clipped, norm = tf.clip_by_global_norm(run.given, limit)
        return NativeResult(run.native, norm, list(leaves(clipped)))

    def native_given_norm(self, run: Invocation, limit: float, norm: float) -> NativeResult | None:
        run.calls("tf.clip_by_global_norm")
        clipped, _ = tf.clip_by_global_norm(run.given, limit, use_norm=tf.constant(norm))
        return NativeResult(run.native, None, list(leaves(clipped)))

    def native_by_norm(self, run: Invocation, limit: float, axes: Sequence[int] | None) -> NativeResult | None:
        run.calls("tf.clip_by_norm")
        return NativeResult(run.native, None, [t if t is None else tf.clip_by_norm(t, limit, axes) for t in run.made])

    def native_by_value(self, run: Invocation, low: float, high: float) -> NativeResult | None:
        run.calls("tf.clip_by_value")
        return NativeResult(run.native, None, [t if t is None else tf.clip_by_value(t, low, high) for t in run.made])
