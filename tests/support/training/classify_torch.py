"""The classifier of `classify_paddle.py`, ported to PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc

WARMUP, PEAK = 4, 0.02

model = nn.Sequential()
model.add_module("hidden", nn.Linear(8, 12))
model.add_module("norm", nn.LayerNorm(12, eps=1e-5))
model.add_module("tanh", nn.Tanh())
model.add_module("out", nn.Linear(12, setting.CLASSES))
for name, parameter in model.named_parameters():
    if not name.startswith("norm"):
        parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())
matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.98), eps=1e-6)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) / WARMUP, 0.9 ** (step + 1 - WARMUP))
)
for first in range(0, len(setting.FEATURES), setting.ROWS):
    features, labels = (
        torch.from_numpy(each[first : first + setting.ROWS]) for each in (setting.FEATURES, setting.LABELS)
    )
    loss = nn.functional.cross_entropy(model(features), labels, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    uc.ClipGradByGlobalNorm(0.75).clip_(model.parameters())
    optimizer.step()
    scheduler.step()
