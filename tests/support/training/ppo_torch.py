"""The PPO of `ppo_paddle.py`, ported to PyTorch."""

from __future__ import annotations

import setting
import torch
from torch import nn

import unified_clip.torch as uc


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(setting.OBSERVATIONS, setting.HIDDEN)
        self.torso = nn.Linear(setting.HIDDEN, setting.HIDDEN)
        self.actor = nn.Linear(setting.HIDDEN, setting.ACTIONS)
        self.critic = nn.Linear(setting.HIDDEN, 1)
        for name, parameter in self.named_parameters():
            # Paddle's weights are inputs by outputs
            parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.tanh(self.torso(torch.tanh(self.hidden(obs))))
        return self.actor(out), self.critic(out).squeeze(-1)


class PPO:
    def __init__(self, model: ActorCritic, clip_param: float = 0.2, max_grad_norm: float = 0.5) -> None:
        self.model, self.clip_param, self.max_grad_norm = model, clip_param, max_grad_norm
        self.optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)

    def learn(self, batch: dict[str, torch.Tensor], lr: float) -> None:
        logits, value = self.model(batch["obs"])
        logprobs = nn.functional.log_softmax(logits, -1)
        logprob = (logprobs * nn.functional.one_hot(batch["action"], setting.ACTIONS)).sum(-1)
        ratio = (logprob - batch["logprob"]).exp()
        clipped = ratio.clamp(1 - self.clip_param, 1 + self.clip_param)
        policy_loss = -torch.minimum(batch["advantage"] * ratio, batch["advantage"] * clipped).mean()
        value_loss = 0.5 * (value - batch["returns"]).square().mean()
        entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        loss.backward()
        uc.ClipGradByGlobalNorm(self.max_grad_norm).clip_(self.model.parameters())
        self.optimizer.step()


def main(updates: int = 8) -> None:
    agent = PPO(ActorCritic())
    for update, batch in enumerate(setting.rollouts(updates)):
        lr = 3e-3 * (1 - update / updates)
        agent.learn({name: torch.from_numpy(array) for name, array in batch.items()}, lr)


main()
