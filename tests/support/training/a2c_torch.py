"""The update loop of `a2c_tensorflow.py`, ported to PyTorch."""

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
            parameter.data = torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.tanh(self.torso(torch.tanh(self.hidden(obs))))
        return self.actor(out), self.critic(out).squeeze(-1)


class KerasRMSprop(torch.optim.RMSprop):
    """The RMSprop of Keras, which adds epsilon inside the root. PyTorch adds epsilon outside the root."""

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.param_groups
        for parameter in group["params"]:
            square = self.state[parameter].setdefault("square_avg", torch.zeros_like(parameter))
            square.mul_(group["alpha"]).add_(parameter.grad.square(), alpha=1 - group["alpha"])
            parameter.sub_(group["lr"] * parameter.grad / (square + group["eps"]).sqrt())


class Agent:
    def __init__(self, clip_ratio: float = 0.2, max_grad_norm: float = 0.5) -> None:
        self.model, self.clip_ratio, self.max_grad_norm = ActorCritic(), clip_ratio, max_grad_norm
        self.optimizer = KerasRMSprop(self.model.parameters(), 7e-3, alpha=0.99, eps=1e-5)

    def update(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, value = self.model(batch["obs"])
        logprobs = nn.functional.log_softmax(logits, -1)
        logprob = (logprobs * nn.functional.one_hot(batch["action"], setting.ACTIONS)).sum(-1)
        ratio = torch.exp(logprob - batch["logprob"])
        clipped = ratio.clamp(1 - self.clip_ratio, 1 + self.clip_ratio)
        policy_loss = -torch.minimum(batch["advantage"] * ratio, batch["advantage"] * clipped).mean()
        value_loss = 0.5 * (value - batch["returns"]).square().mean()
        entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        variables = list(self.model.parameters())
        grads, _ = uc.clip_by_global_norm(torch.autograd.grad(loss, variables), self.max_grad_norm)
        for variable, grad in zip(variables, grads, strict=True):
            variable.grad = grad
        self.optimizer.step()
        return loss


def main(updates: int = 8) -> None:
    agent = Agent()
    for batch in setting.rollouts(updates):
        agent.update({name: torch.from_numpy(array) for name, array in batch.items()})


main()
