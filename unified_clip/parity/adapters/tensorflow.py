from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..._kit.keras_releases import IS_KERAS_2
from ...tensors.frameworks.tensorflow import Converter
from ..call_outcome import LEARNING_RATE
from ..modes import COMPILED
from ..suite.call_form import leaves
from . import base
from .base import Invocation, Returned


class FrameworkAdapter(Converter, base.Adapter):
    packages = ("tensorflow", "keras")
    families = ("tensorflow",)

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        ones = [None if g is None else tf.ones(g.shape, g.dtype) for g in gradients]
        variable = tf.Variable if IS_KERAS_2 else keras.Variable
        weights = [None if each is None else variable(each, dtype=each.dtype) for each in ones]
        pairs = [(g, weight) for g, weight in zip(gradients, weights, strict=True) if weight is not None]
        keras.optimizers.SGD(LEARNING_RATE).apply_gradients(pairs)
        return [None if weight is None else tf.convert_to_tensor(weight) for weight in weights]

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        return [tf.Variable(0.0) for _ in tensors]

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        return tf.function(function, jit_compile=mode == COMPILED, autograph=False)(tensors)

    def native_norm(self, invocation: Invocation, p: float) -> Returned | None:
        if p != 2:
            return None
        invocation.native = "tf.linalg.global_norm"
        return Returned(tf.linalg.global_norm(invocation.container))

    def native_global(self, invocation: Invocation, threshold: float, p: float, norm: float | None) -> Returned | None:
        invocation.native = "tf.clip_by_global_norm"
        passed = None if norm is None else tf.constant(norm)
        clipped, measured = tf.clip_by_global_norm(invocation.container, threshold, use_norm=passed)
        return Returned(measured if norm is None else None, list(leaves(clipped)))

    def native_by_norm(self, invocation: Invocation, threshold: float, axes: Sequence[int] | None) -> Returned | None:
        invocation.native = "tf.clip_by_norm"
        gradients = invocation.gradients
        return Returned(None, [t if t is None else tf.clip_by_norm(t, threshold, axes) for t in gradients])

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> Returned | None:
        invocation.native = "tf.clip_by_value"
        return Returned(None, [t if t is None else tf.clip_by_value(t, low, high) for t in invocation.gradients])
