#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(8):
    (model(torch.ones(8, 4)).pow(2).sum() / 4).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if batch % 4 == 3:
        optimizer.step()  # found: drift 1 to 2
        optimizer.zero_grad()
