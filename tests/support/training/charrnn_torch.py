"""The network of `charrnn_tensorflow.py`, ported to PyTorch."""

from __future__ import annotations

import setting
import torch

import unified_clip.torch as uc

UNITS, LENGTH, SEQUENCES, DECAY = setting.UNITS, 12, 8, 0.9


class CharRNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in setting.CHAR_RNN.items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(setting.weight(name, *shape))))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        state, loss = torch.zeros(SEQUENCES, UNITS), torch.tensor(0.0)
        for t in range(LENGTH):
            embedded = self.embedding[tokens[:, t]]
            state = torch.tanh(embedded @ self.inputs + state @ self.states + self.bias)
            loss = loss + torch.nn.functional.cross_entropy(state @ self.softmax, targets[:, t])
        return loss / LENGTH


def main(batches: int = 8, grad_clip: float = 0.5) -> None:
    model = CharRNN()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
    for batch in torch.from_numpy(setting.text(batches, SEQUENCES, LENGTH)):
        loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        uc.ClipGradByGlobalNorm(grad_clip).clip_(model.parameters())
        optimizer.step()
        scheduler.step()


main()
