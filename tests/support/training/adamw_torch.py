"""The regression of `regression_optax.py`, ported to PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc

model = nn.Sequential()
model.add_module("hidden", nn.Linear(8, 8))
model.add_module("tanh", nn.Tanh())
model.add_module("out", nn.Linear(8, 2))
for name, parameter in model.named_parameters():
    parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.01)
for first in range(0, len(setting.INPUTS), 12):
    inputs, targets = (torch.from_numpy(array[first : first + 12]) for array in (setting.INPUTS, setting.TARGETS))
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    uc.ClipGradByGlobalNorm(0.5).clip_(model.parameters())
    optimizer.step()
