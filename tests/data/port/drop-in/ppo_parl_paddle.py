#   An agent's algorithm. See the README for the hyperparameters.
import paddle
import paddle.nn.functional as F
import paddle.optimizer as optim
import parl
from paddle.distribution import Categorical, Normal
import unified_clip.paddle

__all__ = ['PPO']


class PPO(parl.Algorithm):
    def __init__(self, model, clip_param=0.1, value_loss_coef=0.5, entropy_coef=0.01,
                 initial_lr=2.5e-4, eps=1e-5, max_grad_norm=0.5, continuous_action=False):
        super().__init__(model)
        self.clip_param = clip_param
        self.value_loss_coef = value_loss_coef
        self.entropy_coef = entropy_coef
        self.continuous_action = continuous_action
        clip = unified_clip.paddle.ClipGradByNorm(max_grad_norm)
        self.optimizer = optim.Adam(
            parameters=self.model.parameters(),
            learning_rate=initial_lr,
            epsilon=eps,
            grad_clip=clip)

    def learn(self, batch_obs, batch_action, batch_value, batch_return, batch_logprob, batch_adv, lr=None):
        newvalue = self.model.value(batch_obs)
        if self.continuous_action:
            mean, std = self.model.policy(batch_obs)
            dist = Normal(mean, std)
            logprob = dist.log_prob(batch_action).sum(1)
        else:
            dist = Categorical(logits=self.model.policy(batch_obs))
            logprob = dist.log_prob(batch_action)
        ratio = paddle.exp(logprob - batch_logprob)
        surr1 = batch_adv * ratio
        surr2 = batch_adv * paddle.clip(ratio, 1.0 - self.clip_param, 1.0 + self.clip_param)
        action_loss = -paddle.minimum(surr1, surr2).mean()
        value_pred_clipped = batch_value + paddle.clip(newvalue - batch_value, -self.clip_param, self.clip_param)
        value_loss = 0.5 * paddle.maximum(
            (newvalue - batch_return).pow(2), (value_pred_clipped - batch_return).pow(2)).mean()
        loss = action_loss + self.value_loss_coef * value_loss - self.entropy_coef * dist.entropy().mean()

        if lr:
            self.optimizer.set_lr(lr)
        self.optimizer.clear_grad()
        loss.backward()
        self.optimizer.step()
        return value_loss.item(), action_loss.item()
