"""The DDPG of `ddpg_optax.py`, ported to PyTorch."""

from __future__ import annotations

import copy

import setting
import torch
from torch import nn

import unified_clip.torch as uc

TAU, DISCOUNT, OBSERVATIONS, HIDDEN, ACTIONS = 0.1, 0.9, 5, 11, 2


class Network(nn.Module):
    def __init__(self, name: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, outputs)
        for key, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(setting.weight(f"{name}.{key}", *parameter.shape[::-1]).T.copy())

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(torch.cat(inputs, -1))))


actor, critic = Network("actor", OBSERVATIONS, ACTIONS), Network("critic", OBSERVATIONS + ACTIONS, 1)
target = copy.deepcopy(critic)
of_actor, of_critic = torch.optim.Adam(actor.parameters(), 0.01), torch.optim.Adam(critic.parameters(), 0.02)
for step in range(8):
    obs, following = (
        torch.from_numpy(setting.array(f"{name} {step}", 16, OBSERVATIONS)) for name in ("obs", "following")
    )
    action = torch.from_numpy(setting.array(f"action {step}", 16, ACTIONS, scale=0.5))
    reward = torch.from_numpy(setting.array(f"reward {step}", 16))
    with torch.no_grad():
        bootstrapped = target(following, torch.tanh(actor(following)))[:, 0]
    critic_loss = (critic(obs, action)[:, 0] - reward - DISCOUNT * bootstrapped).square().mean()
    of_critic.zero_grad()
    critic_loss.backward()
    uc.ClipGradByGlobalNorm(1.0).clip_(critic.parameters())
    of_critic.step()
    actor_loss = -critic(obs, torch.tanh(actor(obs))).mean()
    of_actor.zero_grad()
    actor_loss.backward()
    uc.ClipGradByGlobalNorm(0.1).clip_(actor.parameters())
    of_actor.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), critic.parameters(), strict=True):
            old += TAU * (new - old)
