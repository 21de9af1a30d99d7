"""The folder `recorder` alone records Paddle 2 and 3 as `unified-clip record` does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.recorder_alone import differences, lines, record_alone, record_by_command

from unified_clip.compare import recordings

TRAIN = """
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


def _script(folder: Path, *parts: str, name: str = "train") -> Path:
    (folder / name).mkdir()
    script = folder / name / "train.py"
    script.write_text("".join(map(textwrap.dedent, parts)), encoding="utf-8")
    return script


@pytest.mark.parametrize(("text", "clips", "steps"), [(TRAIN + CLIPPED, 16, 20), (IN_PROGRAM, 3, 0)])
def test_it_records_the_same_as_the_command(tmp_path: Path, text: str, clips: int, steps: int) -> None:
    script = _script(tmp_path, text)
    alone, command = lines(record_alone(script)), lines(record_by_command(script))
    warnings = [
        [each.pop(each.index(line))["warning"] for line in [*each] if "warning" in line] for each in (alone, command)
    ]
    assert [["pruned" in text for text in each] for each in warnings] == [[True] * (not steps)] * 2
    assert [sum("rule" in line for line in alone), sum("optimizer" in line for line in alone)] == [clips, steps]
    assert sum("tensors" in line for line in alone) == steps
    assert differences(alone, command) == {}


def test_a_clip_by_hand_is_known(tmp_path: Path) -> None:
    scripts = [
        _script(tmp_path, TRAIN, f"train(paddle.optimizer.SGD, {clip})", name=clip)
        for clip in ("by_hand", "in_place", "unclipped")
    ]
    old, same, unclipped = map(record_alone, scripts)
    assert recordings.compare(old, same).findings == []
    (found,) = recordings.compare(old, unclipped).findings
    assert (found.step, found.kind, found.old, found.new) == (1, "left-out clip", "clip", "none")
    assert "0.1" in found.sentence
