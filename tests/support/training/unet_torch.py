"""The U-Net of `unet_keras.py` as a loop in PyTorch."""

from __future__ import annotations

import numpy as np
import setting
import torch
from torch import nn
from torch.nn import functional

import unified_clip.torch as uc

IMAGES, STEPS, SIZE, CHANNELS = 4, 8, 8, 4


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, CHANNELS, 3, padding="same")
        self.middle = nn.Conv2d(CHANNELS, CHANNELS, 3, padding="same")
        self.up = nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2)
        self.out = nn.Conv2d(2 * CHANNELS, 1, 1)
        for name, layer in self.named_children():
            shape = [layer.weight.shape[axis] for axis in (2, 3, 1, 0)]
            kernel = torch.from_numpy(setting.array(f"unet {name}/kernel", *shape, scale=0.3))
            layer.weight.data = kernel.permute(3, 2, 0, 1).contiguous()
            layer.bias.data = torch.from_numpy(setting.array(f"unet {name}/bias", *layer.bias.shape, scale=0.3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        down = torch.tanh(self.down(images))
        middle = torch.tanh(self.middle(functional.avg_pool2d(down, 2)))
        return self.out(torch.cat([down, self.up(middle)], dim=1))


def main() -> None:
    model, criterion = UNet(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-10, weight_decay=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    images = setting.array("unet images", IMAGES * STEPS, SIZE, SIZE, 1)
    masks = (images + setting.array("unet masks", *images.shape) > 0.5).astype(np.float32)
    loader = torch.utils.data.TensorDataset(*(torch.from_numpy(each).movedim(-1, 1) for each in (images, masks)))
    for batch, targets in torch.utils.data.DataLoader(loader, batch_size=IMAGES):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(batch), targets)
        loss.backward()
        uc.ClipGradByGlobalNorm(0.1).clip_(model.parameters())
        optimizer.step()
        scheduler.step()


main()
