"""A regression in Paddle, whose optimizer clips each gradient by its own norm: one call of `ClipGradByNorm` a step."""

from __future__ import annotations

import paddle
import setting
from paddle import nn

model = nn.Sequential(("hidden", nn.Linear(8, 8)), ("tanh", nn.Tanh()), ("out", nn.Linear(8, 2)))
for name, parameter in model.named_parameters():
    parameter.set_value(setting.weight(name, *parameter.shape))
optimizer = paddle.optimizer.Momentum(0.2, parameters=model.parameters(), grad_clip=nn.ClipGradByNorm(0.5))
for first in range(0, len(setting.INPUTS), 12):
    inputs, targets = (paddle.to_tensor(array[first : first + 12]) for array in (setting.INPUTS, setting.TARGETS))
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    optimizer.clear_grad()
