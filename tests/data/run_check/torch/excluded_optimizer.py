#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
#: exclude = ["2.*"]
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
other = torch.optim.SGD(model[2].parameters(), lr=0.1)
for _ in range(3):
    model.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)
    optimizer.step()
    other.step()
