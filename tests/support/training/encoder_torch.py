"""The encoder of `encoder_tensorflow.py` in PyTorch: the rate is a factor of LambdaLR."""

from __future__ import annotations

import setting
import torch
from torch import nn
from torch.nn import functional

import unified_clip.torch as uc

WIDTH, LENGTH, SEQUENCES, STEPS, WARMUP, FACTOR = 16, 6, 8, 8, 3, 0.2


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(setting.VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.query, self.key, self.value, self.project = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.expand, self.shrink = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, setting.VOCABULARY, bias=False)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-5, elementwise_affine=False)
        for name, layer in self.named_children():
            if isinstance(layer, nn.Embedding):
                layer.weight.data = torch.from_numpy(setting.weight(f"encoder.{name}", *layer.weight.shape))
            elif isinstance(layer, nn.Linear):
                kernel = setting.weight(f"encoder.{name}", layer.in_features, layer.out_features)
                layer.weight.data = torch.from_numpy(kernel.T.copy())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * WIDTH**0.5 + self.positions.weight
        y = self.norm(x)
        x = x + self.project(functional.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y)))
        x = x + self.shrink(self.expand(self.norm(x)).relu())
        return self.head(self.norm(x))


def noam(step: int) -> float:
    return FACTOR * WIDTH**-0.5 * min((step + 1) ** -0.5, (step + 1) * WARMUP**-1.5)


def main() -> None:
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    for batch in torch.from_numpy(setting.text(STEPS, SEQUENCES, LENGTH, seed=3)):
        tokens = batch[:, 1:]
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        uc.ClipGradByGlobalNorm(0.4).clip_(model.parameters())
        optimizer.step()
        scheduler.step()


main()
