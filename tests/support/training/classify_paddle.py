"""A classifier in Paddle: label smoothing, AdamW with a warm-up, and no weight decay of biases and normalization."""

from __future__ import annotations

import paddle
import setting
from paddle import nn

WARMUP, PEAK = 4, 0.02

model = nn.Sequential(
    ("hidden", nn.Linear(8, 12)),
    ("norm", nn.LayerNorm(12, epsilon=1e-5)),
    ("tanh", nn.Tanh()),
    ("out", nn.Linear(12, setting.CLASSES)),
)
for name, parameter in model.named_parameters():
    if not name.startswith("norm"):
        parameter.set_value(setting.weight(name, *parameter.shape))
decayed = {parameter.name for parameter in model.parameters() if len(parameter.shape) > 1}
scheduler = paddle.optimizer.lr.LambdaDecay(PEAK, lambda step: min((step + 1) / WARMUP, 0.9 ** (step + 1 - WARMUP)))
optimizer = paddle.optimizer.AdamW(
    learning_rate=scheduler,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-6,
    parameters=model.parameters(),
    weight_decay=0.1,
    apply_decay_param_fun=lambda name: name in decayed,
    grad_clip=nn.ClipGradByGlobalNorm(0.75),
)
for first in range(0, len(setting.FEATURES), setting.ROWS):
    features, labels = (
        paddle.to_tensor(each[first : first + setting.ROWS]) for each in (setting.FEATURES, setting.LABELS)
    )
    smoothed = nn.functional.label_smooth(nn.functional.one_hot(labels, setting.CLASSES), epsilon=0.1)
    loss = nn.functional.cross_entropy(model(features), smoothed, soft_label=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.clear_grad()
