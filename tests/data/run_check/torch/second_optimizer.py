#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import torch

generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
steps = [torch.optim.Adam(each.parameters()) for each in (generator, critic)]
for _ in range(3):
    noise = torch.randn(8, 4)
    steps[1].zero_grad()
    (critic(generator(noise).detach()) - critic(torch.ones(8, 4))).pow(2).mean().backward()
    steps[1].step()  # found: missing 1 to 3
    steps[0].zero_grad()
    (-critic(generator(noise))).mean().backward()
    torch.nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
    steps[0].step()
