import argparse

import paddle
import paddle.nn.functional as F
from paddle.vision.models import resnet50
from paddle.vision.datasets import Flowers
import unified_clip.paddle


def train(args):
    paddle.set_device(args.device)
    model = resnet50(num_classes=102)
    opt = paddle.optimizer.Momentum(
        learning_rate=paddle.optimizer.lr.CosineAnnealingDecay(args.lr, args.epochs),
        parameters=model.parameters(),
        grad_clip=unified_clip.paddle.ClipGradByNorm(args.clip))
    scaler = paddle.amp.GradScaler(init_loss_scaling=2 ** 15) if args.amp else None

    for epoch in range(args.epochs):
        for img, label in paddle.io.DataLoader(Flowers(mode='train'), batch_size=32, shuffle=True):
            with paddle.amp.auto_cast(enable=args.amp):
                loss = F.cross_entropy(model(img), label)
            if scaler is not None:
                scaled = scaler.scale(loss)
                scaled.backward()
                scaler.minimize(opt, scaled)
            else:
                loss.backward()
                opt.step()
            opt.clear_grad()
        opt._learning_rate.step()


if __name__ == '__main__':
    p = argparse.ArgumentParser()
    p.add_argument('--device', default='gpu'); p.add_argument('--amp', action='store_true')
    p.add_argument('--lr', type=float, default=.1); p.add_argument('--epochs', type=int, default=90)
    p.add_argument('--clip', type=float, default=10)
    train(p.parse_args())
