"""The Wasserstein GAN of `wgan_torch.py` in Paddle. Its RMSProp adds epsilon inside the root."""

from __future__ import annotations

import paddle
import setting
from paddle import nn

LATENT, HIDDEN, SAMPLE, BATCH, STEPS, CRITIC_STEPS, BOUND = 4, 10, 6, 16, 6, 2, 0.2


def network(name: str, inputs: int, outputs: int, bias: bool) -> nn.Sequential:
    out = nn.Linear(HIDDEN, outputs, bias_attr=None if bias else False)
    model = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), out)
    for key, parameter in model.named_parameters():
        parameter.set_value(setting.weight(f"wgan.{name}.{key}", *parameter.shape))
    return model


def rmsprop(model: nn.Layer, clip_norm: float) -> paddle.optimizer.Optimizer:
    clip = nn.ClipGradByGlobalNorm(clip_norm)
    return paddle.optimizer.RMSProp(5e-3, rho=0.99, epsilon=1e-24, parameters=model.parameters(), grad_clip=clip)


generator, critic = network("generator", LATENT, SAMPLE, bias=True), network("critic", SAMPLE, 1, bias=False)
of_generator, of_critic = rmsprop(generator, 0.1), rmsprop(critic, 0.3)
for step in range(STEPS):
    for part in range(CRITIC_STEPS):
        real = paddle.to_tensor(setting.array(f"wgan real {step} {part}", BATCH, SAMPLE)) + 1.0
        fake = generator(paddle.to_tensor(setting.array(f"wgan noise {step} {part}", BATCH, LATENT))).detach()
        (critic(fake).mean() - critic(real).mean()).backward()
        of_critic.step()
        of_critic.clear_grad()
        for parameter in critic.parameters():
            parameter.set_value(parameter.clip(-BOUND, BOUND))
    noise = paddle.to_tensor(setting.array(f"wgan noise {step}", BATCH, LATENT))
    (-critic(generator(noise)).mean()).backward()
    of_generator.step()
    of_generator.clear_grad()
    of_critic.clear_grad()
