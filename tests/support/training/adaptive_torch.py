"""The regression of `adaptive_optax.py` in PyTorch: the adaptive clip is the script's own code."""

from __future__ import annotations

import setting
import torch
from torch import nn


def unit_norm(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.norm() if tensor.dim() <= 1 else tensor.norm(dim=1, keepdim=True)


@torch.no_grad()
def adaptive_clip(model: nn.Module, clipping: float, eps: float = 1e-3) -> None:
    for parameter in model.parameters():
        bound = clipping * unit_norm(parameter).clamp(min=eps)
        norm = unit_norm(parameter.grad)
        parameter.grad.copy_(torch.where(norm < bound, parameter.grad, parameter.grad * bound / (norm + 1e-6)))


def main() -> None:
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(8, 8))
    model.add_module("tanh", nn.Tanh())
    model.add_module("out", nn.Linear(8, 2))
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for inputs, targets in zip(
        *(torch.from_numpy(e).split(12) for e in (setting.INPUTS, setting.TARGETS)), strict=True
    ):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        adaptive_clip(model, 0.1)
        optimizer.step()


main()
