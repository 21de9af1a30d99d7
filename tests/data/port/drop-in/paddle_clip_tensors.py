"""Clips that are called on tensors: some are gradients."""
import paddle
import paddle.fluid as fluid
import paddle.nn.functional as F
from paddle.nn import clip as nnclip
import unified_clip.paddle


class Normalised(paddle.nn.Layer):
    def __init__(self, inner, limit):
        super().__init__()
        self.inner = inner
        self.limit = limit

    def forward(self, x):
        h = self.inner(x)
        h = nnclip.clip_by_norm(h, max_norm=self.limit)
        h = fluid.layers.clip_by_norm(x=h, max_norm=1.0)
        return F.relu(h)


def train_step(model, optimizer, x, y, limit=None):
    optimizer.clear_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        if p.grad is None:
            continue
        grad = p.grad
        if limit is not None:
            grad = unified_clip.paddle.clip_by_value(grad, -limit, limit)
        p.grad.set_value(unified_clip.paddle.clip_by_norm(grad, 1.0))
    optimizer.step()
    return float(loss)


def saliency(model, x):
    x.stop_gradient = False
    dx, = paddle.grad(model(x).sum(), [x])
    return unified_clip.paddle.clip_by_value(dx, clip_value_min=-0.1, clip_value_max=0.1)


def to_image(x):
    return (paddle.clip(x, 0.0, 1.0) * 255).astype('uint8')
