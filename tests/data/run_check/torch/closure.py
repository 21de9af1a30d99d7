#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).pow(2).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


for _ in range(3):
    optimizer.step(closure)
