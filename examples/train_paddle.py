"""Train with `clip.toml` on Paddle, and write a line for every clip: python examples/train_paddle.py RECORDS.jsonl"""

from __future__ import annotations

import sys
from pathlib import Path

import data
import paddle

import unified_clip
from unified_clip import ClipConfig


class Model(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = paddle.nn.Linear(data.INPUTS, data.UNITS)
        self.output = paddle.nn.Linear(data.UNITS, 1)

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        return self.output(paddle.tanh(self.hidden(inputs)))


def main(records: str) -> None:
    model = Model()
    model.set_state_dict(data.weights())
    clip = ClipConfig.load(Path(__file__).with_name("clip.toml")).as_paddle(model)
    optimizer = paddle.optimizer.SGD(data.LEARNING_RATE, model.parameters(), grad_clip=clip)
    with unified_clip.record(records, norms=True, names=dict(model.named_parameters())):
        for inputs, targets in data.batches():
            optimizer.clear_grad()
            loss = paddle.nn.functional.mse_loss(model(paddle.to_tensor(inputs)), paddle.to_tensor(targets))
            loss.backward()
            optimizer.step()
    print({"loss": loss.item(), **clip.last.metrics(), "clip_rate": clip.rate})


if __name__ == "__main__":
    main(sys.argv[1])
