"""Functions that processes of a `World` run: FSDP1 models in which the ranks have copies of some parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.processes.torch_sharded_layouts import wrap
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

import unified_clip.torch as uc
from unified_clip.errors import ClipWarning
from unified_clip.ownership import fsdp1_ownership

NO_SHARD = ShardingStrategy.NO_SHARD
LAYERS = [(6, 5), (5, 7), (7, 3)]
NUMEL = sum(rows * columns + columns for rows, columns in LAYERS)


def layers() -> list[nn.Module]:
    torch.manual_seed(11)
    return [nn.Linear(*shape) for shape in LAYERS]


def ignored(use_orig_params: bool) -> FullyShardedDataParallel:
    first, second, third = layers()
    return wrap(nn.Sequential(first, second, third), ignored_modules=[second], use_orig_params=use_orig_params)


def nested(use_orig_params: bool) -> FullyShardedDataParallel:
    first, second, third = layers()
    copied = wrap(second, sharding_strategy=NO_SHARD, use_orig_params=use_orig_params)
    shards = wrap(third, use_orig_params=use_orig_params)
    return wrap(nn.Sequential(first, copied, shards), use_orig_params=use_orig_params)


def copied(use_orig_params: bool) -> FullyShardedDataParallel:
    return wrap(nn.Sequential(*layers()), sharding_strategy=NO_SHARD, use_orig_params=use_orig_params)


def sharded(use_orig_params: bool) -> FullyShardedDataParallel:
    return wrap(nn.Sequential(*layers()), use_orig_params=use_orig_params)


def outside(use_orig_params: bool) -> nn.Module:
    first, second, third = layers()
    options: dict[str, Any] = {"use_orig_params": use_orig_params}
    return nn.Sequential(wrap(first, **options), second, wrap(third, **options))


def train(model: nn.Module) -> float:
    """Give a model gradients of the same data on all ranks, and return the norm that one process has."""
    on_one_process = nn.Sequential(*layers())
    for module in (model, on_one_process):
        module(torch.arange(24.0).reshape(4, 6) / 9).square().sum().backward()
    gradients = [parameter.grad for parameter in on_one_process.parameters() if parameter.grad is not None]
    return uc.get_total_norm(gradients).item()


def norms(make: Callable[[bool], nn.Module], use_orig_params: bool) -> tuple[float, float, float]:
    """Return three norms: on one process, by `fsdp1_ownership`, and by "distinct"."""
    model = make(use_orig_params)
    expected = train(model)
    options: dict[str, Any] = {"process_group": dist.group.WORLD, "check_numel": NUMEL if use_orig_params else None}
    norm = uc.clip_grad_norm_(model.parameters(), 1e9, **options, ownership=fsdp1_ownership(model)).item()
    options["check_numel"] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClipWarning)  # the sums of the ranks are equal if all gradients are copies
        distinct = uc.clip_grad_norm_(model.parameters(), 1e9, **options, ownership="distinct").item()
    return expected, norm, distinct


def clip_gradients_by_ownership() -> None:
    model = sharded(True)
    train(model)
    gradients = [parameter.grad for parameter in model.parameters()]
    uc.get_total_norm(gradients, process_group=dist.group.WORLD, ownership=fsdp1_ownership(model))


def own_modules_on_other_ranks() -> None:
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    first, second, third = layers()
    fsdp1_ownership(wrap(nn.Sequential(first, wrap(second, process_group=alone[dist.get_rank()]), third)))
