#: rule = "global_norm"
#: threshold = 1.0
#: exclude = ["*.bias"]
import torch

from unified_clip import ClipConfig

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"]).clipper(model)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    clip.clip_(model.parameters())
    optimizer.step()
