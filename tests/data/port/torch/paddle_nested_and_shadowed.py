"""Functions within functions; a name that is hidden by an argument."""
import paddle
from paddle.nn import ClipGradByNorm
import unified_clip.torch


def outer(model, loader):
    clip = unified_clip.torch.ClipGradByNorm(1.0)
    optimizer = paddle.optimizer.Adam(parameters=model.parameters())

    def inner(batch):
        loss = model(batch).mean()
        loss.backward()
        clip.clip_(model.parameters())
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
