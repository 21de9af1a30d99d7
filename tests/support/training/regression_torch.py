"""The regression of `regression_keras.py`, as a loop in PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc


def main(batch_size: int = 12) -> None:
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(8, 8))
    model.add_module("tanh", nn.Tanh())
    model.add_module("out", nn.Linear(8, 2))
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    inputs, targets = torch.from_numpy(setting.INPUTS), torch.from_numpy(setting.TARGETS)
    for first in range(0, len(inputs), batch_size):
        batch = slice(first, first + batch_size)
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = uc.clip_by_norm(parameter.grad, 0.5)
        optimizer.step()


main()
