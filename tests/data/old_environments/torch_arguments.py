# torch-1.8.1: 4 clips, 4 steps, 0 warnings
# Parameters in all containers, a closure, a subclass whose step calls that of its base, and worker processes.
import torch


class Scaled(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = Scaled(model.parameters(), 0.1)
    named = dict(model.named_parameters())
    for chosen in (named.values(), {*model.parameters()}, iter(model.parameters()), model.weight):
        for batch in torch.utils.data.DataLoader(torch.ones(4, 3), batch_size=4, num_workers=1):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(chosen, 0.5)
            optimizer.step(lambda: loss)
            print(loss.item())
