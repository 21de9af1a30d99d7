import paddle
from paddle import nn


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(nn.functional.relu(self.hidden(x)))


def step(weights, batches):
    net = Net()
    net.set_state_dict(weights)
    clip = nn.ClipGradByGlobalNorm(clip_norm=2.5)
    optimizer = paddle.optimizer.Momentum(0.125, 0.5, parameters=net.parameters(), grad_clip=clip)
    for batch in batches:
        loss = nn.functional.mse_loss(net(paddle.to_tensor(batch["x"])), paddle.to_tensor(batch["y"]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        yield dict(net.named_parameters()), None
