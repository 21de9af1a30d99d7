"""`unified-clip verify` compares steps with the frameworks' own clips, eager and in graphs, with their ports."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kits import Kit
from support.port.verify_pairs import (
    NUMPY,
    TORCH,
    called_names,
    cause_kinds,
    largest_ulps,
    needs_torch,
    verify_as_json,
)
from support.tiers import where

pytestmark = [pytest.mark.nightly, pytest.mark.graphs]

OPTAX = """
import jax
import jax.numpy as jnp
import optax

def step(weights, batches):
    optimizer = optax.chain(optax.CLIP, optax.sgd(0.25))
    params = {name: jnp.asarray(array) for name, array in weights.items()}
    state = optimizer.init(params)

    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["weight"] + params["bias"] - batch["y"]) ** 2)

    GRAPH
    def one(params, state, batch):
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches:
        params, state = one(params, state, batch)
        yield params, None
"""

TAPE = """
import tensorflow as tf

def step(weights, batches):
    held = {name: tf.Variable(array) for name, array in weights.items()}

    GRAPH
    def one(x, y):
        with tf.GradientTape() as tape:
            out = tf.clip_by_value(x @ held["weight"] + held["bias"], -100.0, 100.0)  # no gradient: it does not count
            ratio = tf.clip_by_value(tf.exp(0.1 * out[:2, 0]), 0.9, 1.1)  # of the shape of the bias
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

DYGRAPH = """
import paddle

def step(weights, batches):
    net = paddle.nn.Linear(6, 2)
    net.set_state_dict(weights)
    optimizer = paddle.optimizer.SGD(0.25, parameters=net.parameters(), grad_clip=CLASS)
    for batch in batches:
        (net(paddle.to_tensor(batch["x"])) - paddle.to_tensor(batch["y"])).square().mean().backward()
        CLIP
        optimizer.step()
        yield dict(net.named_parameters()), None
        optimizer.clear_grad()
"""

STATIC = """
import numpy as np
import paddle

def step(weights, batches):
    paddle.enable_static()
    x, y = paddle.static.data("x", [4, 6]), paddle.static.data("y", [4, 2])
    net = paddle.nn.Linear(6, 2)
    loss = (net(x) - y).square().mean()
    optimizer = paddle.optimizer.SGD(0.25, parameters=net.parameters(), grad_clip=CLASS)
    optimizer.minimize(loss)
    executor, scope = paddle.static.Executor(), paddle.static.global_scope()
    executor.run(paddle.static.default_startup_program())
    names = {name: parameter.name for name, parameter in net.named_parameters()}
    for name, variable in names.items():
        scope.find_var(variable).get_tensor().set(weights[name], paddle.CPUPlace())
    for batch in batches:
        (found,) = executor.run(feed=batch, fetch_list=[loss])
        assert found.shape == ()
        yield {name: np.array(scope.find_var(variable).get_tensor()) for name, variable in names.items()}, None
"""


def graph(source: str, clip: str, decorator: str = "") -> str:
    return source.replace("CLIP", clip).replace("GRAPH", decorator)


def paddle(source: str, kind: str, clip: str = "") -> str:
    return source.replace("CLASS", kind and f"paddle.nn.{kind}").replace("CLIP", clip)


ALL = "grads, _ = uc.clip_by_global_norm(grads, 0.5)"
EACH = "grads = {n: uc.clip_by_norm(g, 0.5) for n, g in grads.items()}"
VALUE = "grads = {n: uc.clip_by_value(g, -0.25, 0.5) for n, g in grads.items()}"
WITH_EPS = "uc.clip_grad_norm_(grads, 0.5)"

NATIVES: dict[str, list[tuple[str, str, str, int]]] = {
    "jax": [
        (graph(OPTAX, "clip_by_global_norm(0.5)"), "optax.clip_by_global_norm", ALL, 1),
        (graph(OPTAX, "clip_by_global_norm(max_norm=0.5)", "@jax.jit"), "optax.clip_by_global_norm", ALL, 1),
        (graph(OPTAX, "clip(0.25)"), "optax.clip", "uc.clip_grad_value_(grads, 0.25)", 1),
        (graph(OPTAX, "clip(0.25)", "@jax.jit"), "optax.clip", "uc.clip_grad_value_(grads, 0.25)", 1),
    ],
    "tensorflow": [
        (graph(TAPE, "grads, _ = tf.clip_by_global_norm(grads, 0.5)"), "tf.clip_by_global_norm", ALL, 1),
        (graph(TAPE, "grads = [tf.clip_by_norm(g, 0.5) for g in grads]", "@tf.function"), "tf.clip_by_norm", EACH, 2),
        (graph(TAPE, "grads = [2.0 * tf.clip_by_norm(0.5 * g, 0.25) for g in grads]"), "tf.clip_by_norm", EACH, 2),
        (graph(TAPE, "grads = [tf.clip_by_value(g, -0.25, 0.5) for g in grads]"), "tf.clip_by_value", VALUE, 2),
        (
            graph(TAPE, "grads = [tf.clip_by_value(tf.identity(g), -0.25, 0.5) for g in grads]", "@tf.function"),
            "tf.clip_by_value", VALUE, 2,
        ),
        (SESSION, "tf.clip_by_global_norm", ALL, 1),
        (KERAS.replace("CLIP", "clipnorm=0.5"), "keras.optimizers.SGD(clipnorm=)", EACH, 1),
        (KERAS.replace("CLIP", "global_clipnorm=0.5"), "keras.optimizers.SGD(global_clipnorm=)", ALL, 1),
    ],
    "paddle": [
        (paddle(DYGRAPH, "ClipGradByGlobalNorm(0.5)"), "paddle.nn.ClipGradByGlobalNorm", ALL, 1),
        (paddle(DYGRAPH, "ClipGradByNorm(0.5)"), "paddle.nn.ClipGradByNorm", EACH, 1),
        (
            paddle(DYGRAPH, "ClipGradByValue(0.5)"), "paddle.nn.ClipGradByValue",
            "uc.clip_grad_value_(grads, 0.5)", 1,
        ),
        (
            DYGRAPH.replace("CLASS", "None").replace("CLIP", "paddle.nn.utils.clip_grad_norm_(net.parameters(), 0.5)"),
            "paddle.nn.utils.clip_grad_norm_", WITH_EPS, 1,
        ),
        (paddle(STATIC, "ClipGradByGlobalNorm(0.5)"), "paddle.nn.ClipGradByGlobalNorm", ALL, 1),
        (paddle(STATIC, "ClipGradByNorm(0.5)"), "paddle.nn.ClipGradByNorm", EACH, 1),
    ],
    "torch": [
        (
            TORCH.replace("CLIP", "torch.nn.utils.clip_grad.clip_grad_norm_(net.parameters(), 0.5)"),
            "torch.nn.utils.clip_grad_norm_", WITH_EPS, 1,
        ),
        (
            TORCH.replace("CLIP", "torch.nn.utils.clip_grad_value_(net.parameters(), 0.1)"),
            "torch.nn.utils.clip_grad_value_", "uc.clip_grad_value_(grads, 0.1)", 1,
        ),
        (
            TORCH.replace("CLIP", "torch.nn.utils.clip_grads_with_norm_(net.parameters(), 0.5, torch.tensor(2.0))"),
            "torch.nn.utils.clip_grads_with_norm_", "uc.clip_grads_with_norm_(grads, 0.5, 2.0)", 1,
        ),
    ],
}  # fmt: skip
"""For each framework: a step, the call that is recorded, the clip of its port to NumPy, and the calls of a step."""


@where(lambda kit, place: place[0] == kit.name and kit.exact)
@pytest.mark.parametrize("place", [(name, number) for name in NATIVES for number in range(len(NATIVES[name]))], ids=str)
def test_a_step_with_a_native_clip_and_its_port_to_numpy_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: tuple[str, int]
) -> None:
    old, call, clip, count = NATIVES[place[0]][place[1]]
    data = verify_as_json(tmp_path, capsys, old, NUMPY.replace("CLIP", clip), "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {call}
    assert all(len(step["old"]) == count for step in data["steps"])
    assert largest_ulps(data, "tensors") <= 64


GLOBAL = {
    "tensorflow": graph(TAPE, "grads, _ = tf.clip_by_global_norm(grads, 0.5)"),
    "paddle": paddle(DYGRAPH, "ClipGradByGlobalNorm(0.5)"),
}


@needs_torch
@where(lambda kit: kit.name in GLOBAL and kit.exact)
def test_a_step_and_its_ports_to_pytorch(kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = TORCH.replace("CLIP", "uc.ClipGradByGlobalNorm(0.5).clip_(net.parameters())")
    data = verify_as_json(tmp_path, capsys, GLOBAL[kit.name], right, "--max-ulp", "64")
    assert data["same"]
    assert data["steps"][0]["coefficient"]["ulps"] == 0
    for clip, mistake in (
        ("torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)", "another eps of the clip"),
        ("[uc.clip_grad_norm_([p], 0.5) for p in net.parameters()]", "per tensor for global"),
    ):
        data = verify_as_json(tmp_path, capsys, GLOBAL[kit.name], TORCH.replace("CLIP", clip))
        assert cause_kinds(data)[0] == mistake


@where(lambda kit: kit.name == "paddle" and kit.exact)
def test_a_static_program_and_its_drop_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recordings do not contain unified_clip's clips in static programs. `verify` watches these like Paddle's."""
    old = paddle(STATIC, "ClipGradByGlobalNorm(0.5)")
    new = old.replace("paddle.nn.Clip", "uc.Clip").replace("import paddle", "import paddle, unified_clip.paddle as uc")
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "8")
    assert data["same"]
    assert called_names(data, "new") == {"GradientClipByGlobalNorm"}
