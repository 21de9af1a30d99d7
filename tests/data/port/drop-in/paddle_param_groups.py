import paddle
from paddle import nn
from paddle.optimizer import AdamW
import unified_clip.paddle


class Detector(nn.Layer):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x):
        return self.head(self.backbone(x))


def train(backbone, head, loader, steps, base_lr=1e-4, clip=.1):
    model = Detector(backbone, head)
    groups = [
        {'params': backbone.parameters(), 'learning_rate': 0.1},
        {
            'params': [p for p in head.parameters() if p.ndim > 1],
            'weight_decay': 1e-4,
        },
        {'params': [p for p in head.parameters() if p.ndim <= 1], 'weight_decay': 0.},
    ]
    optim = AdamW(base_lr, parameters=groups, grad_clip=unified_clip.paddle.ClipGradByGlobalNorm(clip))
    for step, (image, target) in zip(range(steps), loader):
        loss = model(image, target)
        if not paddle.isfinite(loss):
            print(f'loss is {loss.item()}, stopping'); return
        optim.clear_grad()
        loss.backward()
        optim.step()
        if step % 50 == 0:
            yield step, float(loss)
