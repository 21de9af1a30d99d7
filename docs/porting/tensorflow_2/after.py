import torch
from torch import nn

import unified_clip.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(nn.functional.relu(self.hidden(x)))


def step(weights, batches):
    net = Net()
    net.load_state_dict({name: torch.from_numpy(array.T.copy()) for name, array in weights.items()})
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.125, momentum=0.5)

    def train(x, y):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        grads = [parameter.grad for parameter in parameters]
        grads, norm = unified_clip.torch.clip_by_global_norm(grads, 2.5)
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        optimizer.step()
        return grads

    for batch in batches:
        grads = train(torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"]))
        yield dict(net.named_parameters()), dict(zip(weights, grads))
