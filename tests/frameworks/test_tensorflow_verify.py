"""`unified-clip verify` of the clipping functions of TensorFlow and Keras, and of their ports. Each script has its own
process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import (
    NUMPY,
    TORCH,
    called_names,
    cause_kinds,
    largest_ulps,
    needs_torch,
    verify_as_json,
)

TAPE = """
import tensorflow as tf

def step(weights, batches):
    held = {name: tf.Variable(array) for name, array in weights.items()}

    GRAPH
    def one(x, y):
        with tf.GradientTape() as tape:
            out = tf.clip_by_value(x @ held["weight"] + held["bias"], -100.0, 100.0)
            loss = tf.reduce_mean(tf.square(out - y))
        grads = tape.gradient(loss, list(held.values()))
        CLIP
        for variable, grad in zip(held.values(), grads):
            variable.assign_sub(0.25 * grad)
        return grads

    for batch in batches:
        grads = one(tf.constant(batch["x"]), tf.constant(batch["y"]))
        yield held, dict(zip(held, grads))
"""
"""The step also clips a tensor that is no gradient. This clip must not count."""

SESSION = """
import tensorflow.compat.v1 as tf

def step(weights, batches):
    tf.disable_eager_execution()
    x, y = tf.placeholder(tf.float32, [4, 6]), tf.placeholder(tf.float32, [4, 2])
    held = {name: tf.Variable(array) for name, array in weights.items()}
    loss = tf.reduce_mean(tf.square(x @ held["weight"] + held["bias"] - y))
    optimizer = tf.train.GradientDescentOptimizer(0.25)
    pairs = optimizer.compute_gradients(loss, list(held.values()))
    grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 0.5)
    train = optimizer.apply_gradients(zip(grads, held.values()))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for batch in batches:
            _, found = session.run([train, grads], {x: batch["x"], y: batch["y"]})
            yield session.run(held), dict(zip(held, found))
"""

KERAS = """
import keras

def step(weights, batches):
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    net.set_weights([weights["weight"], weights["bias"]])
    net.compile(keras.optimizers.SGD(0.25, CLIP), "mse")
    for batch in batches:
        net.train_on_batch(batch["x"], batch["y"])
        yield dict(zip(["weight", "bias"], net.get_weights())), None
"""

ALL = "grads, _ = tf.clip_by_global_norm(grads, 0.5)"
EACH = "grads = [tf.clip_by_norm(grad, 0.5) for grad in grads]"
OURS = "grads, _ = uc.clip_by_global_norm(grads, 0.5)"
OURS_EACH = "grads = {n: uc.clip_by_norm(g, 0.5) for n, g in grads.items()}"


def tape(clip: str, graph: str = "") -> str:
    return TAPE.replace("CLIP", clip).replace("GRAPH", graph)


RATIO = """
import tensorflow as tf

def step(weights, batches):
    held = {name: tf.Variable(array) for name, array in weights.items()}
    GRAPH
    def one(x, y):
        with tf.GradientTape() as tape:
            out = x @ held["weight"] + held["bias"]
            ratio = tf.clip_by_value(tf.exp(0.1 * out[:2, 0]), 0.9, 1.1)  # of the shape of the bias
            loss = tf.reduce_mean(tf.square(out - y))
        grads = [tf.identity(each) for each in tape.gradient(loss, list(held.values()))]
        held["weight"].assign(tf.clip_by_value(held["weight"], -100.0, 100.0))
        grads = [tf.clip_by_value(each, -0.25, 0.5) for each in grads]
        for variable, grad in zip(held.values(), grads):
            variable.assign_sub(0.25 * grad)

    for batch in batches:
        one(tf.constant(batch["x"]), tf.constant(batch["y"]))
        yield held, None
"""


@pytest.mark.nightly
@pytest.mark.parametrize("graph", ["", "@tf.function"])
def test_values_that_are_clipped_beside_gradients_of_their_shape_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], graph: str
) -> None:
    new = NUMPY.replace("CLIP", "grads = {n: uc.clip_by_value(g, -0.25, 0.5) for n, g in grads.items()}")
    data = verify_as_json(tmp_path, capsys, RATIO.replace("GRAPH", graph), new, "--max-ulp", "64")
    assert data["same"]
    assert all(len(step["old"]) == 2 for step in data["steps"]), "a call for each gradient"
    assert data["not_gradients"] == [{"side": "old", "call": "tf.clip_by_value", "count": 8}]


@pytest.mark.nightly
@pytest.mark.parametrize("graph", ["", "@tf.function"])
@pytest.mark.parametrize("clip", ["tf.clip_by_norm(grad / 2.0 * 2.0, 0.5)", "2.0 * tf.clip_by_norm(0.5 * grad, 0.25)"])
def test_a_clip_of_what_is_computed_from_a_gradient_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], graph: str, clip: str
) -> None:
    data = verify_as_json(
        tmp_path, capsys, tape(f"grads = [{clip} for grad in grads]", graph), NUMPY.replace("CLIP", OURS_EACH)
    )
    assert called_names(data, "old") == {"tf.clip_by_norm"}
    assert all(len(step["old"]) == 2 for step in data["steps"]), "a call for each gradient"
    assert {each["call"] for each in data["not_gradients"]} == {"tf.clip_by_value"}  # of the model's output


@pytest.mark.nightly
@needs_torch
def test_a_step_with_a_tape_and_its_port_to_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = TORCH.replace("CLIP", "uc.ClipGradByGlobalNorm(0.5).clip_(net.parameters())")
    data = verify_as_json(tmp_path, capsys, tape(ALL), port, "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {"tf.clip_by_global_norm"}
    assert data["steps"][0]["coefficient"]["ulps"] == 0


@pytest.mark.nightly
def test_a_port_that_clips_each_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = verify_as_json(tmp_path, capsys, tape(ALL), NUMPY.replace("CLIP", OURS_EACH))
    assert cause_kinds(data)[0] == "per tensor for global"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "call", "replacement"),
    [
        (tape(EACH, "@tf.function"), "tf.clip_by_norm", OURS_EACH),
        (
            tape("grads = [tf.clip_by_value(g, -0.25, 0.5) for g in grads]"),
            "tf.clip_by_value",
            "grads = {n: uc.clip_by_value(g, -0.25, 0.5) for n, g in grads.items()}",
        ),
        (SESSION, "tf.clip_by_global_norm", OURS),
        (KERAS.replace("CLIP", "clipnorm=0.5"), "keras.optimizers.SGD(clipnorm=)", OURS_EACH),
        (KERAS.replace("CLIP", "global_clipnorm=0.5"), "keras.optimizers.SGD(global_clipnorm=)", OURS),
    ],
)
def test_clips_are_recorded_eagerly_in_graphs_and_in_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, call: str, replacement: str
) -> None:
    data = verify_as_json(tmp_path, capsys, old, NUMPY.replace("CLIP", replacement), "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {call}
    count = 2 if call in ("tf.clip_by_norm", "tf.clip_by_value") else 1  # a call for each gradient
    assert all(len(step["old"]) == count for step in data["steps"])
    assert largest_ulps(data, "tensors") <= 64
