#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import torch

import unified_clip.torch as uc

models = [torch.nn.Linear(4, 8), torch.nn.Linear(4, 1)]
optimizers = [torch.optim.Adam(each.parameters()) for each in models]
parameters = [each for model in models for each in model.parameters()]
for _ in range(3):
    for each, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        each(torch.ones(8, 4)).pow(2).sum().backward()
    clipped, norm = uc.clip_by_global_norm([each.grad for each in parameters], 1.0)
    for each, gradient in zip(parameters, clipped):
        each.grad = gradient
    optimizers[0].step()
    optimizers[1].step()
