"""PyTorch: parameters on rank 1 of 8, with fake process groups whose collectives return at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from unified_clip._backends.torch.sharded import TorchShards
from unified_clip._compute.checksums import PIECES
from unified_clip._distributed import agreement

RANKS = 8


@contextmanager
def fake_all_reduces() -> Iterator[list[Any]]:
    """Record the groups of all collectives of rank 1 of 8. The other ranks send the same values.

    Digests, of which the first rank sends a multiple, are 0.
    """
    groups = []

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, **_: Any) -> None:
        groups.append(group)
        if op == dist.ReduceOp.SUM:
            tensor.mul_(dist.get_world_size(group))

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    summands = mock.patch.object(agreement, "summands", return_value=[0] * PIECES)
    are_real = mock.patch.object(TorchShards, "are_simulated", return_value=False)
    with mock.patch.object(dist, "all_reduce", all_reduce), summands, are_real:
        yield groups
    dist.destroy_process_group()


def parameters(mesh: DeviceMesh, *placements: Any, number: int = 6, length: int = 16) -> list[nn.Parameter]:
    shape = torch.Size([length, 16])

    def local() -> Any:
        return DTensor.from_local(torch.ones(2, 2), mesh, placements, run_check=False, shape=shape, stride=(16, 1))

    params = [nn.Parameter(local()) for _ in range(number)]
    for parameter in params:
        parameter.grad = local()
    return params


def without_groups(ranks: Any, *names: str, rank: int = 1) -> DeviceMesh:
    """Return the mesh of a rank, without process groups."""
    with mock.patch("torch.distributed.device_mesh.get_rank", return_value=rank):
        return DeviceMesh("cpu", ranks, mesh_dim_names=names or None, _init_backend=False)


def row() -> DeviceMesh:
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))


def rows() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))


def plain() -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return [parameter]
