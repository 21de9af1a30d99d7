"""Measure `clip_grad_norm_` of unified_clip and of PyTorch over several processes on FSDP2, in turns, in one run.

    python benchmarks/sharded.py            # 2 and 4 processes with gloo, a transformer of 100 million parameters

Gradients come from a real backward pass. "clipped": the threshold is half the norm. "measured": the threshold is
infinite, so nothing is written. Each time is that of the slowest process. The ratio is unified_clip / PyTorch: the
median of all turns, with its quartiles.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import unified_clip.torch as uc

SIDES: dict[str, Callable[..., Any]] = {"unified_clip": uc.clip_grad_norm_, "PyTorch": nn.utils.clip_grad_norm_}


def transformer(layers: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def gradients(layers: int, width: int) -> list[Any]:
    """Return the parameters of a sharded transformer after a backward pass."""
    with torch.device("meta"):
        model = transformer(layers, width)
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    model(torch.randn(1, 8, width)).square().mean().backward()
    return list(model.parameters())


def time_clip(clip: Callable[..., Any], parameters: list[Any], limit: float) -> float:
    """Return the seconds of the slowest process."""
    dist.barrier()
    begin = time.perf_counter()
    clip(parameters, limit)
    took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def turns(parameters: list[Any], limit: float, number: int) -> dict[str, list[float]]:
    """Return the seconds of both sides, in turns. Clipped gradients are scaled back in between."""
    seconds_by_side: dict[str, list[float]] = {name: [] for name in SIDES}
    local_gradients = [parameter.grad.to_local() for parameter in parameters]
    for turn in range(number + 2):
        order = list(SIDES) if turn % 2 else list(reversed(SIDES))
        for name in order:
            seconds = time_clip(SIDES[name], parameters, limit)
            if math.isfinite(limit):
                torch._foreach_mul_(local_gradients, 2.0)
            if turn >= 2:  # the first ones warm up
                seconds_by_side[name].append(seconds)
    return seconds_by_side


def collectives(parameters: list[Any]) -> dict[str, int]:
    counts = {}
    for name, clip in SIDES.items():
        with CommDebugMode() as mode:
            clip(parameters, math.inf)
        counts[name] = mode.get_total_counts()
    return counts


def process(rank: int, size: int, meeting: str, options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(meeting, size), rank=rank, world_size=size)
    parameters = gradients(options.layers, options.width)
    total = sum(parameter.numel() for parameter in parameters)
    norm = uc.clip_grad_norm_(parameters, math.inf).item()
    counts = collectives(parameters)
    for name, limit in (("clipped", norm / 2), ("measured", math.inf)):
        seconds = turns(parameters, limit, options.turns)
        ratios = [unified / native for unified, native in zip(*seconds.values(), strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        if rank == 0:
            times = ", ".join(
                f"{side} {1000 * statistics.median(durations):.1f} ms" for side, durations in seconds.items()
            )
            called = ", ".join(f"{side} {count}" for side, count in counts.items())
            print(
                f"{size} processes, {total / 1e6:.0f} million parameters in {len(parameters)} tensors, {name}: ratio "
                f"{middle:.2f} ({low:.2f} to {high:.2f}); {times}; collectives: {called}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # after a backward pass of FSDP2 on a CPU, a normal exit may abort


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    for size in options.processes:
        with tempfile.TemporaryDirectory() as directory:
            meeting = str(Path(directory) / "meeting")
            multiprocessing.spawn(process, (size, meeting, options), nprocs=size)


if __name__ == "__main__":
    main()
