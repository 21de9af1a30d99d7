"""Functions that processes of a `World` run: kinds of gradients beside DTensors, and their derivatives and graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_sharded import distributed, mesh_of
from support.processes.worlds import error_message
from torch import Tensor, nn
from torch.distributed import _functional_collectives as asynchronous
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import unified_clip.torch as uc
from unified_clip import ClipConfig

Clipped = tuple[float, list[Any]]


def sharded(*values: float) -> DTensor:
    return distributed(np.array(values, np.float32), mesh_of("row"), [Shard(0)])


def replicated(tensor: Tensor) -> DTensor:
    return distribute_tensor(tensor, mesh_of("row"), [Replicate()], src_data_rank=None)


def parameter_with(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient) if gradient.layout == torch.strided else torch.zeros(4, 1))
    parameter.grad = gradient
    return parameter


def clip_gradients(*params: nn.Parameter, **options: Any) -> Clipped:
    norm = uc.clip_grad_norm_(list(params), 1.0, **options)
    return norm.item(), gathered(params)


def gathered(params: Sequence[nn.Parameter]) -> list[Any]:
    gradients: list[Any] = [gradient.grad for gradient in params]
    dense = [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.to_dense() for gradient in gradients]
    return [gradient.tolist() for gradient in dense]


def twice() -> Clipped:
    parameter = parameter_with(sharded(3.0, 4.0))
    return clip_gradients(parameter, parameter, check_numel=True)


def tied() -> Clipped:
    gradient = sharded(3.0, 4.0)
    return clip_gradients(parameter_with(gradient), parameter_with(gradient), check_numel=True)


def tied_by_memory() -> Clipped:
    gradient = sharded(3.0, 4.0)
    mesh, placements = gradient.device_mesh, gradient.placements
    return clip_gradients(
        parameter_with(gradient),
        parameter_with(DTensor.from_local(gradient.to_local(), mesh, placements)),
        check_numel=True,
    )


def left_out() -> Clipped:
    excluded = parameter_with(sharded(100.0))
    excluded.need_clip = False
    return clip_gradients(parameter_with(sharded(3.0, 4.0)), excluded, check_numel=True)


def sparse() -> Clipped:
    rows = torch.sparse_coo_tensor([[1, 1]], [[6.0], [6.0]], (4, 1), check_invariants=True)
    return clip_gradients(parameter_with(sharded(3.0, 4.0)), parameter_with(rows), check_numel=True)


def complex_numbers() -> Clipped:
    numbers = torch.tensor([3 + 4j, 0.0, 12.0])
    return clip_gradients(parameter_with(distribute_tensor(numbers, mesh_of("row"), [Shard(0)], src_data_rank=None)))


def without_dimensions() -> Clipped:
    return clip_gradients(parameter_with(replicated(torch.tensor(3.0))), parameter_with(sharded(4.0)))


def narrower() -> Clipped:
    gradient: Any = sharded(12.0, 0.0).to(torch.bfloat16)
    return clip_gradients(parameter_with(sharded(3.0, 4.0)), parameter_with(gradient))


def under_way() -> Clipped:
    """Clip a gradient whose all-reduce has not finished."""
    sums = asynchronous.all_reduce(
        torch.tensor([3.0, 4.0]), "avg" if dist.get_world_size() == 1 else "sum", dist.group.WORLD
    )
    return clip_gradients(
        parameter_with(DTensor.from_local(sums / dist.get_world_size(), mesh_of("row"), [Replicate()]))
    )


def from_an_iterator() -> Clipped:
    parameter = parameter_with(sharded(3.0, 4.0))
    return uc.clip_grad_norm_((named for named in [("weight", parameter)]), 1.0).item(), gathered([parameter])


def clip_param_grads(clip: Callable[[Any], Any]) -> list[Any]:
    """Clip (parameter, gradient) tuples. The second process has no gradient for the distributed parameter."""
    weight, bias = parameter_with(sharded(3.0, 4.0)), parameter_with(torch.tensor([12.0]))
    param_grads = [(weight, None if dist.get_rank() == 1 else weight.grad), (bias, bias.grad)]
    results = [gradient for _, gradient in clip(param_grads)]
    return [
        None if gradient is None else (gradient.to_local() if isinstance(gradient, DTensor) else gradient).tolist()
        for gradient in results
    ]


def param_grads_of_a_class() -> list[Any]:
    return clip_param_grads(uc.GradientClipByGlobalNorm(1.0))


def param_grads_of_a_configuration() -> list[Any]:
    return clip_param_grads(ClipConfig(rule="global_norm", threshold=1.0, family="paddle").clipper().pairs)


def param_grads_by_own_norms() -> list[Any]:
    return clip_param_grads(uc.GradientClipByNorm(1.0))


def by_a_configuration() -> Clipped:
    """Clip by a configuration. A gradient is missing on the process whose shard is zero."""
    gradients = [sharded(3.0, 4.0), sharded(12.0, 0.0)]
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="pytorch").clipper()
    results = clip([gradients[0], None if dist.get_rank() == 1 else gradients[1]])
    return clip.last.norm, [results[0].full_tensor().tolist()]


def in_inference_mode() -> Clipped:
    with torch.inference_mode():
        return clip_gradients(parameter_with(sharded(3.0, 4.0)))


def by_a_threshold_of_one(threshold: Callable[[Tensor], Tensor]) -> Clipped:
    parameter = parameter_with(sharded(3.0, 4.0))
    return uc.clip_grad_norm_([parameter], threshold(torch.tensor(1.0))).item(), gathered([parameter])


def by_a_tensor() -> Clipped:
    return by_a_threshold_of_one(Tensor.clone)


def by_a_dtensor() -> Clipped:
    return by_a_threshold_of_one(replicated)


def clip_by_torch_norm(p: float) -> Clipped:
    params = [parameter_with(sharded(3.0, 4.0)), parameter_with(sharded(12.0, 0.0))]
    norm = nn.utils.get_total_norm([parameter.grad for parameter in params], p)
    assert p != math.inf or norm.placements[0].is_partial(), "some processes have less"
    uc.clip_grads_with_norm_(params, 1.0, norm)
    results, passed = uc.clip_by_global_norm([sharded(3.0, 4.0)], 1.0, use_norm=norm)
    assert passed.item() == norm.full_tensor().item()
    assert results[0].placements == (Shard(0),)
    return norm.full_tensor().item(), gathered(params)


# -- what is saved, traced, and derived


def clip_saved(read: Callable[[DTensor], Tensor]) -> str:
    """Return PyTorch's error for a backward pass after a saved gradient was clipped in place."""
    gradient = sharded(3.0, 4.0)
    weight = torch.ones_like(read(gradient)).requires_grad_()
    product = (weight * read(gradient)).sum()
    uc.clip_grad_norm_([parameter_with(gradient)], 1.0)
    return error_message(product.backward)


def clip_saved_gradient() -> str:
    return clip_saved(lambda gradient: gradient)


def clip_saved_local_tensor() -> str:
    return clip_saved(lambda gradient: gradient.to_local())


def clip_compiled() -> tuple[Clipped, Clipped]:
    def clip(params: list[nn.Parameter]) -> Tensor:
        return uc.clip_grad_norm_(params, 1.0) * 2

    params = [parameter_with(sharded(3.0, 4.0)), parameter_with(sharded(3.0, 4.0))]
    norms = [
        (torch.compile(clip, backend="eager") if number else clip)([parameter]).item()
        for number, parameter in enumerate(params)
    ]
    first, second = ((norm, gathered([parameter])) for norm, parameter in zip(norms, params, strict=True))
    return first, second


def differentiate_clip() -> tuple[Tensor, list[float]]:
    gradient = sharded(3.0, 4.0).requires_grad_()
    results, norm = uc.clip_by_global_norm([gradient], 1.0)
    results[0].sum().backward()
    return norm.detach(), gradient.grad.full_tensor().tolist()


def differentiate_norm(p: float, *values: float) -> tuple[Tensor, list[float]]:
    gradient = sharded(*values).requires_grad_()
    norm = uc.get_total_norm([gradient], p)
    norm.backward()
    return norm.detach(), gradient.grad.full_tensor().tolist()


def clip_by_tensor_bounds() -> str:
    size = dist.get_world_size()
    low, high = torch.full((2,), -1.0), torch.full((2,), 1.0)
    assert uc.clip_by_value(sharded(*[5.0] * 2 * size), low[:1], high[:1]).full_tensor().tolist() == [1.0] * 2 * size
    return error_message(lambda: uc.clip_by_value(sharded(*[5.0] * 2 * size), low, high))
