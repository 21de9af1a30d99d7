"""Keras on its TensorFlow backend."""

from __future__ import annotations

import os
import warnings

os.environ["KERAS_BACKEND"] = "tensorflow"

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.clip_cases import LINEAR
from support.trainers.keras_cases import *  # noqa: F403
from support.trainers.keras_cases import INPUTS, TARGETS, network

from unified_clip import ClipConfig


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("rule", ["global_norm", "value"])
def test_rows_of_an_embedding_that_repeat_are_summed_first(rule: str, graph: bool) -> None:
    optimizer, table = keras.optimizers.SGD(1.0), keras.Variable(np.zeros((4, 1), "float32"))
    handle = ClipConfig(rule=rule, threshold=1.0, **({} if rule == "value" else {"eps": 0.0})).attach_to(optimizer)
    optimizer.build([table])
    rows = tf.IndexedSlices(tf.constant([[1.0], [1.0], [2.0], [0.0]]), tf.constant([1, 1, 1, 3]), tf.constant([4, 1]))
    (tf.function(optimizer.apply) if graph else optimizer.apply)([rows])
    assert np.array(table).tolist() == [[0.0], [-1.0], [0.0], [0.0]]
    assert handle.last.clipped


@pytest.mark.parametrize("end", ["bias", "biass"])
def test_a_pattern_may_match_a_variable_of_another_optimizer(end: str) -> None:
    model, optimizer = network(), keras.optimizers.SGD(1.0)
    first, *_, last = model.trainable_variables
    name = last.path.replace("/", ".")
    ClipConfig(rule="value", threshold=1.0, exclude=[name.replace("bias", end)]).attach_to(optimizer, model)
    optimizer.build([first])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.apply([tf.ones(first.shape)])
    result = [each for each in caught if "pattern" in str(each.message)]
    assert name.endswith("bias")
    assert len(result) == (end == "biass")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_is_saved_and_trained_on(tmp_path: Path) -> None:
    config = ClipConfig(rule="global_norm", threshold=LINEAR)

    def trained(resume: bool) -> tuple[Any, Any]:
        model, optimizer = network(), keras.optimizers.Adam(0.01)
        handle = config.attach_to(optimizer)
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(INPUTS[:16], TARGETS[:16], batch_size=8, shuffle=False, verbose=0)
        if resume:
            model.save(tmp_path / "model.keras")
            model = keras.models.load_model(tmp_path / "model.keras")
            handle = config.attach_to(model.optimizer)
        model.fit(INPUTS[16:], TARGETS[16:], batch_size=8, shuffle=False, verbose=0)
        return model, handle.last

    one, other = trained(resume=False), trained(resume=True)
    assert one[1][1:] == other[1][1:]  # the threshold is that of step 3 in both
    for a, b in zip(one[0].trainable_variables, other[0].trainable_variables, strict=True):
        np.testing.assert_array_equal(np.array(a), np.array(b))


def test_a_handle_prints_its_rule_and_its_step() -> None:
    optimizer = keras.optimizers.SGD(1.0)
    handle = ClipConfig(rule="global_norm", threshold=1.0).attach_to(optimizer)
    variable = keras.Variable([3.0])
    optimizer.apply([keras.ops.array([2.0])], [variable])
    assert repr(handle) == "<ClipConfig global_norm, attached, step 1>"
    handle.detach()
    assert repr(handle) == "<ClipConfig global_norm, detached, step 1>"
