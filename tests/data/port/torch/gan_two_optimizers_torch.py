import functools
import itertools

import torch as th
from torch import autograd, optim
import unified_clip.torch


def gradient_penalty(critic, real, fake, center=1.):
    eps = th.rand(real.size(0), 1, 1, 1, device=real.device)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    grad, = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((grad.flatten(1).norm(dim=1) - center) ** 2).mean()


def train(gen, critic, batches, opts):
    opt_g = optim.Adam(gen.parameters(), lr=opts.lr, betas=(.5, .9))
    opt_c = optim.Adam(critic.parameters(), lr=opts.lr, betas=(.5, .9))

    clip_g = functools.partial(unified_clip.torch.clip_grad_norm_, max_norm=opts.clip_g)
    clip_c = lambda: unified_clip.torch.clip_grad_value_(critic.parameters(), clip_value=opts.clip_c)
    clippers = {
        'norm': unified_clip.torch.clip_grad_norm_,
        'value': unified_clip.torch.clip_grad_value_,
        'none': lambda *a, **k: None,
    }

    for step, real in enumerate(itertools.chain.from_iterable(batches)):
        z = th.randn(real.size(0), opts.nz, device=real.device)
        fake = gen(z)
        opt_c.zero_grad()
        loss_c = critic(fake.detach()).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake.detach())
        loss_c.backward(); clip_c(); opt_c.step()
        if step % opts.n_critic: continue
        opt_g.zero_grad()
        (-critic(gen(z)).mean()).backward()
        clip_g(gen.parameters())
        clippers[opts.extra](list(gen.parameters()), opts.clip_extra)
        opt_g.step()
