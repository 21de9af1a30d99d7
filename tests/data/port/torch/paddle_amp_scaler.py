import paddle
import paddle.nn as nn

from data import loader
from net import UNet
import unified_clip.torch

cfg = dict(
    lr=1e-3,
    clip=dict(
        max=.5,
        min=-.25,
    ),
)

model = UNet(num_classes=19)
optimizer_clip = unified_clip.torch.ClipGradByValue(
        max=cfg['clip']['max'],
        min=cfg['clip']['min'],   # not symmetric!
    )
optimizer = paddle.optimizer.Momentum(
    cfg['lr'],
    momentum=0.9,
    parameters=model.parameters(),
    weight_decay=4e-5,
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
        scaler.unscale_(optimizer)
        optimizer_clip.clip_(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad(set_to_zero=False)

    model.eval()
    with paddle.no_grad():
        miou = sum(model.iou(i, l) for i, l in loader('val'))
    if best is None or miou > best:
        best = miou
        paddle.save(model.state_dict(), 'best.pdparams')
