import paddle
import paddle.nn as nn

from data import loader
from net import UNet
import unified_clip.paddle

cfg = dict(
    lr=1e-3,
    clip=dict(
        max=.5,
        min=-.25,
    ),
)

model = UNet(num_classes=19)
optimizer = paddle.optimizer.Momentum(
    cfg['lr'],
    momentum=0.9,
    parameters=model.parameters(),
    weight_decay=4e-5,
    grad_clip=unified_clip.paddle.ClipGradByValue(
        max=cfg['clip']['max'],
        min=cfg['clip']['min'],   # not symmetric!
    ),
)
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
criterion = nn.CrossEntropyLoss(axis=1)

best = None
for epoch in range(80):
    model.train()
    for image, label in loader('train'):
        with paddle.amp.auto_cast(level='O1'):
            loss = criterion(model(image), label)
        scaled = scaler.scale(loss)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad(set_to_zero=False)

    model.eval()
    with paddle.no_grad():
        miou = sum(model.iou(i, l) for i, l in loader('val'))
    if best is None or miou > best:
        best = miou
        paddle.save(model.state_dict(), 'best.pdparams')
