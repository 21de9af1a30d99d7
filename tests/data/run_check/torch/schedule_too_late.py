#: rule = "global_norm"
#: threshold = {schedule = "piecewise", values = [1.0, 2.0], boundaries = [1]}
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).sum().backward()
    step = optimizer.state.setdefault("steps", [0])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0 if step[0] < 2 else 2.0)  # found: drift 2
    step[0] += 1
    optimizer.step()
