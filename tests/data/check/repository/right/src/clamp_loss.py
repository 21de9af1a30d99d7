import torch


def loss(ratio, advantage):
    return torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage).mean()
