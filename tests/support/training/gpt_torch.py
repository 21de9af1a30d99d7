"""A small GPT in PyTorch: float16 with a loss scale, gradient accumulation, groups for weight decay."""

from __future__ import annotations

import setting
import torch
from gpt import GPT, LENGTH, SEQUENCES
from torch import nn

PARTS = 4


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
