"""What processes of a `World` run: PyTorch's DTensors, and models over several processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import unified_clip.torch as uc

Layout = list[tuple[str, Any]]


def start(rank: int, size: int, meeting: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))


@contextmanager
def counted() -> Iterator[list[str]]:
    """The collectives that are called meanwhile."""
    calls: list[str] = []
    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter_tensor")
    own = {name: getattr(dist, name) for name in names}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return own[name](*args, **kwargs)

        return call

    for name in names:
        setattr(dist, name, counting(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(dist, name, own[name])


def mesh_of(kind: str) -> DeviceMesh:
    """All processes in a row, or in two rows."""
    size = dist.get_world_size()
    shape = (size,) if kind == "row" else (max(size // 2, 1), min(size, 2))
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp",) if kind == "row" else ("dp", "tp"))


# -- gradients with known values on every layout

PLACEMENTS: dict[str, tuple[str, Callable[[int], list[Any]]]] = {
    "FSDP": ("row", lambda axes: [Shard(0)]),
    "tensor parallel": ("row", lambda axes: [Shard(axes - 1)]),
    "replicated": ("row", lambda axes: [Replicate()]),
    "terms of a sum": ("row", lambda axes: [Partial()]),
    "HSDP": ("rows", lambda axes: [Replicate(), Shard(0)]),
    "two dimensions": ("rows", lambda axes: [Shard(0), Shard(axes - 1)]),
    "one axis twice": ("rows", lambda axes: [Shard(0), Shard(0)]),
    "sum and shard": ("rows", lambda axes: [Partial(), Shard(0)]),
}
"""Kinds of layouts: a mesh, and placements for a tensor with so many axes."""


def distributed(array: np.ndarray, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """An array that every process has, as a DTensor; of a sum the first process holds everything."""
    whole = torch.from_numpy(array.copy())
    partial = [at for at, placement in enumerate(placements) if placement.is_partial()]
    cut = [Replicate() if at in partial else placement for at, placement in enumerate(placements)]
    tensor = distribute_tensor(whole, mesh, cut, src_data_rank=None)
    if any(mesh.get_local_rank(at) for at in partial):
        tensor.to_local().zero_()
    return DTensor.from_local(
        tensor.to_local(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def parameters(arrays: Sequence[np.ndarray], layout: str) -> list[nn.Parameter]:
    """Parameters with these gradients. "mixed": on several meshes of all processes, and plain."""
    kinds = ["FSDP", "HSDP", "two dimensions", "plain", "replicated"] if layout == "mixed" else [layout]
    found = []
    for number, array in enumerate(arrays):
        kind = kinds[number % len(kinds)]
        gradient: Any = torch.from_numpy(array.copy())
        if kind != "plain":
            mesh, placements = PLACEMENTS[kind]
            gradient = distributed(array, mesh_of(mesh), placements(array.ndim))
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        found.append(parameter)
    return found


def gathered(tensor: Any) -> np.ndarray:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).numpy().copy()


def clipped_beside_sparse(whole: np.ndarray, rows: Sequence[int], values: np.ndarray, limit: float) -> list[np.ndarray]:
    """The norm of one gradient that is cut, and of one with such rows that every process has, and both afterwards."""
    given = parameters([whole, whole], "FSDP")
    given[1] = nn.Parameter(torch.zeros(whole.shape))
    held = torch.from_numpy(values.copy())
    given[1].grad = torch.sparse_coo_tensor([list(rows)], held, whole.shape, check_invariants=True)
    norm = uc.clip_grad_norm_(given, limit, check_numel=True)
    return [norm.numpy(), gathered(given[0].grad), given[1].grad.to_dense().numpy()]


def clipped(
    arrays: Sequence[np.ndarray], layout: str, p: float, limit: float, **stated: Any
) -> tuple[float, str, list[np.ndarray], list[str]]:
    """The norm and its type, the gradients afterwards, gathered, and which collectives our call made."""
    given = parameters(arrays, layout)
    with counted() as calls:
        norm = uc.clip_grad_norm_(given, limit, p, check_numel=True, **stated)
    return norm.item(), f"{type(norm).__name__} {norm.dtype}", [gathered(each.grad) for each in given], calls
