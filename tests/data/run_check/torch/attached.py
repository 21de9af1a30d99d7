#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

from unified_clip import ClipConfig

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
ClipConfig(rule="global_norm", threshold=1.0).attach_to(optimizer, model)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    optimizer.step()
