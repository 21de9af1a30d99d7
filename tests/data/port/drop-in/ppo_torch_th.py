from typing import Optional

import numpy as np
import torch as th
from gymnasium import spaces
from torch.nn import functional as F
import unified_clip.torch


class PPO:
    """Clipped PPO; `clip_range` is of the ratio, `max_grad_norm` of the gradient."""

    def __init__(self, policy, rollout_buffer, clip_range=0.2, clip_range_vf=None, max_grad_norm: Optional[float] = 0.5):
        self.policy = policy
        self.rollout_buffer = rollout_buffer
        self.clip_range = clip_range
        self.clip_range_vf = clip_range_vf
        self.max_grad_norm = max_grad_norm

    def train(self, n_epochs: int = 10, batch_size: int = 64) -> None:
        clip_fractions = []
        for epoch in range(n_epochs):
            for data in self.rollout_buffer.get(batch_size):
                values, log_prob, entropy = self.policy.evaluate_actions(data.observations, data.actions)
                advantages = (data.advantages - data.advantages.mean()) / (data.advantages.std() + 1e-8)

                ratio = th.exp(log_prob - data.old_log_prob)
                loss_1 = advantages * ratio
                loss_2 = advantages * th.clamp(ratio, 1 - self.clip_range, 1 + self.clip_range)
                policy_loss = -th.min(loss_1, loss_2).mean()
                clip_fractions.append(th.mean((th.abs(ratio - 1) > self.clip_range).float()).item())
                loss = policy_loss + 0.5 * F.mse_loss(data.returns, values.flatten()) - 0.01 * entropy.mean()

                self.policy.optimizer.zero_grad()
                loss.backward()
                # Clip grad norm
                unified_clip.torch.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()

    def predict(self, obs):
        actions = self.policy(obs)
        if isinstance(self.policy.action_space, spaces.Box):
            actions = np.clip(actions, self.policy.action_space.low, self.policy.action_space.high)
        return actions
