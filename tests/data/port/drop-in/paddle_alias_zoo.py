"""One class, under many names."""
import paddle
import paddle as pd
import paddle.nn.clip
from unified_clip.paddle import ClipGradByGlobalNorm as C
from paddle.optimizer import SGD
import unified_clip.paddle

nn = paddle.nn


def first(model, batch):
    opt = SGD(0.1, parameters=model.parameters(), grad_clip=C(1.0))
    model(batch).mean().backward()
    opt.step()


def second(model, batch):
    opt = pd.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=unified_clip.paddle.ClipGradByNorm(1.0))
    model(batch).mean().backward()
    opt.step()


def third(model, batch):
    from unified_clip.paddle import ClipGradByValue
    opt = paddle.optimizer.SGD(parameters=model.parameters(), learning_rate=.1, grad_clip=ClipGradByValue(1.0))
    model(batch).mean().backward()
    opt.step()


def fourth(model, batch):
    clip = unified_clip.paddle.ClipGradByGlobalNorm(clip_norm=1.0, auto_skip_clip=True)
    opt = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=clip)
    model(batch).mean().backward()
    opt.step()


def fifth(model, batch, skip):
    clip = unified_clip.paddle.ClipGradByNorm(2.0, need_clip=lambda p: p.name not in skip)
    opt = SGD(parameters=model.parameters(), grad_clip=clip)
    model(batch).mean().backward()
    opt.step()


def sixth(model, batch):
    clip = unified_clip.paddle.ClipGradByGlobalNorm(1.0)
    opt = SGD(parameters=model.parameters(), grad_clip=clip)
    model(batch).mean().backward()
    opt.step()
