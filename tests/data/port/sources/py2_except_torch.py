import os
import sys
import torch
import torch.nn.utils as utils


def load(path):
    try:
        return torch.load(path)
    except (IOError, RuntimeError), e:
        sys.stderr.write('cannot load %s: %s\n' % (path, e))
        return None


def step(model, optimizer, loss, max_norm=0x7fL):
    optimizer.zero_grad()
    loss.backward()
    utils.clip_grad_norm(model.parameters(), max_norm)
    optimizer.step()


def main():
    model = load(os.path.join('runs', 'best.pt'))
    if model is None:
        raise SystemExit, 1
    d = {}
    if not d.has_key('epochs'):
        d['epochs'] = 10
