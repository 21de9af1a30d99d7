"""Functions within functions; a name that is hidden by an argument."""
import paddle
from paddle.nn import ClipGradByNorm
import torch


def outer(model, loader):
    optimizer = paddle.optimizer.Adam(parameters=model.parameters())

    def inner(batch):
        loss = model(batch).mean()
        loss.backward()
        for parameter in model.parameters():
            torch.nn.utils.clip_grad_norm_(parameter, 1.0)
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return [inner(batch) for batch in loader]


def shadowed(model, ClipGradByNorm, loader):
    # the argument hides the import
    clip = ClipGradByNorm(1.0)
    optimizer = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=clip)
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()


def passed_on(model, loader, trainer):
    optimizer = paddle.optimizer.Adam(
        parameters=model.parameters(), grad_clip=ClipGradByNorm(2.0))
    trainer.attach(optimizer)
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()


def from_outside(model, loader, clip):
    optimizer = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=clip)
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()


def no_step(model):
    optimizer = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=ClipGradByNorm(3.0))
    print(optimizer.get_lr())
