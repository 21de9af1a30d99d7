import torch


def clip(critic):
    torch.nn.utils.clip_grad_value_(critic.parameters(), 0.01)
