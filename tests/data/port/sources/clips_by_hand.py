"""Clips that only arithmetic shows, next to normalizations, and the clip of apex's FP16_Optimizer."""

import numpy as np
import torch


def step(flat_grad, velocity, limit, optimizer):
    gradnorm = np.linalg.norm(flat_grad)
    if gradnorm > 1:
        flat_grad /= gradnorm
    flat_grad = np.where(gradnorm > limit, flat_grad * limit / gradnorm, flat_grad)
    flat_grad = flat_grad / max(gradnorm, limit)
    if gradnorm > 1e-8:
        flat_grad /= gradnorm
    flat_grad /= max(gradnorm, 1e-6)
    norm = np.linalg.norm(velocity)
    if norm > limit:
        velocity /= norm
    optimizer.clip_master_grads(limit)
    return torch.from_numpy(flat_grad), velocity
