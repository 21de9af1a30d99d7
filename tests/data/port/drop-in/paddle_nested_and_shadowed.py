"""Functions within functions; a name that is hidden by an argument."""
import paddle
from unified_clip.paddle import ClipGradByNorm


def outer(model, loader):
    clip = ClipGradByNorm(1.0)
    optimizer = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=clip)

    def inner(batch):
        loss = model(batch).mean()
        loss.backward()
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
