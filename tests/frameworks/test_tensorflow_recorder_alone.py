"""The folder `recorder` alone records sessions of TensorFlow 1 as `unified-clip record` does."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest
from support.recorder_alone import Lines, differences, lines, record_alone, record_by_command

TRAIN = """
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    random = np.random.RandomState(0)
    x = tf.placeholder(tf.float32, [None, 6])
    weight = tf.get_variable("weight", initializer=random.randn(6, 3).astype("float32"))
    bias = tf.get_variable("bias", initializer=np.ones(3, "float32"))
    loss = tf.reduce_mean((tf.tanh(x @ weight + bias) - 1) ** 2)
    optimizer = tf.train.OPTIMIZER
    gradients = [gradient for gradient, _ in optimizer.compute_gradients(loss, [weight, bias])]
    clipped = CLIP
    train = optimizer.apply_gradients(zip(clipped, [weight, bias]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(4):
            session.run(train, {x: random.randn(16, 6)})
"""


@pytest.mark.parametrize(
    ("optimizer", "clip", "calls"),
    [
        ("AdamOptimizer(0.01)", "tf.clip_by_global_norm(gradients, 0.1)[0]", 1),
        ("MomentumOptimizer(0.1, 0.9)", "[tf.clip_by_norm(gradient, 0.1) for gradient in gradients]", 2),
        ("GradientDescentOptimizer(0.1)", "[tf.clip_by_value(gradient, -0.01, 0.02) for gradient in gradients]", 2),
        ("GradientDescentOptimizer(0.1)", "gradients", 0),
    ],
)
def test_it_records_what_the_command_records_and_more(tmp_path: Path, optimizer: str, clip: str, calls: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN).replace("OPTIMIZER", optimizer).replace("CLIP", clip), encoding="utf-8")
    alone, command = lines(record_alone(script)), lines(record_by_command(script))
    steps = [line for line in alone if "optimizer" in line]
    assert [sum("rule" in line for line in alone), len(steps)] == [4 * calls, 4]
    assert all(len(line["losses"]) == 1 and line["tensors"].keys() == {"weight", "bias"} for line in steps)
    assert {*differences(in_order(alone), in_order(command))} <= {"clipped", "losses", "step", "tensors"}


def in_order(lines: Lines) -> Lines:
    """In one run of a session, clips of single gradients run in any order."""
    steps = [0, *(place for place, line in enumerate(lines, 1) if "optimizer" in line)]
    runs = [lines[start:end] for start, end in itertools.pairwise(steps)]
    return [line for run in runs for line in sorted(run, key=lambda line: list(line["parameters"]))]
