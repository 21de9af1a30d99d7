"""One class, under many names."""
import paddle
import paddle as pd
import paddle.nn as pnn
import paddle.nn.clip
from paddle import nn as layers
from paddle.nn import ClipGradByGlobalNorm as C
from paddle.optimizer import SGD
import torch

nn = paddle.nn


def first(model, batch):
    opt = SGD(0.1, parameters=model.parameters())
    model(batch).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()


def second(model, batch):
    opt = pd.optimizer.SGD(0.1, parameters=model.parameters())
    model(batch).mean().backward()
    for parameter in model.parameters():
        torch.nn.utils.clip_grad_norm_(parameter, 1.0)
    opt.step()


def third(model, batch):
    from paddle.nn import ClipGradByValue
    opt = paddle.optimizer.SGD(parameters=model.parameters(), learning_rate=.1)
    model(batch).mean().backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
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
    opt = SGD(parameters=model.parameters())
    model(batch).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
