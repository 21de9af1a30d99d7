"""Functions that processes of a `World` run: clips of small sharded models after a backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_sharded import mesh_of, record_collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import unified_clip.torch as uc
from unified_clip.ownership import mesh_ownership

WORDS, WIDTH, HIDDEN, EXPERTS = 19, 8, 12, 4


class Block(nn.Module):
    """A block of a transformer. A process can have some of the heads, and some of the hidden units."""

    def __init__(self, experts: int = 0) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.experts = Experts(experts) if experts else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        query, key, value = (
            projection(y).unflatten(-1, (-1, WIDTH // 2)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attention = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        x = x + self.down(torch.relu(self.up(self.between(x))))
        return x if self.experts is None else x + self.experts(x)


class Experts(nn.Module):
    """Experts. Each process of a mesh has some of the experts, and applies them to all tokens."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mesh = self.weight.device_mesh
        everywhere = DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        own = torch.einsum("btw,ewv->btv", everywhere, self.weight.to_local())
        return DTensor.from_local(own, mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local().clone()


class Head(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clone()  # FSDP2 warns of results that are views


class Transformer(nn.Module):
    def __init__(self, experts: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(experts) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), Head(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TrainedModel(NamedTuple):
    """A model after a backward pass, or the pipeline stages of a model on this process."""

    parameters: dict[str, nn.Parameter]
    options: dict[str, Any]


def tokens_of(data_rank: int) -> Tensor:
    return torch.randint(WORDS, (2, 5), generator=torch.Generator().manual_seed(data_rank))


def loss_of(output: Tensor, tokens: Tensor) -> Tensor:
    return 50 * nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())


def train(model: nn.Module, data_rank: int, **options: Any) -> TrainedModel:
    tokens = tokens_of(data_rank)
    loss_of(model(tokens), tokens).backward()
    return TrainedModel(dict(model.named_parameters()), options)


def shard(model: Transformer, mesh: DeviceMesh, **options: Any) -> Transformer:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def shard_heads(model: Transformer, mesh: DeviceMesh) -> None:
    columns, rows = ("query", "key", "value", "up"), ("out", "down")
    for block in model.blocks:
        parallelize_module(
            block, mesh, {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}}
        )


def data_parallel(dtype: torch.dtype) -> TrainedModel:
    model = nn.parallel.DistributedDataParallel(Transformer().to(dtype))
    return train(model, dist.get_rank())


def fsdp(dtype: torch.dtype) -> TrainedModel:
    return train(shard(Transformer().to(dtype), mesh_of("row")), dist.get_rank(), check_numel=True)


def tied_weights(dtype: torch.dtype) -> TrainedModel:
    model = Transformer().to(dtype)
    model.head.weight = model.embedding.weight
    return train(shard(model, mesh_of("row")), dist.get_rank(), check_numel=True)


def offloaded(dtype: torch.dtype) -> TrainedModel:
    """Offload to the CPU, with mixed precision. The first of two backward passes does not reduce its gradients."""
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=False), "mp_policy": MixedPrecisionPolicy(torch.bfloat16)}
    model: Any = shard(Transformer().to(dtype), mesh_of("row"), **options)
    model.set_requires_gradient_sync(False)
    train(model, dist.get_rank() + 10)
    model.set_requires_gradient_sync(True)
    return train(model, dist.get_rank(), check_numel=True)


def hsdp(dtype: torch.dtype) -> TrainedModel:
    return train(shard(Transformer().to(dtype), mesh_of("rows")), dist.get_rank(), check_numel=True)


def tensor_parallel(dtype: torch.dtype, experts: int = 0) -> TrainedModel:
    """Combine tensor parallelism and FSDP2. Layers outside the plan are on a submesh, so other ranks have copies."""
    mesh, model = mesh_of("rows"), Transformer(experts).to(dtype)
    shard_heads(model, mesh["tp"])
    if experts:
        expert_mesh = init_device_mesh("cpu", tuple(mesh.shape), mesh_dim_names=("experts' data", "experts"))
        for block in model.blocks:
            block.experts.weight = nn.Parameter(
                distribute_tensor(block.experts.weight.detach(), expert_mesh["experts"], [Shard(0)])
            )
            fully_shard(block.experts, mesh=expert_mesh["experts' data"])
    shard(model, mesh["dp"])
    return train(model, mesh.get_local_rank("dp"), ownership=mesh_ownership(mesh), check_numel=True)


def expert_parallel(dtype: torch.dtype) -> TrainedModel:
    return tensor_parallel(dtype, EXPERTS)


def pipeline(dtype: torch.dtype) -> TrainedModel:
    """Train two stages on two rows of a mesh. A single process trains one stage after the other."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (min(size, 2), max(size // 2, 1)), mesh_dim_names=("pp", "dp"))
    model = Transformer().to(dtype)
    numel = sum(parameter.numel() for parameter in model.parameters())
    stages = [nn.Sequential(model.embedding, model.blocks[0]), nn.Sequential(model.blocks[1], model.norm, model.head)]
    for stage in stages:
        fully_shard(stage, mesh=mesh["dp"])
    tokens = tokens_of(mesh.get_local_rank("dp"))
    if size == 1:
        loss_of(stages[1](stages[0](tokens)), tokens).backward()
        own_stages = {0: stages[0], 1: stages[1]}
    elif mesh.get_local_rank("pp") == 0:
        after = dist.get_rank() + size // 2
        sent = stages[0](tokens)
        dist.send(sent.detach(), after)
        gradient = torch.empty_like(sent)
        dist.recv(gradient, after)
        sent.backward(gradient)
        own_stages = {0: stages[0]}
    else:
        before = dist.get_rank() - size // 2
        received = torch.empty(*tokens.shape, WIDTH, dtype=dtype)
        dist.recv(received, before)
        loss_of(stages[1](received.requires_grad_()), tokens).backward()
        assert received.grad is not None
        dist.send(received.grad, before)
        own_stages = {1: stages[1]}
    named = {
        f"{number}.{name}": stage_parameter
        for number, stage in own_stages.items()
        for name, stage_parameter in stage.named_parameters()
    }
    return TrainedModel(named, {"ownership": mesh_ownership(mesh, distinct=("pp",)), "check_numel": numel})


class Copied(nn.Linear):
    """A layer that every process has completely. Each has a part of the data, so its gradients are partial sums."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (projection.to_local(grad_placements=[Partial()]) for projection in (self.weight, self.bias))
        return nn.functional.linear(x, weight, bias)


def sums(dtype: torch.dtype) -> TrainedModel:
    """Combine partial gradients and plain parameters whose gradients are equal on all processes."""
    inner, outer = distribute_module(Copied(WIDTH, HIDDEN).to(dtype), mesh_of("row")), nn.Linear(WIDTH, 1).to(dtype)
    local, full = (torch.randn(3, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(seed))
                      for seed in (dist.get_rank(), 9))  # fmt: skip
    (50 * (inner(local).square().sum() + outer(full).square().sum())).backward()
    parameters = {**dict(inner.named_parameters()), **{f"outer {name}": x for name, x in outer.named_parameters()}}
    return TrainedModel(parameters, {"check_numel": True})


MODELS: dict[str, Callable[[torch.dtype], TrainedModel]] = {
    "DDP": data_parallel,
    "FSDP2": fsdp,
    "FSDP2, tied weights": tied_weights,
    "FSDP2, offloaded": offloaded,
    "HSDP": hsdp,
    "FSDP2 and tensor parallel": tensor_parallel,
    "FSDP2, tensor and expert parallel": expert_parallel,
    "a pipeline of FSDP2": pipeline,
    "terms of sums, and plain": sums,
}


@functools.cache
def trained_model(kind: str, dtype: str) -> tuple[TrainedModel, dict[str, Any]]:
    torch.manual_seed(5)
    model = MODELS[kind](getattr(torch, dtype))
    return model, {name: copy_of(gradient) for name, gradient in gradients(model).items()}


def restored_model(kind: str, dtype: str) -> TrainedModel:
    model, saved = trained_model(kind, dtype)
    for name, parameter in model.parameters.items():
        parameter.grad = copy_of(saved[name])
    return model


def gradients(model: TrainedModel) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.parameters.items()}


def copy_of(tensor: Any) -> Any:
    """Copy a tensor with its placements. PyTorch's `clone` would reduce partial sums."""
    if not isinstance(tensor, DTensor):
        return tensor.clone()
    local, mesh, placements = tensor.to_local().clone(), tensor.device_mesh, tensor.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())


def is_sum(tensor: Any) -> bool:
    return isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements)


def gathered(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: as_array(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)
        for name, tensor in tensors.items()
    }


def gather_local(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Gather tensors. For partial sums, return the local tensor instead."""
    partial_sums = {
        f"{name} on rank {dist.get_rank()}": tensor.to_local() for name, tensor in tensors.items() if is_sum(tensor)
    }
    return gathered({**{name: tensor for name, tensor in tensors.items() if not is_sum(tensor)}, **partial_sums})


def as_array(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to NumPy. bfloat16, which NumPy lacks, is copied by its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


class Clipped(NamedTuple):
    before: dict[str, np.ndarray]
    local_values: dict[str, np.ndarray]
    """The same as `before`, but for partial sums the local tensor of each process, which the clip changes."""

    after: dict[str, np.ndarray]
    norm: Any
    """The norm that the call returned: its value and the kind of tensor, or None."""

    calls: list[str]
    pytorch_count: int | None
    """The number of collectives by PyTorch's counter, which includes collectives inside PyTorch's operations. None
    means not counted."""


def clip_model(kind: str, dtype: str, call: str, arguments: Sequence[Any] = (), count_pytorch: bool = False) -> Clipped:
    model = restored_model(kind, dtype)
    grads = gradients(model)
    before, local_values = gathered(grads), gather_local(grads)
    counter = CommDebugMode()
    with record_collectives() as calls, counter if count_pytorch else nullcontext():
        norm, results = CALLS[call](
            uc, list(model.parameters.values()), list(grads.values()), model.options, *arguments
        )
    after = grads if results is None else dict(zip(grads, results, strict=True))
    assert all(layout(after[name]) == layout(gradient) for name, gradient in grads.items())
    description = norm if norm is None else (norm.item(), f"{type(norm).__name__} {norm.dtype} {norm.dim()}")
    return Clipped(
        before,
        local_values,
        gather_local(after),
        description,
        calls,
        counter.get_total_counts() if count_pytorch else None,
    )


def layout(tensor: Any) -> tuple[Any, ...]:
    return (type(tensor), *(getattr(tensor, name, None) for name in ("shape", "dtype", "device_mesh", "placements")))


# -- calls: each gets a namespace, the parameters, the gradients, and the options of the model

THRESHOLD = 1.5
ClipCall = Callable[..., tuple[Any, list[Any] | None]]
"""A function that returns the norm and the new gradients. If it clips in place, the second value is None."""


def clip_in_place(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any], p: float = 2.0) -> Any:
    return namespace.clip_grad_norm_(params, THRESHOLD, p, **options), None


def clip_in_two_steps(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    norm = namespace.get_total_norm(grads, **options)
    namespace.clip_grads_with_norm_(params, THRESHOLD, norm)
    return norm, None


def clip_by_value(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    return namespace.clip_grad_value_(params, 0.5), None


def clip_by_norms(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    return None, [namespace.clip_by_norm(gradient, 0.5) for gradient in grads]


def clip_by_values(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    return None, [namespace.clip_by_value(gradient, -0.5, 0.25) for gradient in grads]


def clip_functionally(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    results, norm = namespace.clip_by_global_norm(grads, THRESHOLD)
    return norm, results


def global_norm(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    return namespace.global_norm(grads), None


def clip_named_gradients(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
    named_gradients = [(f"gradient {number}", gradient) for number, gradient in enumerate(grads)]
    return None, [gradient for _, gradient in namespace.GradientClipByGlobalNorm(THRESHOLD, **options)(named_gradients)]


def clip_by_class(name: str, *, in_place: bool) -> ClipCall:
    def clip(namespace: Any, params: list[Any], grads: list[Any], options: dict[str, Any]) -> Any:
        group_options = options if name == "GradientClipByGlobalNorm" else {}
        instance = getattr(namespace, name)(0.5, **group_options)
        if in_place:
            return instance.clip_(params), None
        return None, [gradient for _, gradient in instance(list(zip(params, grads, strict=True)))]

    return clip


CALLS: dict[str, ClipCall] = {
    "clip_grad_norm_": clip_in_place,
    "get_total_norm, clip_grads_with_norm_": clip_in_two_steps,
    "clip_grad_value_": clip_by_value,
    "clip_by_norm": clip_by_norms,
    "clip_by_value": clip_by_values,
    "clip_by_global_norm": clip_functionally,
    "global_norm": global_norm,
    "GradientClipByGlobalNorm of names": clip_named_gradients,
    **{
        f"{name}{'.clip_' * in_place}": clip_by_class(name, in_place=in_place)
        for name in ("GradientClipByNorm", "GradientClipByValue", "GradientClipByGlobalNorm")
        for in_place in (True, False)
    },
}
