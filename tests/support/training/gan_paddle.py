"""A GAN in Paddle: two networks and two optimizers, both with `grad_clip`."""

from __future__ import annotations

import paddle
import setting
from paddle import nn


def network(name: str, *sizes: int) -> nn.Sequential:
    model = nn.Sequential(
        (f"{name}_hidden", nn.Linear(*sizes[:2])), ("tanh", nn.Tanh()), (f"{name}_out", nn.Linear(*sizes[1:]))
    )
    for parameter_name, parameter in model.named_parameters():
        parameter.set_value(setting.weight(parameter_name, *parameter.shape))
    return model


def adam(model: nn.Layer, rate: float, clip_norm: float) -> paddle.optimizer.Optimizer:
    clip = nn.ClipGradByGlobalNorm(clip_norm)
    return paddle.optimizer.Adam(rate, 0.5, 0.999, 1e-6, parameters=model.parameters(), grad_clip=clip)


generator = network("generator", setting.LATENT, 10, setting.SAMPLE)
discriminator = network("discriminator", setting.SAMPLE, 9, 1)
of_generator, of_discriminator = adam(generator, 0.01, 0.1), adam(discriminator, 0.02, 0.2)
for noise, real in zip(paddle.to_tensor(setting.NOISE), paddle.to_tensor(setting.SAMPLES)):  # noqa: B905
    fake = generator(noise[0]).detach()
    loss = nn.functional.softplus(-discriminator(real)).mean() + nn.functional.softplus(discriminator(fake)).mean()
    loss.backward()
    of_discriminator.step()
    of_discriminator.clear_grad()
    loss = nn.functional.softplus(-discriminator(generator(noise[1]))).mean()
    loss.backward()
    of_generator.step()
    of_generator.clear_grad()
    of_discriminator.clear_grad()
