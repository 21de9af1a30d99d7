"""docs/porting/optimizers_and_layers.md: with its code, PyTorch has the updates of Keras, BERT and TensorFlow 1."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
from support.page_examples import run

from unified_clip.compare.recordings import RecordingComparison, compare

PAGE = (Path(__file__).parents[2] / "docs" / "porting" / "optimizers_and_layers.md").read_text(encoding="utf-8")
KERAS_ADAM, BERT_ADAM, MOMENTUM, RMSPROP = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

DATA = """
import numpy as np

numbers = np.random.default_rng(0)
np.savez("weights.npz", kernel=numbers.normal(size=(6, 1)).astype("float32"), bias=np.zeros(1, "float32"))
x, y = numbers.normal(size=(16, 8, 6)), numbers.normal(size=(16, 8, 1))
np.savez("batches.npz", x=x.astype("float32"), y=y.astype("float32"))
"""

PORT = """
import numpy as np, torch, unified_clip.torch

torch.set_default_dtype(torch.{dtype})
files = map(np.load, ("weights.npz", "batches.npz"))
weights, batches = ({{name: array.astype("{dtype}") for name, array in file.items()}} for file in files)
{code}
model = torch.nn.Linear(6, 1)
model.load_state_dict({{"weight": torch.tensor(weights["kernel"].T), "bias": torch.tensor(weights["bias"])}})
optimizer = {optimizer}
for t, (x, y) in enumerate(zip(batches["x"], batches["y"]), start=1):
    optimizer.zero_grad()
    (model(torch.tensor(x)) - torch.tensor(y)).square().mean().backward()
    unified_clip.torch.GradientClipByGlobalNorm({clip}).clip_(model.parameters())
{step}
"""

KERAS = """
import keras
import numpy as np

keras.config.set_floatx("{dtype}")
weights, batches = np.load("weights.npz"), np.load("batches.npz")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.set_weights([weights["kernel"], weights["bias"]])
model.compile(keras.optimizers.{optimizer}, global_clipnorm={clip}), "mse")
for x, y in zip(batches["x"], batches["y"]):
    model.train_on_batch(x, y)
"""

SESSION = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
tf.reset_default_graph()
{code}
weights, batches = np.load("weights.npz"), np.load("batches.npz")
x, y = tf.placeholder(tf.float32, [8, 6]), tf.placeholder(tf.float32, [8, 1])
kernel, bias = tf.Variable(weights["kernel"]), tf.Variable(weights["bias"], name="bias")
optimizer = {optimizer}
gradients, variables = zip(*optimizer.compute_gradients(tf.reduce_mean(tf.square(x @ kernel + bias - y))))
gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
train = optimizer.apply_gradients(zip(gradients, variables))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for batch in range(16):
        session.run(train, {{x: batches["x"][batch], y: batches["y"][batch]}})
"""

BERT = """
class AdamWeightDecayOptimizer(tf.train.Optimizer):  # as in BERT's optimization.py
    def __init__(self, learning_rate, weight_decay_rate, exclude_from_weight_decay):
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.learning_rate, self.weight_decay_rate = learning_rate, weight_decay_rate
        self.beta_1, self.beta_2, self.epsilon = 0.9, 0.999, 1e-6
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, param in grads_and_vars:
            m, v = (tf.Variable(tf.zeros(param.shape), trainable=False) for _ in range(2))
            next_m = tf.multiply(self.beta_1, m) + tf.multiply(1.0 - self.beta_1, grad)
            next_v = tf.multiply(self.beta_2, v) + tf.multiply(1.0 - self.beta_2, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if not any(each in param.name for each in self.exclude_from_weight_decay):
                update += self.weight_decay_rate * param
            next_param = param - self.learning_rate * update
            assignments += [param.assign(next_param), m.assign(next_m), v.assign(next_v)]
        return tf.group(*assignments, name=name)
"""

RECORD = """
import runpy, sys, unified_clip
for name in sys.argv[1:]:
    with unified_clip.record(f"{name}.jsonl", norms=True):
        runpy.run_path(f"{name}.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    path = tmp_path_factory.mktemp("page")
    run(path, "-c", DATA)
    return path


def record(folder: Path, **scripts: str) -> None:
    """Record scripts of one framework, because TensorFlow and PyTorch need processes of their own."""
    for name, code in scripts.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    run(folder, "-c", RECORD, *scripts)


STEP = "optimizer.step()\n"


def port(optimizer: str, code: str = "", step: str = STEP, dtype: str = "float32", clip: float = 0.5) -> str:
    return PORT.format(optimizer=optimizer, code=code, step=indent(step, "    "), dtype=dtype, clip=clip)


def compared(folder: Path, old: str, new: str) -> RecordingComparison:
    return compare(folder / f"{old}.jsonl", folder / f"{new}.jsonl")


def texts(comparison: RecordingComparison) -> str:
    return "\n".join(f"{each.kind}: {each.sentence}" for each in (*comparison.findings, *comparison.recipes.tolerated))


@pytest.mark.nightly
def test_adam_with_the_loop_of_the_page_has_the_updates_of_keras(folder: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    adam, clip = "torch.optim.Adam(model.parameters(), lr=0.01)", 1e-5  # eps matters for small gradients
    record(folder, keras_adam=KERAS.format(dtype="float32", optimizer="Adam(0.01", clip=clip))
    record(folder, as_in_keras=port(adam, step=KERAS_ADAM + STEP, clip=clip), plain_adam=port(adam, clip=clip))
    right, wrong = (compared(folder, "keras_adam", name) for name in ("as_in_keras", "plain_adam"))
    assert (list(right.findings), right.recipes.steps) == ([], 16)
    assert "another place of the optimizer's eps" in {each.kind for each in wrong.findings}


@pytest.mark.nightly
def test_momentum_with_the_code_of_the_page_follows_a_schedule_as_in_keras(folder: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    schedule = "keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=5, decay_rate=0.5, staircase=True)"
    record(folder, keras_momentum=KERAS.format(dtype="float32", optimizer=f"SGD({schedule}, momentum=0.9", clip=0.5))
    sgd, code = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)", "last_lr = 0.05"
    halve = "optimizer.param_groups[0]['lr'] = 0.05 * 0.5 ** ((t - 1) // 5)\n"
    record(folder, momentum=port(sgd, code, halve + MOMENTUM), plain_momentum=port(sgd, code, halve + STEP))
    right, wrong = (compared(folder, "keras_momentum", name) for name in ("momentum", "plain_momentum"))
    assert (texts(right), right.recipes.steps) == ("", 16)
    assert "keeps earlier learning rates" in texts(wrong)


CALL = r"`(\w+\(.*?\))` "
ROWS = re.findall(rf"^\| (?:{CALL})?\| (?:{CALL}|(the same) )?\| `(lambda t: .*?)`", PAGE, re.MULTILINE)
OF_KERAS = [(keras, factor) for keras, _, _, factor in ROWS if keras]
OF_PADDLE = [(paddle or keras, factor) for keras, paddle, is_same, factor in ROWS if paddle or is_same]
(ADAGRAD,) = re.findall(r"`(torch\.optim\.Adagrad\(.*\))`", PAGE)
GRADIENTS = [[0.5, -2.0], [0.25, 1.0], [-3.0, 1e-5]]

RATES = """
import math
import numpy as np

r, s, n, q, end, power, d, start = 0.1, 0.05, 4, 0.8, 0.001, 2.0, 16, 1e-5
{code}
np.save("rates.npy", [[[rate, r * factor(t)] for t, rate in enumerate(rates)] for rates, factor in pairs])
"""

KERAS_RATES = f"""
import keras

def rates(schedule):
    return [float(schedule(t)) for t in range(12)]

pairs = [{", ".join(f"(rates(keras.optimizers.schedules.{schedule}), {factor})" for schedule, factor in OF_KERAS)}]
"""

PADDLE_RATES = f"""
import paddle

schedule, f = paddle.optimizer.lr.StepDecay(r, n, q), lambda t: q ** (t // n)

def rates(schedule):
    weight = paddle.create_parameter([1], "float32")
    optimizer = paddle.optimizer.SGD(schedule, parameters=[weight])
    for _ in range(30):
        yield optimizer.get_lr()
        weight.sum().backward()
        optimizer.step()
        schedule.step()

pairs = [{", ".join(f"(rates(paddle.optimizer.lr.{schedule}), {factor})" for schedule, factor in OF_PADDLE)}]
"""

ADAGRAD_OLD = f"""
import numpy as np
import tensorflow as tf

weight, optimizer = tf.Variable([1.0, 2.0]), tf.compat.v1.train.AdagradOptimizer(0.01)
for gradient in {GRADIENTS}:
    optimizer.apply_gradients([(tf.constant(gradient), weight)])
np.save("adagrad_old.npy", weight.numpy())
"""

ADAGRAD_NEW = f"""
import numpy as np, torch

weight = torch.tensor([1.0, 2.0])
parameters = [weight]
optimizer = {ADAGRAD}
for gradient in {GRADIENTS}:
    weight.grad = torch.tensor(gradient)
    optimizer.step()
np.save("adagrad_new.npy", weight.numpy())
"""


@pytest.fixture(scope="module")
def runs(folder: Path) -> Path:
    """Record all scripts of a framework in one process, since TensorFlow and PyTorch are imported for seconds."""
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    bert = 'AdamWeightDecayOptimizer(0.01, weight_decay_rate=0.01, exclude_from_weight_decay=["bias"])'
    rmsprop = "tf.train.RMSPropOptimizer(0.01, decay=0.99, epsilon=1e-5)"
    record(
        folder,
        rates=RATES.format(code=KERAS_RATES),
        adagrad_old=ADAGRAD_OLD,
        bert_old=SESSION.format(optimizer=bert, code=BERT),
        rmsprop_old=SESSION.format(optimizer=rmsprop, code=""),
    )
    groups = '[{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]'
    arguments = "(model.parameters(), lr=0.01, alpha=0.99, eps=1e-5)"
    record(
        folder,
        adagrad_new=ADAGRAD_NEW,
        bert_adam=port(f"BertAdam({groups}, lr=0.01)", BERT_ADAM),
        bert_wrong=port(f"torch.optim.AdamW({groups}, lr=0.01, eps=1e-6)"),
        rmsprop_port=port(f"RMSprop{arguments}", RMSPROP),
        rmsprop_wrong=port(f"torch.optim.RMSprop{arguments}"),
    )
    return folder


@pytest.mark.nightly
def test_the_functions_for_schedules_have_the_rates_of_keras(runs: Path) -> None:
    of_keras, of_page = np.moveaxis(np.load(runs / "rates.npy"), -1, 0)
    assert of_keras.shape == (5, 12)
    np.testing.assert_allclose(of_page, of_keras, rtol=1e-5)


@pytest.mark.nightly
def test_the_functions_for_schedules_have_the_rates_of_paddle(tmp_path: Path) -> None:
    if find_spec("paddle") is None:
        pytest.skip("Paddle is not installed")
    run(tmp_path, "-c", RATES.format(code=PADDLE_RATES))
    of_paddle, of_page = np.moveaxis(np.load(tmp_path / "rates.npy"), -1, 0)
    assert of_paddle.shape == (5, 30)
    np.testing.assert_allclose(of_page, of_paddle, rtol=1e-12)


@pytest.mark.nightly
def test_the_class_without_bias_correction_has_the_updates_of_bert(runs: Path) -> None:
    right, wrong = (compared(runs, "bert_old", name) for name in ("bert_adam", "bert_wrong"))
    assert (texts(right), right.recipes.steps) == ("", 16)
    assert "bias correction" in texts(wrong)


def test_the_updates_of_bert_are_larger_by_these_factors() -> None:
    def factor(step: int) -> float:
        return (1 - 0.9**step) / float(np.sqrt(1 - 0.999**step))

    stated = re.findall(r"([\d.]+) times(?: as large)? at step\s+(\d+)", PAGE)
    assert [(f"{factor(int(step)):.1f}", step) for _, step in stated] == stated
    assert len(stated) == 4


@pytest.mark.nightly
def test_the_class_rmsprop_has_the_updates_of_a_session(runs: Path) -> None:
    right, wrong = (compared(runs, "rmsprop_old", name) for name in ("rmsprop_port", "rmsprop_wrong"))
    assert (texts(right), right.recipes.steps) == ("", 16)
    # the squares of the old run start at 1, which hides where it adds its eps
    assert "initial squares is 1 in rmsprop_old.jsonl" in texts(wrong)


@pytest.mark.nightly
def test_adagrad_with_the_arguments_on_the_page_has_the_updates_of_a_session(runs: Path) -> None:
    old, new = (np.load(runs / f"adagrad_{name}.npy") for name in ("old", "new"))
    np.testing.assert_allclose(new, old, rtol=1e-7)
