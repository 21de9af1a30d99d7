"""A model in Paddle: a slow embedding that is not clipped (`need_clip`), and an L2 penalty of one weight."""

from __future__ import annotations

import paddle
import setting
from paddle import ParamAttr, nn
from paddle.regularizer import L2Decay

WORDS, WIDTH, LENGTH, TEXTS, STEPS = 12, 6, 4, 10, 8


class Classifier(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, weight_attr=ParamAttr(learning_rate=0.2, need_clip=False))
        self.hidden = nn.Linear(WIDTH, WIDTH, weight_attr=ParamAttr(regularizer=L2Decay(0.1)))
        self.head = nn.Linear(WIDTH, setting.CLASSES)
        for name, parameter in self.named_parameters():
            parameter.set_value(setting.array(f"finetune.{name}", *parameter.shape, scale=0.8))

    def forward(self, texts: paddle.Tensor) -> paddle.Tensor:
        return self.head(paddle.tanh(self.hidden(self.words(texts).mean(axis=1))))


model = Classifier()
scheduler = paddle.optimizer.lr.CosineAnnealingDecay(0.4, T_max=STEPS, eta_min=0.04)
optimizer = paddle.optimizer.Momentum(
    scheduler, 0.9, parameters=model.parameters(), grad_clip=nn.ClipGradByGlobalNorm(0.15)
)
texts = setting.text(STEPS, TEXTS, LENGTH, seed=5)[:, :, 1:] % WORDS
for step in range(STEPS):
    labels = paddle.to_tensor(setting.LABELS[step * TEXTS : (step + 1) * TEXTS])
    nn.functional.cross_entropy(model(paddle.to_tensor(texts[step])), labels).backward()
    optimizer.step()
    optimizer.clear_grad()
    scheduler.step()
