"""A training run in Paddle, recorded into the given file."""

from __future__ import annotations

import sys

import paddle
import setting

import unified_clip
from unified_clip.paddle import ClipGradByGlobalNorm


class Net(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = paddle.nn.Linear(6, 8), paddle.nn.Linear(8, 2)
        self.set_state_dict(setting.WEIGHTS)

    def forward(self, batch: paddle.Tensor) -> paddle.Tensor:
        return self.out(paddle.nn.functional.relu(self.hidden(batch)))


def main(path: str) -> None:
    model = Net()
    clip = ClipGradByGlobalNorm(setting.LIMIT)
    optimizer = paddle.optimizer.SGD(setting.RATE, parameters=model.parameters(), grad_clip=clip)
    with unified_clip.record(path, norms=True) as run:
        for batch, target in zip(setting.BATCHES, setting.TARGETS, strict=True):
            run.next_step()
            error = model(paddle.to_tensor(batch)) - paddle.to_tensor(target)
            error.square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()


main(sys.argv[1])
