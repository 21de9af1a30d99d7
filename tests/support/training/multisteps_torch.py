"""A classifier in PyTorch: each step has the gradients of two micro-batches, then one clip, and Nesterov's momentum."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc

HIDDEN, ROWS, ACCUMULATED = 10, 10, 2


def main() -> None:
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(8, HIDDEN))
    model.add_module("relu", nn.ReLU())
    model.add_module("out", nn.Linear(HIDDEN, setting.CLASSES))
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(setting.weight(f"multisteps.{name}", *parameter.shape[::-1]).T.copy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    features, labels = (torch.from_numpy(each).split(ROWS) for each in (setting.FEATURES, setting.LABELS))
    for number, (inputs, targets) in enumerate(zip(features, labels, strict=True)):
        loss = nn.functional.cross_entropy(model(inputs), targets) / ACCUMULATED
        loss.backward()
        if (number + 1) % ACCUMULATED == 0:
            uc.ClipGradByGlobalNorm(0.5).clip_(model.parameters())
            optimizer.step()
            optimizer.zero_grad()


main()
