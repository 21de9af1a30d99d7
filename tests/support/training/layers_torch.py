"""A forecast in PyTorch: each layer has its own clip and its own rate, and momentum."""

from __future__ import annotations

import numpy as np
import setting
import torch
from torch import nn

import unified_clip.torch as uc

PAST, HIDDEN, SERIES, STEPS = 6, 8, 12, 9


def series(step: int) -> tuple[np.ndarray, np.ndarray]:
    phases = setting.array(f"layers {step}", SERIES, 1, scale=3.0)
    values = np.sin(phases + np.arange(PAST + 1)) * 2 + setting.array(f"layers noise {step}", SERIES, PAST + 1)
    return values[:, :-1].astype(np.float32), values[:, -1:].astype(np.float32)


def main() -> None:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(PAST, HIDDEN))
    model.add_module("elu", nn.ELU())
    model.add_module("second", nn.Linear(HIDDEN, HIDDEN))
    model.add_module("tanh", nn.Tanh())
    model.add_module("out", nn.Linear(HIDDEN, 1))
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(setting.weight(f"layers.{name}", *parameter.shape[::-1]).T.copy())
    rates = {"first": 0.05, "second": 0.05, "out": 0.01}
    groups = [{"params": model.get_submodule(name).parameters(), "lr": rate} for name, rate in rates.items()]
    optimizer = torch.optim.SGD(groups, momentum=0.8, weight_decay=0.02)
    for step in range(STEPS):
        inputs, targets = map(torch.from_numpy, series(step))
        loss = nn.functional.huber_loss(model(inputs), targets, delta=0.5)
        optimizer.zero_grad()
        loss.backward()
        for name in rates:
            uc.ClipGradByGlobalNorm(0.2).clip_(model.get_submodule(name).parameters())
        optimizer.step()


main()
