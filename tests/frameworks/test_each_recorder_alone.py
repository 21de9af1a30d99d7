"""The folder `recorder` alone records the same as `unified-clip record`, also without the names of newer releases."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest
from support.kits import Kit
from support.recorder_alone import Lines, differences, lines, record_alone, record_by_command
from support.tiers import quick_on, where

from unified_clip.compare import recordings

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.name in SCRIPTS)]

TORCH = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.OPTIMIZER
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(16, 6)).square().mean().backward()
        CLIP
        optimizer.step()
        schedule.step()
"""

OLD = (
    "import torch; del sys.modules['torch.optim.optimizer'].register_optimizer_step_pre_hook; "
    "del torch.optim.Optimizer.register_step_pre_hook; del torch._C._current_graph_task_id; "
)
"""PyTorch 1 lacks these names."""

SESSION = """
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.reset_default_graph()
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

PADDLE = """
    import paddle

    def train(new_optimizer, clip):
        paddle.seed(0)
        model = paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 3))
        schedule = paddle.optimizer.lr.StepDecay(0.1, 2, 0.5)
        optimizer = new_optimizer(schedule, parameters=model.parameters())
        for step in range(4):
            for _ in range(2):
                model(paddle.randn([16, 6])).square().mean().backward()
            clip(model.parameters())
            optimizer.step()
            optimizer.clear_grad()
            schedule.step()

    def by_hand(parameters, scale=lambda gradient, factor: gradient.set_value(gradient * factor)):
        norm = float(sum((each.grad**2).sum() for each in parameters).sqrt())
        for each in parameters:
            scale(each.grad, min(1.0, 0.1 / norm))

    @paddle.no_grad()
    def in_place(parameters):
        by_hand(parameters, lambda gradient, factor: gradient.scale_(factor))

    def unclipped(parameters):
        pass

"""

CLIPPED = """
    from functools import partial
    from paddle.optimizer import SGD, Adam, AdamW, Momentum

    by_norm, by_total_norm = paddle.nn.ClipGradByNorm(0.1), paddle.nn.ClipGradByGlobalNorm(0.1)
    decay = paddle.regularizer.L2Decay(0.01)
    train(partial(Momentum, momentum=0.9, weight_decay=decay, grad_clip=by_total_norm), unclipped)
    train(partial(Adam, grad_clip=by_norm), unclipped)
    train(
        lambda rate, parameters: AdamW(rate, parameters=[{"params": [each]} for each in parameters]),
        lambda parameters: paddle.nn.utils.clip_grad_value_(parameters, 0.01),
    )
    train(partial(SGD, weight_decay=0.01), lambda parameters: paddle.nn.utils.clip_grad_norm_(parameters, 0.1))
    train(SGD, by_hand)
"""

IN_PROGRAM = """
    import numpy as np
    import paddle

    paddle.enable_static()
    paddle.seed(0)
    x = paddle.static.data("x", [None, 6], "float32")
    loss = paddle.mean(paddle.square(paddle.static.nn.fc(x, 3)))
    paddle.optimizer.SGD(0.1, grad_clip=paddle.nn.ClipGradByNorm(0.05)).minimize(loss)
    run = paddle.static.Executor().run
    run(paddle.static.default_startup_program())
    for step in range(3):
        run(feed={"x": np.full((8, 6), step + 1, np.float32)}, fetch_list=[loss] if step else loss)
    run(feed={"x": np.ones((8, 6), np.float32)}, fetch_list=[loss], use_prune=True)  # not recorded
"""


def of(text: str, optimizer: str, clip: str) -> str:
    return text.replace("OPTIMIZER", optimizer).replace("CLIP", clip)


BY_HAND = of(TORCH, "SGD(model.parameters(), 0.1)", "[each.grad.mul_(0.5) for each in model.parameters()]")

OF_TORCH = [
    of(TORCH, "Adam(model.parameters(), 0.01)", "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)"),
    BY_HAND,
    of(TORCH, "AdamW([{'params': [each], 'lr': 0.01} for each in model.parameters()])", "pass"),
]
OF_SESSIONS = [
    of(SESSION, "AdamOptimizer(0.01)", "tf.clip_by_global_norm(gradients, 0.1)[0]"),
    of(SESSION, "MomentumOptimizer(0.1, 0.9)", "[tf.clip_by_norm(each, 0.1) for each in gradients]"),
]

SCRIPTS: dict[str, tuple[list[str], int, int]] = {
    "torch": (OF_TORCH, 4, 12),
    "tensorflow": (OF_SESSIONS, 12, 8),
    "paddle": ([PADDLE, CLIPPED, IN_PROGRAM], 19, 20),
}
"""The parts of a script, and the numbers of clips and of steps that are recorded. One script has all trainings, because
importing a framework takes longer than they do."""


def written(folder: Path, *parts: str) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text("".join(map(textwrap.dedent, parts)), encoding="utf-8")
    return script


def without_warnings(file: Path) -> Lines:
    return [line for line in lines(file) if "warning" not in line]


def in_order(lines: Lines) -> Lines:
    """In one run of a session, clips of single gradients run in any order."""
    steps = [0, *(place for place, line in enumerate(lines, 1) if "optimizer" in line)]
    runs = [lines[start:end] for start, end in itertools.pairwise(steps)]
    return [line for run in runs for line in sorted(run, key=lambda line: list(line["parameters"]))]


@quick_on("paddle")
def test_it_records_the_same_as_the_command(kit: Kit, tmp_path: Path) -> None:
    parts, clips, steps = SCRIPTS[kit.name]
    script = written(tmp_path, *parts)
    alone, command = without_warnings(record_alone(script)), without_warnings(record_by_command(script))
    assert [sum("rule" in line for line in alone), sum("optimizer" in line for line in alone)] == [clips, steps]
    assert kit.name == "torch" or sum("tensors" in line for line in alone) == steps
    if kit.name == "tensorflow":  # it records more of sessions
        assert all(len(line["losses"]) == 1 for line in alone if "optimizer" in line)
        assert {*differences(in_order(alone), in_order(command))} <= {"clipped", "losses", "step", "tensors"}
    else:
        assert differences(alone, command) == {}
    if kit.name == "torch":
        (tmp_path / "alone.jsonl").unlink()
        assert differences(without_warnings(record_alone(script, OLD)), command) == {}


@where(lambda kit: kit.name == "paddle")
def test_a_clip_by_hand_is_known(tmp_path: Path) -> None:
    old, same, unclipped = (
        record_alone(written(tmp_path / clip, PADDLE, f"train(paddle.optimizer.SGD, {clip})"))
        for clip in ("by_hand", "in_place", "unclipped")
    )
    assert recordings.compare(old, same).findings == []
    (found,) = recordings.compare(old, unclipped).findings
    assert (found.step, found.kind, found.old, found.new) == (1, "left-out clip", "clip", "none")


@where(lambda kit: kit.name == "torch")
def test_a_failing_recorder_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    script = written(tmp_path, BY_HAND, "torch.save(model.state_dict(), 'ended.pt')")
    record_alone(script, "import numpy; numpy.ravel_multi_index = None; ")
    assert [line for line in lines(tmp_path / "alone.jsonl") if "warning" in line]
    assert (tmp_path / "ended.pt").exists()
