import torch


def log(model):
    grads = [p.grad for p in model.parameters()]
    return torch.nn.utils.get_total_norm(grads)
