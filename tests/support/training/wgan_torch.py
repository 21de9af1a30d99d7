"""A Wasserstein GAN in PyTorch: RMSprop, two steps of the critic for each of the generator, and a clamped critic."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc

LATENT, HIDDEN, SAMPLE, BATCH, STEPS, CRITIC_STEPS, BOUND = 4, 10, 6, 16, 6, 2, 0.2


def network(name: str, inputs: int, outputs: int, bias: bool) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs, bias=bias))
    for key, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(setting.weight(f"wgan.{name}.{key}", *parameter.shape[::-1]).T.copy())
    return model


generator, critic = network("generator", LATENT, SAMPLE, bias=True), network("critic", SAMPLE, 1, bias=False)
of_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-3, eps=1e-12)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-3, eps=1e-12)
for step in range(STEPS):
    for part in range(CRITIC_STEPS):
        real = torch.from_numpy(setting.array(f"wgan real {step} {part}", BATCH, SAMPLE)) + 1.0
        with torch.no_grad():
            fake = generator(torch.from_numpy(setting.array(f"wgan noise {step} {part}", BATCH, LATENT)))
        of_critic.zero_grad()
        (critic(fake).mean() - critic(real).mean()).backward()
        uc.ClipGradByGlobalNorm(0.3).clip_(critic.parameters())
        of_critic.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-BOUND, BOUND)
    noise = torch.from_numpy(setting.array(f"wgan noise {step}", BATCH, LATENT))
    of_generator.zero_grad()
    (-critic(generator(noise)).mean()).backward()
    uc.ClipGradByGlobalNorm(0.1).clip_(generator.parameters())
    of_generator.step()
