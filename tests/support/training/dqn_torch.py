"""DQN in PyTorch: centred RMSprop, a target network that is copied at each third step, and a clip by value."""

from __future__ import annotations

import copy

import numpy as np
import setting
import torch
from torch import nn

import unified_clip.torch as uc

OBSERVATIONS, HIDDEN, ACTIONS, BATCH, DISCOUNT, STEPS, COPIED = 6, 12, 3, 16, 0.95, 9, 3


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(OBSERVATIONS, HIDDEN), nn.Linear(HIDDEN, ACTIONS)
        for name, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(setting.weight(f"dqn.{name}", *parameter.shape[::-1]).T.copy())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(obs)))


def replayed(step: int) -> tuple[torch.Tensor, ...]:
    random = np.random.default_rng(100 + step)
    obs, following = (setting.array(f"dqn {name} {step}", BATCH, OBSERVATIONS) for name in ("obs", "following"))
    reward, done = setting.array(f"dqn reward {step}", BATCH, scale=2.0), random.random(BATCH) < 0.2
    arrays = obs, random.integers(0, ACTIONS, BATCH), reward, following, done.astype(np.float32)
    return tuple(torch.from_numpy(array) for array in arrays)


def main() -> None:
    online = QNetwork()
    target = copy.deepcopy(online)
    optimizer = torch.optim.RMSprop(online.parameters(), lr=0.01, alpha=0.95, eps=0.01, centered=True)
    for step in range(STEPS):
        obs, action, reward, following, done = replayed(step)
        with torch.no_grad():
            bootstrapped = reward + DISCOUNT * (1 - done) * target(following).max(-1).values
        value = online(obs).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, bootstrapped)
        optimizer.zero_grad()
        loss.backward()
        uc.clip_grad_value_(online.parameters(), 0.05)
        optimizer.step()
        if (step + 1) % COPIED == 0:
            target.load_state_dict(online.state_dict())


main()
