import numpy as np
import torch

import unified_clip.torch as uc

model = torch.nn.Sequential(
    torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
)
weights = np.load("weights.npz")
with torch.no_grad():
    for number, layer in enumerate((model[0], model[2], model[4])):
        layer.weight.copy_(torch.from_numpy(weights[f"fc_{number}.w_0"].T))  # Paddle stores the transpose
        layer.bias.copy_(torch.from_numpy(weights[f"fc_{number}.b_0"]))

clip = uc.GradientClipByNorm(clip_norm=0.1)
random = np.random.RandomState(0)
for count in range(5):
    x = torch.from_numpy(random.rand(128, 784).astype("float32"))
    y = torch.from_numpy(random.randint(0, 10, (128, 1)).astype("int64"))[:, 0]
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    clip.clip_(model.parameters())
    print(f"count:{count}", [round(float(each.grad.norm()), 3) for each in model.parameters()])
