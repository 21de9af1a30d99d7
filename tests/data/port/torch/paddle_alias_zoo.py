"""One class, under many names."""
import paddle
import paddle as pd
import paddle.nn.clip
from paddle import nn as layers
from unified_clip.torch import ClipGradByGlobalNorm as C
from paddle.optimizer import SGD
import unified_clip.torch

nn = paddle.nn


def first(model, batch):
    opt_clip = C(1.0)
    opt = SGD(0.1, parameters=model.parameters())
    model(batch).mean().backward()
    opt_clip.clip_(model.parameters())
    opt.step()


def second(model, batch):
    opt_clip = unified_clip.torch.ClipGradByNorm(1.0)
    opt = pd.optimizer.SGD(0.1, parameters=model.parameters())
    model(batch).mean().backward()
    opt_clip.clip_(model.parameters())
    opt.step()


def third(model, batch):
    from unified_clip.torch import ClipGradByValue
    opt_clip = ClipGradByValue(1.0)
    opt = paddle.optimizer.SGD(parameters=model.parameters(), learning_rate=.1)
    model(batch).mean().backward()
    opt_clip.clip_(model.parameters())
    opt.step()


def fourth(model, batch):
    clip = paddle.nn.clip.ClipGradByGlobalNorm(clip_norm=1.0, auto_skip_clip=True)
    opt = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=clip)
    model(batch).mean().backward()
    opt.step()


def fifth(model, batch, skip):
    clip = layers.ClipGradByNorm(2.0, need_clip=lambda p: p.name not in skip)
    opt = SGD(parameters=model.parameters(), grad_clip=clip)
    model(batch).mean().backward()
    opt.step()


def sixth(model, batch):
    clip = unified_clip.torch.ClipGradByGlobalNorm(1.0)
    opt = SGD(parameters=model.parameters())
    model(batch).mean().backward()
    clip.clip_(model.parameters())
    opt.step()
