"""A small GPT in PyTorch: float16 with a loss scale, gradient accumulation, groups for weight decay."""

from __future__ import annotations

import math

import setting
import torch
from torch import nn

WIDTH, LENGTH, SEQUENCES, PARTS = 16, 8, 8, 4
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


def configure_optimizer(model: nn.Module, weight_decay: float = 0.1) -> torch.optim.Optimizer:
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-4)


def main(steps: int = 6, grad_clip: float = 0.5) -> None:
    model = GPT()
    optimizer = configure_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in torch.from_numpy(setting.text(steps, SEQUENCES, LENGTH)):
        for part in batch.chunk(PARTS):
            loss = model(part[:, :-1], part[:, 1:]) / PARTS
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


main()
