"""The same run in PyTorch, without a mistake and with each mistake, recorded into the given directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import setting
import torch

import unified_clip
import unified_clip.torch as uc

Clip = Callable[[list[torch.nn.Parameter]], object]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
        self.load_state_dict({name: torch.from_numpy(array.T.copy()) for name, array in setting.WEIGHTS.items()})

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(batch)))


def train(path: Path, clip: Clip, *, late: bool = False, loss: str = "mean") -> None:
    """`late`: whether to clip after the optimizer's step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), setting.RATE)
    with unified_clip.record(path, norms=True, names=model) as run:
        for batch, target in zip(setting.BATCHES, setting.TARGETS, strict=True):
            run.next_step()
            error = model(torch.from_numpy(batch)) - torch.from_numpy(target)
            getattr(error.square(), loss)().backward()
            if late:
                optimizer.step()
            clip(list(model.parameters()))
            if not late:
                optimizer.step()
            optimizer.zero_grad()


def clip_each_group(
    clip: Clip, groups: Callable[[list[torch.nn.Parameter]], Iterable[list[torch.nn.Parameter]]]
) -> Clip:
    return lambda parameters: [clip(group) for group in groups(parameters)]


RIGHT = uc.ClipGradByGlobalNorm(setting.LIMIT).clip_


def main(out: Path) -> None:
    train(out / "right.jsonl", RIGHT)
    train(out / "per tensor.jsonl", uc.ClipGradByNorm(setting.LIMIT).clip_)
    train(
        out / "a call for each.jsonl",
        clip_each_group(RIGHT, lambda parameters: ([clip_each_group] for clip_each_group in parameters)),
    )
    train(out / "eps.jsonl", lambda parameters: uc.clip_grad_norm_(parameters, setting.LIMIT))
    train(out / "late.jsonl", RIGHT, late=True)
    train(out / "twice.jsonl", clip_each_group(RIGHT, lambda parameters: [parameters, parameters]))
    train(out / "threshold.jsonl", uc.ClipGradByGlobalNorm(2 * setting.LIMIT).clip_)
    train(out / "norm type.jsonl", lambda parameters: uc.clip_grad_norm_(parameters, setting.LIMIT, norm_type=1))
    train(out / "missing.jsonl", lambda parameters: RIGHT(parameters[:-1]))
    train(out / "sum.jsonl", RIGHT, loss="sum")


main(Path(sys.argv[1]))
