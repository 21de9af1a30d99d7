"""GradScaler again, with unscale_ already there, and the norm in the log."""
import paddle
from paddle.nn import Linear, Sequential, Tanh
from unified_clip.paddle import ClipGradByGlobalNorm


def build(width=128):
    return Sequential(Linear(16, width), Tanh(), Linear(width, 1))


def global_norm(parameters):
    return paddle.sqrt(sum((p.grad.astype('float32') ** 2).sum() for p in parameters if p.grad is not None))


def main(batches, accumulate=4, max_norm=1.):
    model = build()
    clip = ClipGradByGlobalNorm(clip_norm=max_norm / 2)
    opt = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=clip)
    scaler = paddle.amp.GradScaler()

    for i, (x, y) in enumerate(batches):
        with paddle.amp.auto_cast():
            loss = ((model(x) - y) ** 2).mean() / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate:
            continue

        scaler.unscale_(opt)
        print('norm', float(global_norm(model.parameters())))
        scaler.step(opt)
        scaler.update()
        opt.clear_grad()


if __name__ == "__main__":
    main([(paddle.randn([8, 16]), paddle.randn([8, 1])) for _ in range(100)])
