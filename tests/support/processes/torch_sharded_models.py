"""What processes of a `World` run: small models after a backward pass, cut over the processes in several ways."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_sharded import counted, mesh_of
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
    """Of a transformer; every process may have some of its heads, and some of the hidden units."""

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
            each(y).unflatten(-1, (-1, WIDTH // 2)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        x = x + self.down(torch.relu(self.up(self.between(x))))
        return x if self.experts is None else x + self.experts(x)


class Experts(nn.Module):
    """Each process of a mesh has some of them, which it applies to all tokens."""

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


class Made(NamedTuple):
    """A model, or this process's stages of one, after a backward pass."""

    parameters: dict[str, nn.Parameter]
    stated: dict[str, Any]
    """What clipping has to be told."""


def tokens_of(part: int) -> Tensor:
    """The data of one of the processes that are trained in parallel."""
    return torch.randint(WORDS, (2, 5), generator=torch.Generator().manual_seed(part))


def loss_of(output: Tensor, tokens: Tensor) -> Tensor:
    return 50 * nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())


def trained(model: nn.Module, part: int, **stated: Any) -> Made:
    tokens = tokens_of(part)
    loss_of(model(tokens), tokens).backward()
    return Made(dict(model.named_parameters()), stated)


def sharded(model: Transformer, mesh: DeviceMesh, **options: Any) -> Transformer:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def cut_into_heads(model: Transformer, mesh: DeviceMesh) -> None:
    columns, rows = ("query", "key", "value", "up"), ("out", "down")
    for block in model.blocks:
        parallelize_module(
            block, mesh, {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}}
        )


def data_parallel(dtype: torch.dtype) -> Made:
    model = nn.parallel.DistributedDataParallel(Transformer().to(dtype))
    return trained(model, dist.get_rank())


def fsdp(dtype: torch.dtype) -> Made:
    return trained(sharded(Transformer().to(dtype), mesh_of("row")), dist.get_rank(), check_numel=True)


def of_one_weight(dtype: torch.dtype) -> Made:
    """For words that come in and that go out."""
    model = Transformer().to(dtype)
    model.head.weight = model.embedding.weight
    return trained(sharded(model, mesh_of("row")), dist.get_rank(), check_numel=True)


def offloaded(dtype: torch.dtype) -> Made:
    """With less precise arithmetic too, and after two backward passes, the first of which is not communicated."""
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=False), "mp_policy": MixedPrecisionPolicy(torch.bfloat16)}
    model: Any = sharded(Transformer().to(dtype), mesh_of("row"), **options)
    model.set_requires_gradient_sync(False)
    trained(model, dist.get_rank() + 10)
    model.set_requires_gradient_sync(True)
    return trained(model, dist.get_rank(), check_numel=True)


def hsdp(dtype: torch.dtype) -> Made:
    return trained(sharded(Transformer().to(dtype), mesh_of("rows")), dist.get_rank(), check_numel=True)


def tensor_parallel(dtype: torch.dtype, experts: int = 0) -> Made:
    """Layers outside the plan are on a mesh of some of the processes, the others of which have copies."""
    mesh, model = mesh_of("rows"), Transformer(experts).to(dtype)
    cut_into_heads(model, mesh["tp"])
    if experts:
        own = init_device_mesh("cpu", tuple(mesh.shape), mesh_dim_names=("experts' data", "experts"))
        for block in model.blocks:
            block.experts.weight = nn.Parameter(
                distribute_tensor(block.experts.weight.detach(), own["experts"], [Shard(0)])
            )
            fully_shard(block.experts, mesh=own["experts' data"])
    sharded(model, mesh["dp"])
    return trained(model, mesh.get_local_rank("dp"), ownership=mesh_ownership(mesh), check_numel=True)


def expert_parallel(dtype: torch.dtype) -> Made:
    return tensor_parallel(dtype, EXPERTS)


def pipeline(dtype: torch.dtype) -> Made:
    """Of two stages: the first two rows of a mesh, or one after the other where there is a single process."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (min(size, 2), max(size // 2, 1)), mesh_dim_names=("pp", "dp"))
    whole = Transformer().to(dtype)
    numel = sum(parameter.numel() for parameter in whole.parameters())
    stages = [nn.Sequential(whole.embedding, whole.blocks[0]), nn.Sequential(whole.blocks[1], whole.norm, whole.head)]
    for stage in stages:
        fully_shard(stage, mesh=mesh["dp"])
    tokens = tokens_of(mesh.get_local_rank("dp"))
    if size == 1:
        loss_of(stages[1](stages[0](tokens)), tokens).backward()
        mine = {0: stages[0], 1: stages[1]}
    elif mesh.get_local_rank("pp") == 0:
        after = dist.get_rank() + size // 2
        sent = stages[0](tokens)
        dist.send(sent.detach(), after)
        gradient = torch.empty_like(sent)
        dist.recv(gradient, after)
        sent.backward(gradient)
        mine = {0: stages[0]}
    else:
        before = dist.get_rank() - size // 2
        received = torch.empty(*tokens.shape, WIDTH, dtype=dtype)
        dist.recv(received, before)
        loss_of(stages[1](received.requires_grad_()), tokens).backward()
        assert received.grad is not None
        dist.send(received.grad, before)
        mine = {1: stages[1]}
    named = {f"{at}.{name}": each for at, stage in mine.items() for name, each in stage.named_parameters()}
    return Made(named, {"ownership": mesh_ownership(mesh, distinct=("pp",)), "check_numel": numel})


class Copied(nn.Linear):
    """Every process has all of it and a part of the data, and so a term of the gradients."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (each.to_local(grad_placements=[Partial()]) for each in (self.weight, self.bias))
        return nn.functional.linear(x, weight, bias)


def sums(dtype: torch.dtype) -> Made:
    """Terms of gradients, and plain parameters beside them that all have the same gradients of."""
    inner, outer = distribute_module(Copied(WIDTH, HIDDEN).to(dtype), mesh_of("row")), nn.Linear(WIDTH, 1).to(dtype)
    own, all_of_it = (torch.randn(3, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(seed))
                      for seed in (dist.get_rank(), 9))  # fmt: skip
    (50 * (inner(own).square().sum() + outer(all_of_it).square().sum())).backward()
    parameters = {**dict(inner.named_parameters()), **{f"outer {name}": x for name, x in outer.named_parameters()}}
    return Made(parameters, {"check_numel": True})


MODELS: dict[str, Callable[[torch.dtype], Made]] = {
    "DDP": data_parallel,
    "FSDP2": fsdp,
    "FSDP2, tied weights": of_one_weight,
    "FSDP2, offloaded": offloaded,
    "HSDP": hsdp,
    "FSDP2 and tensor parallel": tensor_parallel,
    "FSDP2, tensor and expert parallel": expert_parallel,
    "a pipeline of FSDP2": pipeline,
    "terms of sums, and plain": sums,
}


@functools.cache
def made(kind: str, dtype: str) -> tuple[Made, dict[str, Any]]:
    """A model, and its gradients after the backward pass."""
    torch.manual_seed(5)
    found = MODELS[kind](getattr(torch, dtype))
    return found, {name: copied(gradient) for name, gradient in gradients(found).items()}


def fresh(kind: str, dtype: str) -> Made:
    """The model as it was after the backward pass."""
    found, saved = made(kind, dtype)
    for name, parameter in found.parameters.items():
        parameter.grad = copied(saved[name])
    return found


def gradients(model: Made) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.parameters.items()}


def copied(tensor: Any) -> Any:
    """A copy that is held alike: that of PyTorch would add up the terms of a sum."""
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


def parts(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The same, but of sums what this process has."""
    sums = {f"{name} on rank {dist.get_rank()}": each.to_local() for name, each in tensors.items() if is_sum(each)}
    return gathered({**{name: each for name, each in tensors.items() if not is_sum(each)}, **sums})


def as_array(tensor: Tensor) -> np.ndarray:
    """A copy; of bfloat16, which NumPy does not have, by its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


class Clipped(NamedTuple):
    before: dict[str, np.ndarray]
    """The gradients, gathered."""

    held: dict[str, np.ndarray]
    """The same, but of sums what each process has: that is what is clipped."""

    after: dict[str, np.ndarray]
    """Those, clipped."""

    norm: Any
    """What the call returned: its number and what kind of tensor it is, or None."""

    calls: list[str]
    """The collectives that were called."""

    seen: int | None
    """How many PyTorch saw, those of its own operations too; None where it did not watch."""


def clipped(kind: str, dtype: str, call: str, arguments: Sequence[Any] = (), watched: bool = False) -> Clipped:
    """The gradients of a model before and after a call."""
    model = fresh(kind, dtype)
    given = gradients(model)
    before, held = gathered(given), parts(given)
    watcher = CommDebugMode()
    with counted() as calls, watcher if watched else nullcontext():
        norm, results = CALLS[call](uc, list(model.parameters.values()), list(given.values()), model.stated, *arguments)
    after = given if results is None else dict(zip(given, results, strict=True))
    assert all(layout(after[name]) == layout(each) for name, each in given.items())
    told = norm if norm is None else (norm.item(), f"{type(norm).__name__} {norm.dtype} {norm.dim()}")
    return Clipped(before, held, parts(after), told, calls, watcher.get_total_counts() if watched else None)


def layout(tensor: Any) -> tuple[Any, ...]:
    return (type(tensor), *(getattr(tensor, name, None) for name in ("shape", "dtype", "device_mesh", "placements")))


# -- ways to clip: by the names of a namespace, what its names in place take, the gradients, and what has to be stated

LIMIT = 1.5
Way = Callable[..., tuple[Any, list[Any] | None]]
"""To the norm and the new gradients, None where the given ones are clipped."""


def in_place(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any], p: float = 2.0) -> Any:
    return names.clip_grad_norm_(holders, LIMIT, p, **stated), None


def in_two_steps(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    norm = names.get_total_norm(given, **stated)
    names.clip_grads_with_norm_(holders, LIMIT, norm)
    return norm, None


def by_value(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    return names.clip_grad_value_(holders, 0.5), None


def by_norms(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    return None, [names.clip_by_norm(each, 0.5) for each in given]


def by_values(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    return None, [names.clip_by_value(each, -0.5, 0.25) for each in given]


def functionally(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    results, norm = names.clip_by_global_norm(given, LIMIT)
    return norm, results


def measured(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    return names.global_norm(given), None


def by_named_gradients(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
    pairs = [(f"gradient {number}", gradient) for number, gradient in enumerate(given)]
    return None, [gradient for _, gradient in names.GradientClipByGlobalNorm(LIMIT, **stated)(pairs)]


def of_class(name: str, *, in_place: bool) -> Way:
    def clip(names: Any, holders: list[Any], given: list[Any], stated: dict[str, Any]) -> Any:
        own = stated if name == "GradientClipByGlobalNorm" else {}
        instance = getattr(names, name)(0.5, **own)
        if in_place:
            return instance.clip_(holders), None
        return None, [gradient for _, gradient in instance(list(zip(holders, given, strict=True)))]

    return clip


CALLS: dict[str, Way] = {
    "clip_grad_norm_": in_place,
    "get_total_norm, clip_grads_with_norm_": in_two_steps,
    "clip_grad_value_": by_value,
    "clip_by_norm": by_norms,
    "clip_by_value": by_values,
    "clip_by_global_norm": functionally,
    "global_norm": measured,
    "GradientClipByGlobalNorm of names": by_named_gradients,
    **{
        f"{name}{'.clip_' * way}": of_class(name, in_place=way)
        for name in ("GradientClipByNorm", "GradientClipByValue", "GradientClipByGlobalNorm")
        for way in (True, False)
    },
}
