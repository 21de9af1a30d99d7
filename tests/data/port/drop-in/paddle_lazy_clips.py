from functools import partial

import paddle
from paddle import nn
import unified_clip.paddle

make_clip = partial(unified_clip.paddle.ClipGradByGlobalNorm, clip_norm=1.0)
by_value = lambda bound: unified_clip.paddle.ClipGradByValue(max=bound, min=-bound)

DEFAULTS = {
    "weight_decay": 0.01,
    "grad_clip": unified_clip.paddle.ClipGradByNorm(clip_norm=10.0),
}


def get_optimizer(name: str, model: nn.Layer, lr: float, **overrides):
    kwargs = {**DEFAULTS, **overrides}
    cls = {"adam": paddle.optimizer.AdamW, "sgd": paddle.optimizer.Momentum}[name]
    return cls(learning_rate=lr, parameters=model.parameters(), **kwargs)


def run(model, loader, bound=None):
    opt = get_optimizer("adam", model, 1e-3, grad_clip=make_clip() if bound is None else by_value(bound))
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.clear_grad()


def run_plain(model, loader):
    opt = paddle.optimizer.Adam(1e-3, parameters=model.parameters(), **{"grad_clip": unified_clip.paddle.ClipGradByNorm(3.0)})
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        opt.clear_grad()
