"""The two towers of `towers_optax.py` in PyTorch: parameter groups of AdamW."""

from __future__ import annotations

import numpy as np
import setting
import torch
from torch import nn
from torch.nn import functional

import unified_clip.torch as uc

IMAGE, TEXT, WIDTH, BATCH, STEPS = 10, 8, 6, 12, 8


def tower(name: str, inputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, WIDTH)
    layer.weight.data = torch.from_numpy(setting.weight(f"towers.{name}", inputs, WIDTH).T.copy())
    layer.bias.data = torch.from_numpy(setting.weight(f"{name} bias", WIDTH))
    return layer


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = tower("image", IMAGE), tower("text", TEXT)
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        images = functional.normalize(self.image(images), dim=-1)
        texts = functional.normalize(self.text(texts), dim=-1)
        return self.logit_scale.exp() * images @ texts.t()


def main() -> None:
    model, labels = Towers(), torch.arange(BATCH)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.98), eps=1e-6)
    for step in range(STEPS):
        images = torch.from_numpy(setting.array(f"towers image {step}", BATCH, IMAGE))
        texts = torch.from_numpy(setting.array(f"towers text {step}", BATCH, TEXT))
        logits = model(images, texts)
        loss = (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        uc.ClipGradByGlobalNorm(0.8).clip_(model.parameters())
        optimizer.step()


main()
