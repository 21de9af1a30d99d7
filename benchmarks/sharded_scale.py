"""Measure a clip on one rank of 8 to 100,000, by unified_clip and by PyTorch, in turns, in one run.

    python benchmarks/sharded_scale.py                  # a table, in some minutes

The process groups are fake: one process is rank 0, and collectives return at once. Shards have 4 elements. So the
processor time is that of Python alone. The ratio is unified_clip / PyTorch: the median of all turns, with its
quartiles. Gradients are new tensors before each turn, as after a backward pass of FSDP2.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import unified_clip.torch as uc
from unified_clip._distributed import agreement
from unified_clip.ownership import mesh_ownership

RANKS = (8, 64, 1024, 8192, 100_000)
COLUMNS = 8
"""The length of the last dimension of a mesh with two dimensions."""


class Case(NamedTuple):
    parameters: list[nn.Parameter]
    unified: Callable[[list[nn.Parameter]], Any]
    native: Callable[[list[nn.Parameter]], Any]


def sharded(number: int, mesh: DeviceMesh, placements: list[Any]) -> list[nn.Parameter]:
    """Return parameters whose local tensors have 2 x 2 elements."""
    shape = [2, 2]
    for length, placement in zip(mesh.shape, placements, strict=True):
        if placement.is_shard():
            shape[placement.dim] *= length
    distribute = partial(DTensor.from_local, run_check=False, shape=torch.Size(shape), stride=(shape[1], 1))
    return [nn.Parameter(distribute(torch.zeros(2, 2), mesh, placements)) for _ in range(number)]


def renew(parameters: list[nn.Parameter]) -> None:
    """Set gradients as FSDP2 does after a backward pass."""
    for parameter in parameters:
        parameter.grad = DTensor(torch.ones(2, 2), parameter._spec, requires_grad=False)  # type: ignore[attr-defined]


def native_per_mesh(parameters: list[nn.Parameter]) -> None:
    """Clip the parameters of each mesh by their own norm, because PyTorch rejects parameters on two meshes."""
    for end in (slice(None, None, 2), slice(1, None, 2)):
        nn.utils.clip_grad_norm_(parameters[end], 1.0)


def interleaved(left: list[nn.Parameter], right: list[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for pair in zip(left, right, strict=True) for parameter in pair]


def cases(rows: DeviceMesh, number: int) -> dict[str, Case]:
    row = init_device_mesh("cpu", (rows.size(),), mesh_dim_names=("dp",))
    unified, native = partial(uc.clip_grad_norm_, max_norm=1.0), partial(nn.utils.clip_grad_norm_, max_norm=1.0)
    checked = partial(unified, check_replicas=True)
    by_mesh = partial(unified, ownership=mesh_ownership(rows))
    two = sharded(number // 2, rows, [Shard(0), Shard(1)])
    per_stage = sharded(number // 2, rows["dp"], [Shard(0)])
    return {
        "FSDP2": Case(sharded(number, row, [Shard(0)]), unified, native),
        "HSDP": Case(sharded(number, rows, [Replicate(), Shard(0)]), unified, native),
        "`check_replicas`": Case(sharded(number, rows, [Replicate(), Shard(0)]), checked, native),
        "two dimensions": Case(sharded(number, rows, [Shard(0), Shard(1)]), unified, native),
        "`mesh_ownership`": Case(interleaved(two, per_stage), by_mesh, native_per_mesh),
    }


def all_ranks_alike(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, **_: Any) -> None:
    """Change a tensor as an all-reduce does if all ranks send the same values."""
    if op == dist.ReduceOp.SUM:
        tensor.mul_(dist.get_world_size(group))


summands = agreement.summands


def equal_summands(outlines: Any) -> list[int]:
    """Return zeros, whose sum is the same on all ranks."""
    return [0 * number for number in summands(outlines)]


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    begin = time.process_time()
    call(*arguments)
    return time.process_time() - begin


def measured(case: Case, turns: int) -> tuple[list[float], list[float]]:
    """Return the times of both sides, measured in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 2):
        for side in (0, 1) if turn % 2 else (1, 0):
            renew(case.parameters)
            took = seconds((case.unified, case.native)[side], case.parameters)
            if turn >= 2:  # the first ones warm up
                times[side].append(took)
    return times


def simulate(_: int, ranks: int, options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    logging.disable()  # PyTorch logs that its norm makes two all-reduces over two dimensions
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    dist.all_reduce, agreement.summands = all_ranks_alike, equal_summands
    mesh = init_device_mesh("cpu", (ranks // COLUMNS, COLUMNS), mesh_dim_names=("dp", "tp"))
    cells = []
    for case in cases(mesh, options.parameters).values():
        unified, native = measured(case, options.turns)
        low, middle, high = statistics.quantiles(
            [left / right for left, right in zip(unified, native, strict=True)], n=4
        )
        times = f"{1000 * statistics.median(unified):.1f} / {1000 * statistics.median(native):.1f} ms"
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f}), {times}")
    ownership_seconds = statistics.median(seconds(mesh_ownership, mesh) for _ in range(5))
    print(f"| {ranks:,} | {' | '.join(cells)} | {1000 * ownership_seconds:.1f} ms |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help=f"multiples of {COLUMNS}")
    parser.add_argument("--parameters", type=int, default=500)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    names = ["FSDP2", "HSDP", "`check_replicas`", "two dimensions", "`mesh_ownership`"]
    names.append("constructor of `mesh_ownership`")
    print(f"| ranks | {' | '.join(names)} |\n{'|---' * (len(names) + 1)}|", flush=True)
    for ranks in options.ranks:
        multiprocessing.spawn(simulate, (ranks, options), nprocs=1)


if __name__ == "__main__":
    main()
