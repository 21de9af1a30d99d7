"""Train a small transformer with bad batches, by two clips in turn: python examples/train_adaptive.py PLOT.svg

The model predicts the next symbol of sequences that repeat with a period. The batches of some steps are random symbols,
and their loss is multiplied by a large number. The clips get the same batches, and the same first weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

import torch
from torch import nn

from unified_clip import ClipConfig

SYMBOLS, LENGTH, WIDTH, BATCH, STEPS = 16, 24, 32, 16, 200
BAD = {**dict.fromkeys(range(120, 124), 30.0), **dict.fromkeys(range(170, 174), 3000.0)}
"""The factor of the loss in each bad step."""

CLIPS: Mapping[str, ClipConfig] = {
    "fixed": ClipConfig(rule="global_norm", threshold=5.0),
    "zclip": ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}),
}


class Step(NamedTuple):
    """The measurements of a step."""

    loss: float
    norm: float
    clipped: float
    """The total norm after the clip."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden = self.symbols(sequences) + self.places.weight
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.output(hidden)


def batches(steps: int) -> list[torch.Tensor]:
    """Sequences that repeat with periods from 2 to 5."""
    chance, batches = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        starts = torch.randint(SYMBOLS, (BATCH, 5), generator=chance)
        periods = torch.randint(2, 6, (BATCH, 1), generator=chance)
        batches.append(starts.gather(1, torch.arange(LENGTH + 1).expand(BATCH, -1) % periods))
    return batches


def train(config: ClipConfig, steps: int = STEPS, bad: Mapping[int, float] = BAD) -> list[Step]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clip, history = config.attach_to(optimizer, model), []
    for step, batch in enumerate(batches(steps)):
        if step in bad:
            batch = torch.randint(SYMBOLS, batch.shape, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        (loss * bad.get(step, 1.0)).backward()
        optimizer.step()
        history.append(Step(loss.item(), clip.last.norm, clip.last.norm_clipped or 0.0))
    return history


def plot(runs: Mapping[str, list[Step]], path: str) -> None:
    """Write a plot of the losses and of the norms after the clip."""
    from matplotlib.figure import Figure

    figure = Figure((8, 5), layout="constrained")
    losses, norms = figure.subplots(2, 1, sharex=True)
    for (name, steps), color in zip(runs.items(), ("#777777", "#2757c4"), strict=True):
        losses.plot([step.loss for step in steps], color=color, linewidth=1, label=name)
        norms.plot([step.clipped for step in steps], color=color, linewidth=1, label=name)
    norms.plot([step.norm for step in runs["fixed"]], ":", color="#aaaaaa", linewidth=1, label="fixed, before the clip")
    for axes, title in ((losses, "loss"), (norms, "total norm after the clip")):
        axes.set_ylabel(title)
        axes.grid(color="#eeeeee")
        for step in BAD:
            axes.axvline(step, color="#f0c0c0", linewidth=2, zorder=0)
    norms.set_yscale("log")
    norms.set_xlabel("step")
    norms.legend(fontsize=8)
    figure.savefig(path)


def main(path: str) -> None:
    torch.set_num_threads(1)  # the model is too small for more
    runs = {name: train(config) for name, config in CLIPS.items()}
    for name, steps in runs.items():
        before, after = (mean(step.loss for step in steps[start : start + 10]) for start in (110, 190))
        largest = max(steps[step].clipped for step in BAD)
        print(f"{name}: bad steps have norms up to {largest:.2f}. The loss is {before:.2f} before, {after:.2f} after.")
    plot(runs, path)


if __name__ == "__main__":
    main(sys.argv[1])
