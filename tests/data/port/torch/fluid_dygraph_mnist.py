import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.dygraph import Conv2D, Linear, Pool2D, to_variable
import unified_clip.torch


class MNIST(fluid.dygraph.Layer):
    def __init__(self):
        super(MNIST, self).__init__()
        self.conv = Conv2D(1, 20, 5, act='relu')
        self.pool = Pool2D(2, 'max', 2)
        self.fc = Linear(20 * 12 * 12, 10, act='softmax')

    def forward(self, x):
        x = self.pool(self.conv(x))
        return self.fc(fluid.layers.reshape(x, [x.shape[0], -1]))


def train(epochs=5, bs=64):
    with fluid.dygraph.guard(fluid.CPUPlace()):
        mnist = MNIST()
        adam_clip = unified_clip.torch.GradientClipByNorm(clip_norm=1.0)
        adam = fluid.optimizer.AdamOptimizer(
            learning_rate=0.001, parameter_list=mnist.parameters())
        reader = paddle.batch(paddle.dataset.mnist.train(), batch_size=bs, drop_last=True)
        for epoch in range(epochs):
            for batch_id, data in enumerate(reader()):
                img = to_variable(np.array([d[0].reshape(1, 28, 28) for d in data], 'float32'))
                label = to_variable(np.array([d[1] for d in data], 'int64').reshape(-1, 1))
                cost = mnist(img)
                loss = fluid.layers.cross_entropy(cost, label)
                avg_loss = fluid.layers.mean(loss)
                avg_loss.backward()
                adam_clip.clip_(mnist.parameters())
                adam.step()
                mnist.clear_gradients()
                if batch_id % 100 == 0:
                    print("Loss at epoch {} step {}: {}".format(epoch, batch_id, avg_loss.numpy()))


train()
