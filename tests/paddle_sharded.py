"""What processes of a `World` run: Paddle's distributed tensors, and models over several processes."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import Partial, ProcessMesh, Replicate, Shard, fleet

import unified_clip.paddle as uc

PARTS = ("mp_degree", "pp_degree", "sharding_degree", "dp_degree")


def start(rank: int, size: int, meeting: str) -> None:
    warnings.simplefilter("error")
    if size > 1:
        _environment(rank, size, meeting)
        dist.init_parallel_env()


def start_fleet(rank: int, size: int, meeting: str, **degrees: int) -> None:
    """With `fleet`; the degrees that are not given are 1."""
    _environment(rank, size, meeting)
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {name: degrees.get(name, 1) for name in PARTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of groups that this process is not in
        fleet.init(is_collective=True, strategy=strategy)
    _complete_gloo()
    warnings.simplefilter("error")


def _environment(rank: int, size: int, meeting: str) -> None:
    """What Paddle's launcher sets. The first process finds a port."""
    file = Path(meeting)
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file.with_suffix(".part").write_text(str(port))
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.05)
    port = int(file.read_text())
    ends = [f"127.0.0.1:{port + each}" for each in range(size)]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(size),
        PADDLE_TRAINER_ENDPOINTS=",".join(ends),
        PADDLE_CURRENT_ENDPOINT=ends[rank],
        PADDLE_MASTER=ends[0],
        PADDLE_DISTRI_BACKEND="gloo",
    )


def _complete_gloo() -> None:
    """What `fleet`'s layers call and Paddle has on GPUs only, by what it has on the CPU."""
    group = paddle.base.core.ProcessGroup
    group.all_reduce_on_calc_stream = lambda self, tensor, how: self.all_reduce(tensor, how, True).wait()
    paddle._C_ops.c_identity = lambda tensor, *_: tensor.clone()


@contextmanager
def counted() -> Iterator[list[str]]:
    """The collectives that are called meanwhile."""
    calls: list[str] = []
    names = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reshard")
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


def mesh_of(kind: str) -> ProcessMesh:
    """All processes in a row, or in two rows."""
    ranks = np.arange(dist.get_world_size())
    if kind == "row":
        return ProcessMesh(ranks, ["dp"])
    return ProcessMesh(ranks.reshape(max(len(ranks) // 2, 1), -1), ["dp", "mp"])


# -- gradients with known values on every layout

PLACEMENTS: dict[str, tuple[str, Callable[[int], list[Any]]]] = {
    "rows": ("row", lambda axes: [Shard(0)]),
    "columns": ("row", lambda axes: [Shard(axes - 1)]),
    "replicated": ("row", lambda axes: [Replicate()]),
    "terms of a sum": ("row", lambda axes: [Partial()]),
    "copies of rows": ("rows", lambda axes: [Replicate(), Shard(0)]),
    "two dimensions": ("rows", lambda axes: [Shard(0), Shard(axes - 1)] if axes > 1 else [Replicate(), Shard(0)]),
    "sum and rows": ("rows", lambda axes: [Partial(), Shard(0)]),
}
"""Kinds of layouts: a mesh, and placements for a tensor with so many axes."""


def distributed(array: np.ndarray, mesh: ProcessMesh, placements: Sequence[Any]) -> paddle.Tensor:
    """An array that every process has, as a distributed tensor, cut as Paddle cuts: which it cannot do where a process
    is left with nothing. Of a sum the first process holds everything."""
    shape = list(array.shape)
    (at,) = np.argwhere(np.array(mesh.process_ids).reshape(mesh.shape) == dist.get_rank())
    for here, size, placement in zip(at.tolist(), mesh.shape, placements, strict=True):
        if placement.is_partial() and here:
            array = np.zeros_like(array)
        if placement.is_shard():
            length = array.shape[axis := placement.get_dim()]
            part = -(-length // size)
            array = array.take(range(here * part, min((here + 1) * part, length)), axis)
    local = paddle.to_tensor(np.ascontiguousarray(array))
    return paddle.Tensor(local, dims=shape, process_mesh=mesh, placements=list(placements))


def parameter_with(gradient: paddle.Tensor) -> Any:
    """A parameter on which this is the gradient, on the same processes."""
    found = paddle.create_parameter(gradient.shape, gradient.dtype)
    if gradient.is_dist():
        local = paddle.zeros_like(gradient._local_value())
        layout = {"process_mesh": gradient.process_mesh, "placements": gradient.placements}
        found = type(found).from_tensor(paddle.Tensor(local, dims=gradient.shape, **layout), name=found.name)
    found.grad_ = gradient
    return found


def parameters(arrays: Sequence[np.ndarray], layout: str) -> list[Any]:
    """Parameters with these gradients. "mixed": on several meshes of all processes, and plain."""
    kinds = ["rows", "copies of rows", "two dimensions", "plain", "replicated"] if layout == "mixed" else [layout]
    found = []
    for number, array in enumerate(arrays):
        kind = kinds[number % len(kinds)]
        gradient = paddle.to_tensor(array)
        if kind != "plain":
            mesh, placements = PLACEMENTS[kind]
            gradient = distributed(array, mesh_of(mesh), placements(array.ndim))
        found.append(parameter_with(gradient))
    return found


def gathered(tensor: paddle.Tensor) -> np.ndarray:
    """The whole of what processes hold, by NumPy: Paddle cannot reshard all of it."""
    if not tensor.is_dist():
        return tensor.numpy().copy()
    local = tensor._local_value().numpy()
    size = dist.get_world_size()
    everywhere: list[Any] = [(local, dist.get_rank())]
    if size > 1:
        everywhere = []
        dist.all_gather_object(everywhere, (local, dist.get_rank()))
    by_rank = {rank: part for part, rank in everywhere}
    parts = np.empty(tensor.process_mesh.shape, object)
    for at, rank in zip(np.ndindex(*parts.shape), tensor.process_mesh.process_ids, strict=True):
        parts[at] = by_rank[rank]
    for dimension in reversed(range(parts.ndim)):  # from the last dimension of the mesh to the first
        placement = tensor.placements[dimension]
        joined = np.empty(parts.shape[:-1], object)
        for at in np.ndindex(*joined.shape):
            column = list(parts[at])
            if placement.is_shard():
                joined[at] = np.concatenate(column, axis=placement.get_dim())
            else:
                joined[at] = sum(column[1:], column[0]) if placement.is_partial() else column[0]
        parts = joined
    whole: np.ndarray = parts[()]
    return whole


def clipped(
    arrays: Sequence[np.ndarray], layout: str, p: float, limit: float, **stated: Any
) -> tuple[float, str, list[np.ndarray], list[str]]:
    """The norm and its type, the gradients afterwards, gathered, and which collectives our call made."""
    given = parameters(arrays, layout)
    with counted() as calls:
        norm = uc.clip_grad_norm_(given, limit, p, check_numel=True, **stated)
    kind = f"{type(norm).__name__} {norm.dtype} {norm.shape == [] and not norm.is_dist()}"
    return norm.item(), kind, [gathered(each.grad) for each in given], calls
