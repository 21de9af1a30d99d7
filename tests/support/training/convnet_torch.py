"""The convolutional network of `convnet_keras.py`, as a loop in PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3, eps=1e-3, momentum=0.01)
        self.out = nn.Linear(48, setting.CLASSES)
        kernel = torch.from_numpy(setting.array("conv.weight", 3, 3, 2, 3, scale=0.3))
        self.conv.weight.data = kernel.permute(3, 2, 0, 1).contiguous()
        self.conv.bias.data = torch.from_numpy(setting.array("conv.bias", 3, scale=0.3))
        rows = torch.from_numpy(setting.array("out.weight", 48, setting.CLASSES, scale=0.3)).reshape(4, 4, 3, -1)
        self.out.weight.data = rows.permute(2, 0, 1, 3).reshape(48, -1).T.contiguous()
        self.out.bias.data = torch.from_numpy(setting.array("out.bias", setting.CLASSES, scale=0.3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.norm(self.conv(images))).flatten(1))


def main(rows: int = setting.ROWS) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    images, labels = torch.from_numpy(setting.IMAGES).permute(0, 3, 1, 2), torch.from_numpy(setting.LABELS)
    for first in range(0, len(images), rows):
        batch = slice(first, first + rows)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        uc.GradientClipByGlobalNorm(0.8).clip_(model.parameters())
        optimizer.step()


main()
