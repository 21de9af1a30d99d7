#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if step != 1:
        optimizer.step()
