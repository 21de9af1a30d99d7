"""What processes of a `World` run: gradients of every kind beside DTensors, and what else PyTorch does with these."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_sharded import distributed, mesh_of
from torch import Tensor, nn
from torch.distributed import _functional_collectives as asynchronous
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import unified_clip.torch as uc
from unified_clip import ClipConfig

Found = tuple[float, list[Any]]
"""A norm, and the gradients afterwards, gathered."""


def cut(*values: float) -> DTensor:
    return distributed(np.array(values, np.float32), mesh_of("row"), [Shard(0)])


def whole(tensor: Tensor) -> DTensor:
    return distribute_tensor(tensor, mesh_of("row"), [Replicate()], src_data_rank=None)


def holding(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient) if gradient.layout == torch.strided else torch.zeros(4, 1))
    parameter.grad = gradient
    return parameter


def clipped(*holders: nn.Parameter, **stated: Any) -> Found:
    norm = uc.clip_grad_norm_(list(holders), 1.0, **stated)
    return norm.item(), gathered(holders)


def gathered(holders: Sequence[nn.Parameter]) -> list[Any]:
    gradients: list[Any] = [each.grad for each in holders]
    dense = [each.full_tensor() if isinstance(each, DTensor) else each.to_dense() for each in gradients]
    return [each.tolist() for each in dense]


def twice() -> Found:
    holder = holding(cut(3.0, 4.0))
    return clipped(holder, holder, check_numel=True)


def tied() -> Found:
    gradient = cut(3.0, 4.0)
    return clipped(holding(gradient), holding(gradient), check_numel=True)


def tied_by_memory() -> Found:
    gradient = cut(3.0, 4.0)
    mesh, placements = gradient.device_mesh, gradient.placements
    return clipped(
        holding(gradient), holding(DTensor.from_local(gradient.to_local(), mesh, placements)), check_numel=True
    )


def left_out() -> Found:
    other = holding(cut(100.0))
    other.need_clip = False
    return clipped(holding(cut(3.0, 4.0)), other, check_numel=True)


def sparse() -> Found:
    rows = torch.sparse_coo_tensor([[1, 1]], [[6.0], [6.0]], (4, 1), check_invariants=True)
    return clipped(holding(cut(3.0, 4.0)), holding(rows), check_numel=True)


def complex_numbers() -> Found:
    numbers = torch.tensor([3 + 4j, 0.0, 12.0])
    return clipped(holding(distribute_tensor(numbers, mesh_of("row"), [Shard(0)], src_data_rank=None)))


def without_dimensions() -> Found:
    return clipped(holding(whole(torch.tensor(3.0))), holding(cut(4.0)))


def narrower() -> Found:
    gradient: Any = cut(12.0, 0.0).to(torch.bfloat16)
    return clipped(holding(cut(3.0, 4.0)), holding(gradient))


def under_way() -> Found:
    """What is still being communicated."""
    sums = asynchronous.all_reduce(
        torch.tensor([3.0, 4.0]), "avg" if dist.get_world_size() == 1 else "sum", dist.group.WORLD
    )
    return clipped(holding(DTensor.from_local(sums / dist.get_world_size(), mesh_of("row"), [Replicate()])))


def from_an_iterator() -> Found:
    holder = holding(cut(3.0, 4.0))
    return uc.clip_grad_norm_((pair for pair in [("weight", holder)]), 1.0).item(), gathered([holder])


def by_pairs(clip: Callable[[Any], Any]) -> list[Any]:
    """A process has none of the distributed gradients, and tells by its parameters that there are some."""
    weight, bias = holding(cut(3.0, 4.0)), holding(torch.tensor([12.0]))
    pairs = [(weight, None if dist.get_rank() == 1 else weight.grad), (bias, bias.grad)]
    results = [gradient for _, gradient in clip(pairs)]
    return [
        None if each is None else (each.to_local() if isinstance(each, DTensor) else each).tolist() for each in results
    ]


def by_pairs_of_a_class() -> list[Any]:
    return by_pairs(uc.GradientClipByGlobalNorm(1.0))


def by_pairs_of_a_configuration() -> list[Any]:
    return by_pairs(ClipConfig(rule="global_norm", threshold=1.0, family="paddle").clipper().pairs)


def by_norms_of_pairs() -> list[Any]:
    return by_pairs(uc.GradientClipByNorm(1.0))


def by_a_configuration() -> Found:
    """One of the gradients is missing on a process that has nothing of it but zeros."""
    given = [cut(3.0, 4.0), cut(12.0, 0.0)]
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="pytorch").clipper()
    results = clip([given[0], None if dist.get_rank() == 1 else given[1]])
    return clip.last.norm, [results[0].full_tensor().tolist()]


def in_inference_mode() -> Found:
    with torch.inference_mode():
        return clipped(holding(cut(3.0, 4.0)))


def by_a_threshold_of_one(threshold: Callable[[Tensor], Tensor]) -> Found:
    holder = holding(cut(3.0, 4.0))
    return uc.clip_grad_norm_([holder], threshold(torch.tensor(1.0))).item(), gathered([holder])


def by_a_tensor() -> Found:
    return by_a_threshold_of_one(Tensor.clone)


def by_a_dtensor() -> Found:
    return by_a_threshold_of_one(whole)


def measured_by_torch(p: float) -> Found:
    holders = [holding(cut(3.0, 4.0)), holding(cut(12.0, 0.0))]
    norm = nn.utils.get_total_norm([each.grad for each in holders], p)
    placement = Partial("max") if p == math.inf else Replicate()
    assert norm.placements == (placement,), "some processes have less"
    uc.clip_grads_with_norm_(holders, 1.0, norm)
    results, given = uc.clip_by_global_norm([cut(3.0, 4.0)], 1.0, use_norm=norm)
    assert given.item() == norm.full_tensor().item()
    assert results[0].placements == (Shard(0),)
    return norm.full_tensor().item(), gathered(holders)


# -- what is saved, traced, and derived


def saved(read: Callable[[DTensor], Tensor]) -> str:
    """What PyTorch says where a gradient that it keeps for a backward pass has been clipped."""
    gradient = cut(3.0, 4.0)
    weight = torch.ones_like(read(gradient)).requires_grad_()
    product = (weight * read(gradient)).sum()
    uc.clip_grad_norm_([holding(gradient)], 1.0)
    try:
        product.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def saved_whole() -> str:
    return saved(lambda gradient: gradient)


def saved_part() -> str:
    return saved(lambda gradient: gradient.to_local())


def compiled() -> tuple[Found, Found]:
    def clip(holders: list[nn.Parameter]) -> Tensor:
        return uc.clip_grad_norm_(holders, 1.0) * 2

    holders = [holding(cut(3.0, 4.0)), holding(cut(3.0, 4.0))]
    found = [(torch.compile(clip, backend="eager") if at else clip)([each]).item() for at, each in enumerate(holders)]
    first, second = ((norm, gathered([each])) for norm, each in zip(found, holders, strict=True))
    return first, second


def derived() -> tuple[Tensor, list[float]]:
    gradient = cut(3.0, 4.0).requires_grad_()
    results, norm = uc.clip_by_global_norm([gradient], 1.0)
    results[0].sum().backward()
    return norm.detach(), gradient.grad.full_tensor().tolist()


def derived_norm(p: float, *values: float) -> tuple[Tensor, list[float]]:
    gradient = cut(*values).requires_grad_()
    norm = uc.get_total_norm([gradient], p)
    norm.backward()
    return norm.detach(), gradient.grad.full_tensor().tolist()


def bounds() -> str:
    """What is said of bounds for the elements that this process happens to have as many of."""
    size = dist.get_world_size()
    low, high = torch.full((2,), -1.0), torch.full((2,), 1.0)
    assert uc.clip_by_value(cut(*[5.0] * 2 * size), low[:1], high[:1]).full_tensor().tolist() == [1.0] * 2 * size
    try:
        uc.clip_by_value(cut(*[5.0] * 2 * size), low, high)
    except ValueError as error:
        return str(error)
    return ""
