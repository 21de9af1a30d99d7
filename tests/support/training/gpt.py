"""The model of `gpt_torch.py` and `gpt_trainer.py`: one layer of a transformer."""

from __future__ import annotations

import math

import setting
import torch
from torch import nn

WIDTH, LENGTH, SEQUENCES = 16, 8, 8
SHAPES = {
    "wte": (setting.VOCABULARY, WIDTH),
    "wpe": (LENGTH, WIDTH),
    "attn": (WIDTH, 3 * WIDTH),
    "attn_bias": (3 * WIDTH,),
    "proj": (WIDTH, WIDTH),
    "up": (WIDTH, 4 * WIDTH),
    "up_bias": (4 * WIDTH,),
    "down": (4 * WIDTH, WIDTH),
}


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.from_numpy(setting.weight(name, *shape))))
        self.lm_head = nn.Linear(WIDTH, setting.VOCABULARY, bias=False)
        self.lm_head.weight = self.wte  # tied

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte[tokens] + self.wpe
        q, k, v = (nn.functional.layer_norm(x, [WIDTH]) @ self.attn + self.attn_bias).split(WIDTH, -1)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(WIDTH)).masked_fill(
            torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf
        )
        x = x + scores.softmax(-1) @ v @ self.proj
        x = x + nn.functional.gelu(nn.functional.layer_norm(x, [WIDTH]) @ self.up + self.up_bias) @ self.down
        return nn.functional.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())
