#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    for each in model.parameters():
        torch.nn.utils.clip_grad_norm_(each, 1.0)
    optimizer.step()  # found: drift 1 to 3
