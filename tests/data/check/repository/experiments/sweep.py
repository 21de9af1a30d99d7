import torch

for threshold in (0.1, 1.0, 10.0):
    torch.nn.utils.clip_grad_norm_([], threshold)
