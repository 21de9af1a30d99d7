"""The word2vec of `word2vec_tensorflow.py` in PyTorch."""

from __future__ import annotations

import numpy as np
import setting
import torch
from torch import nn

import unified_clip.torch as uc

WORDS, WIDTH, PAIRS, NEGATIVES, STEPS = 30, 8, 10, 2, 9


class SkipGram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Embedding(WORDS, WIDTH)
        self.contexts = nn.Embedding(WORDS, WIDTH)
        self.bias = nn.Embedding(WORDS, 1)
        self.centers.weight.data = torch.from_numpy(setting.weight("word2vec.centers", WORDS, WIDTH) * 3)
        self.contexts.weight.data = torch.from_numpy(setting.weight("word2vec.contexts", WORDS, WIDTH) * 3)
        self.bias.weight.data.zero_()

    def forward(self, center: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        products = torch.einsum("bd,bkd->bk", self.centers(center), self.contexts(context))
        return products + self.bias(context).squeeze(-1)


def main() -> None:
    model = SkipGram()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    signs = torch.zeros(PAIRS, 1 + NEGATIVES)
    signs[:, 0] = 1.0
    for number in range(STEPS):
        random = np.random.default_rng(number)
        center = torch.from_numpy(random.permutation(WORDS)[:PAIRS])
        context = torch.from_numpy(random.permutation(WORDS).reshape(PAIRS, -1))
        losses = nn.functional.binary_cross_entropy_with_logits(model(center, context), signs, reduction="none")
        optimizer.zero_grad()
        losses.sum(-1).mean().backward()
        for parameter in model.parameters():
            parameter.grad = uc.clip_by_norm(parameter.grad, 0.3)
        optimizer.step()
        scheduler.step()


main()
