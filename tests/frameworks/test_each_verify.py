"""`unified-clip verify` compares steps with the frameworks' own clips, eager and in graphs, with their ports."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kits import Kit
from support.port.verify_pairs import NUMPY, TORCH, called_names, largest_ulps, verify_as_json
from support.tiers import where

pytestmark = [pytest.mark.nightly, pytest.mark.graphs]

OPTAX = """
import jax
import jax.numpy as jnp
import optax

def step(weights, batches):
    optimizer = optax.chain(optax.clip_by_global_norm(max_norm=0.5), optax.sgd(0.25))
    params = {name: jnp.asarray(array) for name, array in weights.items()}
    state = optimizer.init(params)

    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["weight"] + params["bias"] - batch["y"]) ** 2)

    @jax.jit
    def one(params, state, batch):
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches:
        params, state = one(params, state, batch)
        yield params, None
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


STATIC = """
import numpy as np
import paddle

def step(weights, batches):
    paddle.enable_static()
    x, y = paddle.static.data("x", [4, 6]), paddle.static.data("y", [4, 2])
    net = paddle.nn.Linear(6, 2)
    loss = (net(x) - y).square().mean()
    optimizer = paddle.optimizer.SGD(0.25, parameters=net.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5))
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


ALL = "grads, _ = uc.clip_by_global_norm(grads, 0.5)"
NATIVES: dict[str, tuple[str, str, str]] = {
    "jax": (OPTAX, "optax.clip_by_global_norm", ALL),
    "tensorflow": (SESSION, "tf.clip_by_global_norm", ALL),
    "paddle": (STATIC, "paddle.nn.ClipGradByGlobalNorm", ALL),
    "torch": (
        TORCH.replace("CLIP", "torch.nn.utils.clip_grads_with_norm_(net.parameters(), 0.5, torch.tensor(2.0))"),
        "torch.nn.utils.clip_grads_with_norm_", "uc.clip_grads_with_norm_(grads, 0.5, 2.0)",
    ),
}  # fmt: skip
"""For each framework: a step, the call that is recorded, and the clip of its port to NumPy."""


@where(lambda kit: kit.name in NATIVES)
def test_a_step_with_a_native_clip_and_its_port_to_numpy_are_the_same(
    kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, call, clip = NATIVES[kit.name]
    data = verify_as_json(tmp_path, capsys, old, NUMPY.replace("CLIP", clip), "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {call}
    assert all(len(step["old"]) == 1 for step in data["steps"])
    assert largest_ulps(data, "tensors") <= 64


@where(lambda kit: kit.name == "paddle")
def test_a_static_program_and_its_drop_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recordings do not contain unified_clip's clips in static programs. `verify` watches these like Paddle's."""
    new = STATIC.replace("paddle.nn.Clip", "uc.Clip").replace(
        "import paddle", "import paddle, unified_clip.paddle as uc"
    )
    data = verify_as_json(tmp_path, capsys, STATIC, new, "--max-ulp", "8")
    assert data["same"]
    assert called_names(data, "new") == {"GradientClipByGlobalNorm"}
