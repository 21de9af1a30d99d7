"""Functions that processes of a `World` run: clips of PyTorch's DTensors."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_layout import parameter_with
from support.processes.worlds import World, record_calls, worlds_of_any_size
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


def worlds() -> AbstractContextManager[Callable[[int], World]]:
    return worlds_of_any_size(start)


def record_collectives() -> AbstractContextManager[list[str]]:
    return record_calls(
        dist, ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter_tensor")
    )


@functools.cache
def mesh_of(kind: str) -> DeviceMesh:
    size = dist.get_world_size()
    if kind == "cube":
        return init_device_mesh("cpu", (2, 2, size // 4), mesh_dim_names=("replicate", "shard", "tp"))
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
"""Layouts: a mesh, and the placements for a tensor with a number of axes."""

CUBE: dict[str, tuple[str, Callable[[int], list[Any]]]] = {
    "along both": ("cube", lambda axes: [Replicate(), Shard(0), Shard(axes - 1)]),
    "along the second": ("cube", lambda axes: [Replicate(), Shard(0), Replicate()]),
    "along the third": ("cube", lambda axes: [Replicate(), Replicate(), Shard(axes - 1)]),
    "along none": ("cube", lambda axes: [Replicate()] * 3),
}
"""The same for HSDP and tensor parallelism, on a mesh of three dimensions."""


def distributed(array: np.ndarray, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """Return an array, which every process has, as a DTensor.

    For partial sums, the first process has the whole array, and other processes have zeros.
    """
    full = torch.from_numpy(array.copy())
    partial = [dimension for dimension, placement in enumerate(placements) if placement.is_partial()]
    without_partial = [
        Replicate() if dimension in partial else placement for dimension, placement in enumerate(placements)
    ]
    tensor = distribute_tensor(full, mesh, without_partial, src_data_rank=None)
    if any(mesh.get_local_rank(dimension) for dimension in partial):
        tensor.to_local().zero_()
    return DTensor.from_local(
        tensor.to_local(), mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )


def parameters(arrays: Sequence[np.ndarray], layout: str) -> list[nn.Parameter]:
    """Return parameters with these gradients.

    layout: "mixed" has several meshes of all processes, and plain tensors. "cube" has all layouts of `CUBE`.
    """
    mixed = {"mixed": ["FSDP", "HSDP", "two dimensions", "plain", "replicated"], "cube": list(CUBE)}
    kinds = mixed.get(layout, [layout])
    params = []
    for number, array in enumerate(arrays):
        kind = kinds[number % len(kinds)]
        gradient: Any = torch.from_numpy(array.copy())
        if kind != "plain":
            mesh, placements = (PLACEMENTS | CUBE)[kind]
            gradient = distributed(array, mesh_of(mesh), placements(array.ndim))
        params.append(parameter_with(gradient))
    return params


def gathered(tensor: Any) -> np.ndarray:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).numpy().copy()


def clip_layout(
    arrays: Sequence[np.ndarray], layout: str, p: float, threshold: float, **options: Any
) -> tuple[float, str, list[np.ndarray], list[str]]:
    """Return the norm, its type, the clipped gradients (gathered), and the collectives of the clip."""
    params = parameters(arrays, layout)
    with record_collectives() as calls:
        norm = uc.clip_grad_norm_(params, threshold, p, check_numel=True, **options)
    return norm.item(), f"{type(norm).__name__} {norm.dtype}", [gathered(parameter.grad) for parameter in params], calls


def clip_without_a_list(array: np.ndarray, layout: str, threshold: float) -> tuple[float, np.ndarray]:
    importlib.import_module("torch.distributed.fsdp._flat_param")  # a loaded FSDP adds a check of parameters to a call

    (parameter,) = parameters([array], layout)
    return uc.clip_grad_norm_(parameter, threshold).item(), gathered(parameter.grad)


def clip_on_this_rank(layout: str) -> list[float]:
    """Clip one gradient by its own norm with `process_group=None`, which declares it as complete on this rank."""
    (parameter,) = parameters([np.array([[3.0], [4.0]], np.float32)], layout)
    uc.GradientClipByNorm(1.0, process_group=None).clip_([parameter])
    clipped: list[float] = gathered(parameter.grad).ravel().tolist()
    return clipped


def adaptive_state(norms: list[float], loaded: list[Any]) -> Any:
    """Return the state of an adaptive threshold after gradients of these norms. Each rank has half of a gradient.

    loaded: The state with which each rank begins, or None.
    """
    from unified_clip import ClipConfig

    clip = ClipConfig(rule="global_norm", adaptive={"rule": "zclip", "warmup_steps": 3}).clipper()
    if loaded[dist.get_rank()] is not None:
        clip.load_state_dict(loaded[dist.get_rank()])
    for norm in norms:
        clip.clip_(parameters([np.array([[0.6 * norm], [0.8 * norm]], np.float32)], "FSDP"))
    return clip.state_dict()


def adagc_state(norms: list[float]) -> Any:
    """Return the state of AdaGC after two gradients of such norms, and the last clipped gradients.

    Each rank has half of a gradient.
    """
    from unified_clip import ClipConfig

    clip = ClipConfig(rule="norm", adaptive={"rule": "adagc", "warmup_steps": 3}).clipper()
    for norm in norms:
        arrays = [np.array([[0.6 * size], [0.8 * size]], np.float32) for size in (norm, 3 * norm)]
        sharded = parameters(arrays, "FSDP")
        clip.clip_(sharded)
    return clip.state_dict(), [gathered(parameter.grad).ravel().tolist() for parameter in sharded]


def clip_shards_by_agc() -> None:
    from unified_clip import ClipConfig

    sharded = parameters([np.array([[3.0], [4.0]], np.float32)], "FSDP")
    ClipConfig(rule="norm", adaptive={"rule": "agc"}).clip_(sharded)
