"""Layouts of Megatron and DeepSpeed, imitated: their gradients are plain tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from support.processes.torch_layout import HIDDEN, WIDTH, WORDS, Layout, Piece, gradient_of, mesh_of, parameter_with
from torch import Tensor


class ParameterShard(NamedTuple):
    """A shard of a parameter: its gradient, and the positions of its elements in the full one."""

    name: str
    size: int
    positions: Tensor
    gradient: Tensor
    attributes: dict[str, Any]

    def of(self, index: Any) -> ParameterShard:
        return self._replace(positions=self.positions[index], gradient=self.gradient[index])


def shard_of(name: str, shape: Sequence[int], index: Any = ..., **attributes: Any) -> ParameterShard:
    full = gradient_of(name, shape)
    positions = torch.arange(full.numel()).reshape(full.shape)
    return ParameterShard(name, full.numel(), positions[index].clone(), full[index].clone(), attributes)


def layout_of_shards(shards: Sequence[ParameterShard], **names: Any) -> Layout:
    parameters = [parameter_with(shard.gradient, **shard.attributes) for shard in shards]

    def pieces(are_summed: bool) -> list[Piece]:
        return [
            Piece(shard.name, shard.size, shard.positions.flatten().numpy(), gradient.numpy().flatten().copy())
            for shard, gradient in zip(shards, (parameter.grad for parameter in parameters), strict=True)
            if gradient is not None
        ]

    return Layout(parameters, pieces, names)


def flatten(shards: Sequence[ParameterShard], rank: int, size: int) -> list[ParameterShard]:
    total = sum(shard.positions.numel() for shard in shards)
    length = -(-total // size)
    begin, end = rank * length, min((rank + 1) * length, total)
    ranges, start = [], 0
    for shard in shards:
        stop = start + shard.positions.numel()
        first, last = max(begin, start), min(end, stop)
        if first < last:
            flat_shard = shard._replace(positions=shard.positions.flatten(), gradient=shard.gradient.flatten())
            ranges.append(flat_shard.of(slice(first - start, last - start)))
        start = stop
    return ranges


def half_of(rank: int, length: int) -> slice:
    return slice(rank * length // 2, (rank + 1) * length // 2)


def dense(tensor_rank: int) -> list[ParameterShard]:
    """Return a column-parallel and a row-parallel layer, and parameters that tensor-parallel ranks have copies of."""
    index = half_of(tensor_rank, HIDDEN)
    return [
        shard_of("up.weight", (HIDDEN, WIDTH), index, tensor_model_parallel=True),
        shard_of("up.bias", (HIDDEN,), index, tensor_model_parallel=True),
        shard_of("down.weight", (WIDTH, HIDDEN), (slice(None), index), tensor_model_parallel=True),
        shard_of("down.bias", (WIDTH,), tensor_model_parallel=False),
        shard_of("norm.weight", (WIDTH,)),
    ]


def experts(expert_rank: int) -> list[ParameterShard]:
    return [shard_of("experts.weight", (4, WIDTH, 3), half_of(expert_rank, 4), allreduce=False)]


def megatron() -> Layout:
    """Two pipeline stages of two tensor-parallel ranks. The last stage has a copy of the embedding."""
    mesh = mesh_of("pp", "tp")
    stage, rank = mesh.get_coordinate() or (0, 0)
    index = half_of(rank, WORDS)
    embedding = {"tensor_model_parallel": True, "shared": stage == 1}
    layers = [shard._replace(name=f"{stage}.{shard.name}", gradient=shard.gradient + stage) for shard in dense(rank)]
    shards = [*layers, shard_of("embedding", (WORDS, WIDTH), index, **embedding)]
    return layout_of_shards(shards, model_group=dist.group.WORLD, tensor_rank=rank)


def megatron_copies() -> Layout:
    """Two data-parallel copies of two tensor-parallel ranks. Experts have ranks of their own."""
    data_rank, tensor_rank = mesh_of("dp", "tp").get_coordinate() or (0, 0)
    shards = [*dense(tensor_rank), *experts(tensor_rank)]
    ranks = {"data_rank": data_rank, "tensor_rank": tensor_rank}
    return layout_of_shards(shards, **ranks, expert_tensor_rank=0, expert_data_rank=data_rank)


def distributed_optimizer() -> Layout:
    data_rank, tensor_rank = mesh_of("dp", "tp").get_coordinate() or (0, 0)
    return layout_of_shards(flatten(dense(tensor_rank), data_rank, 2), tensor_rank=tensor_rank)


def distributed_optimizer_of_experts() -> Layout:
    data_rank, tensor_rank = mesh_of("dp", "tp").get_coordinate() or (0, 0)
    shards = [*flatten(dense(tensor_rank), data_rank, 2), *flatten(experts(tensor_rank), data_rank, 2)]
    return layout_of_shards(shards, tensor_rank=tensor_rank, expert_tensor_rank=0)


@functools.cache
def data_parallel_group() -> Any:
    """Return the group of this rank. Each of two groups has a copy of the model."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return groups[dist.get_rank() // 2]


def zero() -> Layout:
    """Return the layout of DeepSpeed ZeRO 2 and 3: each rank has an equal part of a buffer of all gradients, padded
    with zeros."""
    group = data_parallel_group()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    buffer = shard_of("all", (101,))
    length = -(-101 // size)
    shard = buffer.of(slice(rank * length, (rank + 1) * length))
    padded = torch.zeros(length)
    padded[: shard.positions.numel()] = shard.gradient
    parameter = parameter_with(padded)

    def pieces(are_summed: bool) -> list[Piece]:
        assert parameter.grad is not None
        return [Piece("all", 101, shard.positions.numpy(), parameter.grad[: shard.positions.numel()].numpy().copy())]

    return Layout([parameter], pieces, {"data_parallel_group": group}, has_padding=True)
