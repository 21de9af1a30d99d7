"""The GRU of `gru_keras.py`, as a loop in PyTorch: transposed, with other gates first, and with two biases."""

from __future__ import annotations

import numpy as np
import setting
import torch
from torch import nn

import unified_clip.torch as uc


def gates(array: np.ndarray) -> torch.Tensor:
    """Convert the gates z, r, h of Keras to r, z, n of PyTorch."""
    update, reset, new = np.split(array, 3, axis=-1)
    return torch.from_numpy(np.concatenate([reset, update, new], axis=-1).T.copy())


def main(batch_size: int = 12) -> None:
    gru, out = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 2)
    biases = gates(setting.weight("gru 2", 2, 9)).T
    gru.weight_ih_l0.data, gru.weight_hh_l0.data = (
        gates(setting.weight(f"gru {n}", size, 9)) for n, size in enumerate((4, 3))
    )
    gru.bias_ih_l0.data, gru.bias_hh_l0.data = biases[0].clone(), biases[1].clone()
    out.weight.data = torch.from_numpy(setting.weight("out 0", 3, 2).T.copy())
    out.bias.data = torch.from_numpy(setting.weight("out 1", 2))
    parameters = [*gru.parameters(), *out.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.2, momentum=0.9)
    inputs, targets = torch.from_numpy(setting.INPUTS).reshape(-1, 2, 4), torch.from_numpy(setting.TARGETS)
    for first in range(0, len(inputs), batch_size):
        batch = slice(first, first + batch_size)
        loss = nn.functional.mse_loss(out(gru(inputs[batch])[1][0]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        uc.GradientClipByNorm(0.05).clip_([*parameters[:2], *parameters[4:]])
        uc.GradientClipByGlobalNorm(0.05).clip_(parameters[2:4])
        optimizer.step()


main()
