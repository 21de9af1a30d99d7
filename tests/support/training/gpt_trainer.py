"""The GPT of `gpt_torch.py` in a trainer: whole batches, no loss scale, and the optimizer cleared before a step."""

from __future__ import annotations

import setting
import torch
from gpt import GPT, LENGTH, SEQUENCES
from torch import nn


def configure_optimizer(model: nn.Module, weight_decay: float = 0.1) -> torch.optim.Optimizer:
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-4)


class Trainer:
    def __init__(self, model: GPT, grad_clip: float = 0.5) -> None:
        self.model, self.grad_clip = model, grad_clip
        self.optimizer = configure_optimizer(model)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch[:, :-1], batch[:, 1:])

    def optimize(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimizer.step()

    def fit(self, batches: torch.Tensor) -> None:
        for batch in batches:
            self.optimize(self.training_step(batch))


Trainer(GPT()).fit(torch.from_numpy(setting.text(6, SEQUENCES, LENGTH)))
