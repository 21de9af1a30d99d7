"""PyTorch's processes of a `World`, and gradients on them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from support.kits import COMPLEX, FLOATING, TorchKit
from support.processes.torch_layout import parameter_with
from support.processes.worlds import World, record_calls, worlds_of_any_size
from support.ranks import IN_HALVES, OWNERSHIP, Gradient, dimensions
from support.ranks import LAYOUTS as RANK_LAYOUTS
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from unified_clip.ownership import mesh_ownership

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
    shape = (size,) if kind == "row" else (max(size // 2, 1), min(size, 2))
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp",) if kind == "row" else ("dp", "tp"))


# -- for `support.ranks`


class RankKit(TorchKit):
    def holder(self, gradient: Any) -> Any:
        return parameter_with(gradient)


KIT, LAYOUTS, DTYPES, SIZES = RankKit(), RANK_LAYOUTS, FLOATING + COMPLEX, (4, 2, 1)
DECLARED = {"", "WORLD", *IN_HALVES, *OWNERSHIP}


def fitting(array: np.ndarray, layout: str) -> np.ndarray:
    """Return a similar array that can have the layout."""
    return array[None] if array.ndim == 0 and "S" in LAYOUTS[layout][1] else array


def size() -> int:
    return dist.get_world_size()


process = dist.get_rank


def tensor(part: np.ndarray, gradient: Gradient) -> Any:
    local, shape = KIT.from_array(part), torch.Size(gradient.array.shape)
    name, _ = LAYOUTS[gradient.layout]
    if not name:
        return local
    name = {"halves": "rows", "own": "tp"}.get(name, name)
    mesh = mesh_of(name) if name in ("row", "rows") else mesh_of("rows")[name]
    kinds = {"R": Replicate(), "P": Partial(), "M": Partial("avg")}
    placements = [kinds.get(each) or Shard(int(each[1:]) % len(shape)) for each in dimensions(gradient.layout).values()]
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def part(tensor: Any) -> np.ndarray:
    return KIT.array(tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor


def remove_gradient(parameter: Any) -> None:
    parameter.grad = None


def keywords(declared: str) -> dict[str, Any]:
    owners: dict[str, Callable[[], Any]] = {
        "mesh": lambda: mesh_ownership(mesh_of("rows")),
        "stages": lambda: mesh_ownership(mesh_of("rows"), distinct="dp"),
        "function": lambda: lambda parameter: mesh_ownership(mesh_of("rows"))(parameter),
    }
    ownership = owners[declared]() if declared in owners else declared
    world = {"process_group": dist.group.WORLD}
    if declared in IN_HALVES:
        half = mesh_of("rows")["tp"]
        return {"process_group": half.get_group() if declared == "half" else half}
    return {} if not declared else world if declared == "WORLD" else {**world, "ownership": ownership}


# -- gradients with known values

PLACEMENTS: dict[str, tuple[str, Sequence[Any]]] = {
    "FSDP": ("row", [Shard(0)]), "HSDP": ("rows", [Replicate(), Shard(0)]),
}  # fmt: skip


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
    """Return parameters with these gradients, "plain" or in a layout of `PLACEMENTS`."""
    gradients: list[Any] = [torch.from_numpy(array.copy()) for array in arrays]
    if layout != "plain":
        mesh, placements = PLACEMENTS[layout]
        gradients = [distributed(array, mesh_of(mesh), placements) for array in arrays]
    return list(map(parameter_with, gradients))


def gathered(tensor: Any) -> np.ndarray:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).numpy().copy()


def adaptive_state(settings: dict[str, Any], norms: list[float], loaded: Any = None) -> Any:
    """Return the state of an adaptive threshold after two gradients of these norms and 3 times these norms, and the
    last clipped gradients. Each rank has half of a gradient.

    loaded: The state with which each rank begins, or None.
    """
    from unified_clip import ClipConfig

    clip = ClipConfig(**settings).clipper()
    if loaded is not None:
        clip.load_state_dict(loaded[dist.get_rank()])
    for norm in norms:
        sharded = parameters([np.array([[0.6 * n], [0.8 * n]], np.float32) for n in (norm, 3 * norm)], "FSDP")
        clip.clip_(sharded)
    return clip.state_dict(), [gathered(parameter.grad).ravel().tolist() for parameter in sharded]
