"""The variational autoencoder of `vae_paddle.py` in PyTorch, with the distributions of `torch.distributions`."""

from __future__ import annotations

import setting
import torch
from torch import nn
from torch.distributions import Bernoulli, Normal, kl_divergence

import unified_clip.torch as uc

PIXELS, HIDDEN, CODE, IMAGES, STEPS, BETA = 12, 10, 3, 8, 8, 0.5


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code = nn.Linear(PIXELS, HIDDEN), nn.Linear(HIDDEN, 2 * CODE)
        self.decoder, self.pixels = nn.Linear(CODE, HIDDEN), nn.Linear(HIDDEN, PIXELS)
        for name, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(setting.weight(f"vae.{name}", *parameter.shape[::-1]).T.copy())

    def forward(self, images: torch.Tensor, noise: torch.Tensor) -> tuple[Bernoulli, Normal]:
        mean, log_variance = self.code(self.encoder(images).tanh()).chunk(2, -1)
        code = Normal(mean, (0.5 * log_variance).exp())
        logits = self.pixels(self.decoder(code.loc + code.scale * noise).tanh())
        return Bernoulli(logits=logits), code


def main() -> None:
    model, prior = VAE(), Normal(0.0, 1.0)
    parameters = model.parameters
    optimizer = torch.optim.Adam(parameters(), lr=0.01, eps=1e-6, weight_decay=0.2)
    for step in range(STEPS):
        images = (torch.from_numpy(setting.array(f"vae {step}", IMAGES, PIXELS)) > 0).float()
        pixels, code = model(images, torch.from_numpy(setting.array(f"vae noise {step}", IMAGES, CODE)))
        evidence = pixels.log_prob(images).sum(-1) - BETA * kl_divergence(code, prior).sum(-1)
        optimizer.zero_grad()
        (-evidence).mean().backward()
        uc.ClipGradByGlobalNorm(1.0).clip_(parameters())
        optimizer.step()


main()
