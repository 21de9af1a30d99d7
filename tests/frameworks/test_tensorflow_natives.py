"""The catalog of `unified-clip port` has the parameters of TensorFlow's functions. tf.contrib is gone."""

from __future__ import annotations

import tensorflow as tf
from support.port import natives as port_natives

from unified_clip.port.catalog import KERAS_RULES, clip_function


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    assert list(port_natives.changed_parameters("tensorflow")) == []
    there = {name for name, _ in port_natives.functions_of("tensorflow")} - port_natives.missing_functions("tensorflow")
    own = {"tf.clip_by_global_norm", "tf.clip_by_norm", "tf.clip_by_value", "tf.linalg.global_norm"}
    assert there == own | {"tf.keras.backend.clip", "keras.ops.clip", "tf.keras.ops.clip"}


def test_those_of_tensorflow_1_are_there_too() -> None:
    for name in ("clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm", "clip_by_average_norm"):
        result = clip_function(f"tensorflow.compat.v1.{name}")
        assert result is not None
        assert port_natives.parameter_names(getattr(tf.compat.v1, name)) == list(result.parameters)


def test_ours_take_the_same_arguments() -> None:
    assert list(port_natives.without_replacement("tensorflow")) == []


def test_the_arguments_of_optimizers_are_there() -> None:
    optimizer = tf.keras.optimizers.SGD(0.1)
    assert all(getattr(optimizer, name) is None for name in KERAS_RULES)
