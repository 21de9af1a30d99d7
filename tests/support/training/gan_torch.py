"""The GAN of `gan_paddle.py`, ported to PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc


def network(name: str, *sizes: int) -> nn.Sequential:
    model = nn.Sequential()
    model.add_module(f"{name}_hidden", nn.Linear(*sizes[:2]))
    model.add_module("tanh", nn.Tanh())
    model.add_module(f"{name}_out", nn.Linear(*sizes[1:]))
    for parameter_name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(setting.weight(parameter_name, *parameter.shape[::-1]).T.copy())
    return model


generator = network("generator", setting.LATENT, 10, setting.SAMPLE)
discriminator = network("discriminator", setting.SAMPLE, 9, 1)
of_generator = torch.optim.Adam(generator.parameters(), 0.01, (0.5, 0.999), 1e-6)
of_discriminator = torch.optim.Adam(discriminator.parameters(), 0.02, (0.5, 0.999), 1e-6)
for noise, real in zip(torch.from_numpy(setting.NOISE), torch.from_numpy(setting.SAMPLES), strict=True):
    fake = generator(noise[0]).detach()
    loss = nn.functional.softplus(-discriminator(real)).mean() + nn.functional.softplus(discriminator(fake)).mean()
    of_discriminator.zero_grad()
    loss.backward()
    uc.ClipGradByGlobalNorm(0.2).clip_(discriminator.parameters())
    of_discriminator.step()
    loss = nn.functional.softplus(-discriminator(generator(noise[1]))).mean()
    of_generator.zero_grad()
    loss.backward()
    uc.ClipGradByGlobalNorm(0.1).clip_(generator.parameters())
    of_generator.step()
