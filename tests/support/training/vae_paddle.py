"""A variational autoencoder in Paddle: Adam with an L2 penalty and `grad_clip`, and losses summed per image."""

from __future__ import annotations

import numpy as np
import paddle
import setting
from paddle import nn

PIXELS, HIDDEN, CODE, IMAGES, STEPS, BETA = 12, 10, 3, 8, 8, 0.5


class VAE(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code = nn.Linear(PIXELS, HIDDEN), nn.Linear(HIDDEN, 2 * CODE)
        self.decoder, self.pixels = nn.Linear(CODE, HIDDEN), nn.Linear(HIDDEN, PIXELS)
        for name, parameter in self.named_parameters():
            parameter.set_value(setting.weight(f"vae.{name}", *parameter.shape))

    def forward(self, images: paddle.Tensor, noise: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        mean, log_variance = self.code(paddle.tanh(self.encoder(images))).chunk(2, axis=-1)
        code = mean + paddle.exp(0.5 * log_variance) * noise
        return self.pixels(paddle.tanh(self.decoder(code))), mean, log_variance


def main() -> None:
    model = VAE()
    optimizer = paddle.optimizer.Adam(
        0.01,
        epsilon=1e-6,
        parameters=model.parameters(),
        weight_decay=paddle.regularizer.L2Decay(0.2),
        grad_clip=nn.ClipGradByGlobalNorm(1.0),
    )
    for step in range(STEPS):
        images = paddle.to_tensor((setting.array(f"vae {step}", IMAGES, PIXELS) > 0).astype(np.float32))
        noise = paddle.to_tensor(setting.array(f"vae noise {step}", IMAGES, CODE))
        logits, mean, log_variance = model(images, noise)
        entropy = nn.functional.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(-1)
        divergence = -0.5 * (1 + log_variance - mean**2 - paddle.exp(log_variance)).sum(-1)
        (entropy + BETA * divergence).mean().backward()
        optimizer.step()
        optimizer.clear_grad()


main()
