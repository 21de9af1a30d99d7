"""The regression of `session_tensorflow.py`, ported to PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc


class RMSprop(torch.optim.Optimizer):
    """The RMSprop of TensorFlow 1: epsilon is inside the root, and the mean of squares starts at 1."""

    def __init__(self, params, lr: float, alpha: float, eps: float, start: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "start": start})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("v", torch.full_like(p, group["start"]))
                v.mul_(group["alpha"]).addcmul_(p.grad, p.grad, value=1 - group["alpha"])
                p.addcdiv_(p.grad, (v + group["eps"]).sqrt(), value=-group["lr"])


def main(size: int = 12) -> None:
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(8, 8))
    model.add_module("tanh", nn.Tanh())
    model.add_module("out", nn.Linear(8, 2))
    for name, parameter in model.named_parameters():
        name = name.replace(".", "/").replace("weight", "kernel")
        parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())
    optimizer = RMSprop(model.parameters(), lr=0.05, alpha=0.95, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    inputs, targets = torch.from_numpy(setting.INPUTS), torch.from_numpy(setting.TARGETS)
    for first in range(0, len(inputs), size):
        loss = (model(inputs[first : first + size]) - targets[first : first + size]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        uc.GradientClipByGlobalNorm(1.5).clip_(model.parameters())
        optimizer.step()
        scheduler.step()


main()
