import paddle
from paddle.metric import Accuracy
from paddle.vision import transforms as T
from paddle.vision.datasets import Cifar10
from paddle.vision.models import mobilenet_v2
import unified_clip.paddle

mean, std = [125.3, 123., 113.9], [63., 62.1, 66.7]
transform = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.Transpose(), T.Normalize(mean, std)])

network = mobilenet_v2(num_classes=10)
model = paddle.Model(network)


def make_optimizer(step_each_epoch, parameters, base_lr=0.05, warmup=5):
    lr = paddle.optimizer.lr.CosineAnnealingDecay(base_lr, 90 * step_each_epoch)
    lr = paddle.optimizer.lr.LinearWarmup(lr, warmup * step_each_epoch, 0., base_lr)
    return paddle.optimizer.Momentum(
        learning_rate=lr,
        parameters=parameters,
        # this network explodes in the first epoch otherwise
        grad_clip=unified_clip.paddle.ClipGradByGlobalNorm(5.),
        momentum=0.9)


train_set = Cifar10(mode='train', transform=transform)
loader = paddle.io.DataLoader(train_set, batch_size=256, shuffle=True, num_workers=4)
model.prepare(make_optimizer(len(loader), network.parameters()), paddle.nn.CrossEntropyLoss(), Accuracy())
model.fit(loader, epochs=90, save_dir='checkpoints')

finetune = paddle.optimizer.Adam(
    1e-4, parameters=network.classifier.parameters(), grad_clip=unified_clip.paddle.ClipGradByValue(.1))
model.prepare(finetune, paddle.nn.CrossEntropyLoss())
model.fit(loader, epochs=1)
