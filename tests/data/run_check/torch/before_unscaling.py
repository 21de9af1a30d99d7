#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(8, 4)).pow(2).sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # found: drift 1 to 3
    scaler.step(optimizer)
    scaler.update()
