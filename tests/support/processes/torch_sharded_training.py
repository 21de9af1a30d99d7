"""A small model that is trained on one process, or sharded over several, on the same batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from support.processes import torch_sharded
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

import unified_clip
import unified_clip.torch as uc
from unified_clip import ClipConfig, ClipWarning

STEPS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 1))


def fsdp2() -> nn.Module:
    net: Any = model()
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train on the same batch on every process, so that a mean over 2 or 4 is exact."""
    for step in range(STEPS):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def train_sharded(kind: str, config: ClipConfig) -> tuple[Any, list[np.ndarray]]:
    net = model()
    options: dict[str, Any] = {"check_numel": True}
    if kind == "FSDP2":
        net = fsdp2()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FSDP1 is deprecated
            net = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
        numel = sum(parameter.numel() for parameter in model().parameters())
        options = {"process_group": dist.group.WORLD, "ownership": "distinct", "check_numel": numel}
    optimizer = torch.optim.SGD(net.named_parameters(), lr=0.5)
    handle = config.attach_to(optimizer, **options)
    train(net, optimizer)
    if kind == "FSDP2":
        weights = [p.full_tensor() if isinstance(p, DTensor) else p for p in net.parameters()]
    else:
        with FullyShardedDataParallel.summon_full_params(net):
            weights = [p.clone() for p in net.parameters()]
    return handle.last.norm, [weight.detach().numpy().copy() for weight in weights]


def train_and_resume(config: ClipConfig, directory: str, steps: range) -> tuple[Any, list[list[float]]]:
    """Train with FSDP2. Return the state of the clip, and the weights.

    Steps from 0 save a checkpoint. Later steps resume from it, on any number of processes.
    """
    net = fsdp2()
    optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
    handle = config.attach_to(optimizer)
    if steps.start:
        weights, state = get_state_dict(net, optimizer)
        checkpoint.load({"weights": weights, "state": state, "clip": handle}, checkpoint_id=directory)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClipWarning)  # the state of the clip is not in that of the optimizer
            set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=state)
    for step in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        ((30 if step % 3 == 2 else 1) * net(x).square().mean()).backward()
        optimizer.step()
    if not steps.start:
        weights, state = get_state_dict(net, optimizer)
        checkpoint.save({"weights": weights, "state": state, "clip": handle}, checkpoint_id=directory)
    return handle.state_dict(), [weight.full_tensor().flatten().tolist() for weight in net.parameters()]


THRESHOLD = 1e-3


def clip_fsdp1(use_orig_params: bool, clip: Callable[[list[nn.Parameter]], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated
        net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
    net(torch.ones(8, 6)).square().mean().backward()
    return clip(list(net.parameters()))


def clip_in_place(params: list[nn.Parameter]) -> float:
    norm: float = unified_clip.clip_grad_norm_(params, THRESHOLD).item()
    return norm


def clip_param_grads(params: list[nn.Parameter]) -> float:
    results = uc.GradientClipByGlobalNorm(THRESHOLD)([(parameter, parameter.grad) for parameter in params])
    return uc.global_norm([gradient for _, gradient in results]).item()


def clip_by_own_norms(params: list[nn.Parameter]) -> float:
    uc.GradientClipByNorm(THRESHOLD).clip_(params)
    return 1.0


def clip_in_two_steps(params: list[nn.Parameter]) -> tuple[float, float]:
    """Return the norm before and after. Only the function that measures gets `ownership`."""

    def measure() -> Any:
        gradients = [parameter.grad for parameter in params]
        return uc.get_total_norm(gradients, process_group=dist.group.WORLD, ownership="distinct")

    before = measure()
    uc.clip_grads_with_norm_(params, THRESHOLD, before)
    return before.item(), measure().item()


def clip_by_value(params: list[nn.Parameter]) -> float:
    uc.clip_grad_value_(params, THRESHOLD)
    uc.GradientClipByValue(THRESHOLD).clip_(params)
    return max(
        (
            float(parameter.grad.abs().max())
            for parameter in params
            if parameter.grad is not None and parameter.grad.numel()
        ),
        default=0,
    )


def train_and_record(config: ClipConfig, directory: str, norms: bool, only: int | None = None) -> None:
    net = fsdp2()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    config.attach_to(optimizer)
    rank = dist.get_rank()
    path = Path(directory) / f"rank{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    recording = unified_clip.record(path, norms=norms, names=net) if only in (None, rank) else nullcontext()
    with recording:
        train(net, optimizer)


def record_pytorchs_clip(directory: str, norms: bool, only: int | None = None) -> list[float]:
    """Train with PyTorch's own clip under FSDP2. All processes record, or one, or none (-1). Return the weights."""
    net = fsdp2()
    optimizer, rank = torch.optim.SGD(net.parameters(), lr=0.5), dist.get_rank()
    path = Path(directory) / f"rank{rank}.jsonl"
    with unified_clip.record(path, norms=norms) if only in (None, rank) else nullcontext():
        for step in range(STEPS):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad(set_to_none=False)
            net(x).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            assert norm.full_tensor().item() > 0
            optimizer.step()
    return [number for weight in net.parameters() for number in weight.full_tensor().flatten().tolist()]


def record_shards(directory: str) -> float:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([3.0 + dist.get_rank()])
    with unified_clip.record(Path(directory) / f"rank{dist.get_rank()}.jsonl", norms=True):
        norm = unified_clip.clip_grad_norm_([weight], 1.0, process_group=dist.group.WORLD, ownership="distinct")
    return float(norm)


def record_beside_plain(directory: str) -> float:
    sharded_params = torch_sharded.parameters([np.full((2, 2), 2, np.float32)] * 2, "FSDP")
    named_params = dict(zip("ab", sharded_params, strict=True))
    if dist.get_rank() == 0:
        named_params["c"] = nn.Parameter(torch.zeros(1))
        named_params["c"].grad = torch.tensor([2.0])
    group = {"name": "a", "include": ["a"], "threshold": 2.0}
    config = ClipConfig(rule="global_norm", threshold=1.0, groups=[group])
    with unified_clip.record(Path(directory) / f"rank{dist.get_rank()}.jsonl", norms=True):
        return float(config.clipper(ownership="distinct").clip_(named_params))
