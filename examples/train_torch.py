"""Train with `clip.toml` on PyTorch, and write a line for every clip: python examples/train_torch.py RECORDS.jsonl"""

from __future__ import annotations

import sys
from pathlib import Path

import data
import torch

import unified_clip
from unified_clip import ClipConfig


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(data.INPUTS, data.UNITS)
        self.output = torch.nn.Linear(data.UNITS, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.hidden(inputs)))


def main(records: str) -> None:
    model = Model()
    model.load_state_dict({name: torch.from_numpy(array.T.copy()) for name, array in data.weights().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=data.LEARNING_RATE)
    clip = ClipConfig.load(Path(__file__).with_name("clip.toml")).attach_to(optimizer, model)
    with unified_clip.record(records, norms=True, names=model):
        for inputs, targets in data.batches():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(torch.from_numpy(inputs)), torch.from_numpy(targets))
            loss.backward()
            optimizer.step()
    print({"loss": loss.item(), **clip.last.metrics(), "clip_rate": clip.rate})


if __name__ == "__main__":
    main(sys.argv[1])
