"""PPO in Paddle, as an agent library has it: one optimizer over actor and critic, with `grad_clip`."""

from __future__ import annotations

import paddle
import setting
from paddle import nn


class ActorCritic(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(setting.OBSERVATIONS, setting.HIDDEN)
        self.torso = nn.Linear(setting.HIDDEN, setting.HIDDEN)
        self.actor = nn.Linear(setting.HIDDEN, setting.ACTIONS)
        self.critic = nn.Linear(setting.HIDDEN, 1)
        for name, parameter in self.named_parameters():
            parameter.set_value(setting.weight(name, *parameter.shape))

    def forward(self, obs: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        out = paddle.tanh(self.torso(paddle.tanh(self.hidden(obs))))
        return self.actor(out), self.critic(out).squeeze(-1)


class PPO:
    def __init__(self, model: ActorCritic, clip_param: float = 0.2, max_grad_norm: float = 0.5) -> None:
        self.model, self.clip_param = model, clip_param
        self.optimizer = paddle.optimizer.Adam(
            learning_rate=3e-3,
            epsilon=1e-5,
            parameters=model.parameters(),
            grad_clip=nn.ClipGradByGlobalNorm(max_grad_norm),
        )

    def learn(self, batch: dict[str, paddle.Tensor], lr: float) -> None:
        logits, value = self.model(batch["obs"])
        logprobs = nn.functional.log_softmax(logits)
        logprob = (logprobs * nn.functional.one_hot(batch["action"], setting.ACTIONS)).sum(-1)
        ratio = (logprob - batch["logprob"]).exp()
        clipped = paddle.clip(ratio, 1 - self.clip_param, 1 + self.clip_param)
        policy_loss = -paddle.minimum(batch["advantage"] * ratio, batch["advantage"] * clipped).mean()
        value_loss = 0.5 * (value - batch["returns"]).square().mean()
        entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        self.optimizer.set_lr(lr)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()


def main(updates: int = 8) -> None:
    agent = PPO(ActorCritic())
    for update, batch in enumerate(setting.rollouts(updates)):
        lr = 3e-3 * (1 - update / updates)
        agent.learn({name: paddle.to_tensor(array) for name, array in batch.items()}, lr)


main()
