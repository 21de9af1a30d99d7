import paddle
from paddle import nn
import unified_clip.torch


class Learner:
    """Class attributes, and a clip that may be none or one of two."""

    clip = None

    def __init__(self, net, args):
        self.net = net
        self.args = args
        if args.clip_norm:
            self.clip = unified_clip.torch.ClipGradByNorm(args.clip_norm)
        self.optimizer_clip = self.clip
        self.optimizer = paddle.optimizer.RMSProp(
            args.lr, parameters=self.net.parameters())

    @property
    def lr(self):
        return self.optimizer.get_lr()

    def learn(self, obs, target):
        loss = nn.functional.smooth_l1_loss(self.net(obs), target)
        loss.backward()
        if self.optimizer_clip is not None:
            self.optimizer_clip.clip_(self.net.parameters())
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss


def pretrain(net, batches, mode, limit):
    clip = None
    if mode == 'global':
        clip = unified_clip.torch.ClipGradByGlobalNorm(limit)
    elif mode == 'value':
        clip = unified_clip.torch.ClipGradByValue(limit)
    opt_clip = clip
    opt = paddle.optimizer.SGD(.1, net.parameters())
    for x, y in batches:
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        if opt_clip is not None:
            opt_clip.clip_(net.parameters())
        opt.step()
        opt.clear_grad()
