"""A trainer whose own function computes the clip coefficient."""

import torch


def limit_gradients(parameters, max_norm):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total_norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
    coefficient = max_norm / (total_norm + 1e-6)
    coefficient = torch.clamp(coefficient, max=1.0)
    for gradient in gradients:
        gradient.mul_(coefficient)
    return total_norm


def train(model, optimizer, batches):
    for features, labels in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        limit_gradients(list(model.parameters()), 1.0)
        optimizer.step()
