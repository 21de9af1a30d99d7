"""Measure the time that a recording adds to a training step of ResNet-50 on the CPU, with PyTorch's `clip_grad_norm_`.

    python benchmarks/record_step.py 30 1 8 224  # repeats, threads of PyTorch, images, and their width and height

Steps without a recording, with a recording, and with norms=True take turns in one process. Each number is the median
difference between neighbouring steps. Other programs disturb processor time less than clock time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time

import torch
from torch import nn

import unified_clip

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of blocks."""

WAYS = ("alone", "record", "norms")
PARAMETERS = 25_557_032
"""The number of parameters of ResNet-50."""


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential(*shortcut) if inputs != outputs else nn.Identity()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(batch) + self.shortcut(batch))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
    return model


def training_step(batch: int, pixels: int) -> Callable[[], None]:
    torch.manual_seed(0)
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(1000, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def main(repeats: int = 20, threads: int = 1, batch: int = 4, pixels: int = 96) -> None:
    torch.set_num_threads(threads)
    step = training_step(batch, pixels)
    step()
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for way in WAYS[repeat % 3 :] + WAYS[: repeat % 3]:
                path = Path(folder, f"{way}-{repeat}.jsonl")
                with nullcontext() if way == "alone" else unified_clip.record(path, norms=way == "norms"):
                    step()  # the first step of a recording does more work
                    clock, processor = perf_counter(), process_time()
                    step()
                    times[way].append((perf_counter() - clock, process_time() - processor))
    for number, time_kind in enumerate(("clock", "processor")):
        alone = [pair[number] for pair in times["alone"]]
        typical = statistics.median(alone)
        for way in WAYS[1:]:
            added = [pair[number] - before for pair, before in zip(times[way], alone, strict=True)]
            low, middle, high = (1e3 * seconds for seconds in statistics.quantiles(added, n=4))
            print(
                f"{time_kind:9} {1e3 * typical:7.0f} ms a step; {way:6} adds {middle:6.1f} ms (quartiles {low:.1f} to "
                f"{high:.1f}), {middle / 10 / typical:.2f} %",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
