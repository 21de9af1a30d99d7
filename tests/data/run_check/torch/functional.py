#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import torch

import unified_clip.torch as uc

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    clipped, norm = uc.clip_by_global_norm([each.grad for each in model.parameters()], 1.0)
    for each, gradient in zip(model.parameters(), clipped):
        each.grad = gradient
    optimizer.step()
