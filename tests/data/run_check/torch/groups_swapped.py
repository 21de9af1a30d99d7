#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
#: [[groups]]
#: name = "first"
#: include = ["0.*"]
#: threshold = 5.0
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)  # found: drift 1 to 3
    torch.nn.utils.clip_grad_norm_(model[2].parameters(), 5.0)  # found: drift 1 to 3
    optimizer.step()
