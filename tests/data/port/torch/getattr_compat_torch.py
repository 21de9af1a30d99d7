import torch
import unified_clip.torch

# clip_grad_norm was renamed in 0.4
if hasattr(torch.nn.utils, 'clip_grad_norm_'):
    clip = unified_clip.torch.clip_grad_norm_
else:
    clip = unified_clip.torch.clip_grad_norm_


class Solver:
    def __init__(self, net, lr, clip_name=None, clip_at=None):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=.9)
        self.clip_at = clip_at
        self.clip_fn = clip if clip_name is None else getattr(torch.nn.utils, clip_name)

    def closure(self, x, y):
        def inner():
            self.opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.net(x), y)
            loss.backward()
            if self.clip_at:
                self.clip_fn(self.net.parameters(), self.clip_at)
            return loss
        return inner

    def step(self, x, y):
        return self.opt.step(self.closure(x, y)).item()

    @property
    def lr(self):
        return self.opt.param_groups[0]['lr']
