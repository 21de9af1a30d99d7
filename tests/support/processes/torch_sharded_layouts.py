"""Functions that processes of a `World` run: the layouts of PyTorch's table in docs/distributed.md, on four ranks.

Each returns this rank's parameters with gradients, the names in the table's code, and the elements of the full
gradients on this rank. Layouts of Megatron and DeepSpeed are imitated. All others are PyTorch's own.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_imitated_layouts import (
    distributed_optimizer,
    distributed_optimizer_of_experts,
    layout_of_shards,
    megatron,
    megatron_copies,
    shard_of,
    zero,
)
from support.processes.torch_layout import (
    HIDDEN,
    THRESHOLD,
    WIDTH,
    WORDS,
    Layout,
    Piece,
    gradient_of,
    mesh_of,
    parameter_with,
    row,
)
from support.processes.worlds import error_message
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement

import unified_clip.torch as uc
from unified_clip.ownership import fsdp1_ownership, megatron_ownership, mesh_ownership


class Clipped(NamedTuple):
    norm: float
    full: list[Piece]
    before: list[Piece]
    """The same, but with local partial sums, which are clipped."""

    after: list[Piece]


def clip_layout(layout: str, keywords: str) -> Clipped:
    result = LAYOUTS[layout]()
    full, before = result.pieces(True), result.pieces(False)
    names = {"WORLD": dist.group.WORLD, **OWNERSHIP, **result.names}
    declared = eval(f"dict({keywords})", names)  # code of our own documentation
    if declared and not result.has_padding:
        declared["check_numel"] = numel_of(full)
    norm = uc.clip_grad_norm_(result.parameters, THRESHOLD, **declared).item()
    return Clipped(norm, full, before, result.pieces(False))


OWNERSHIP = {function.__name__: function for function in (fsdp1_ownership, mesh_ownership, megatron_ownership)}


def numel_of(pieces: Sequence[Piece]) -> int:
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, {piece.name: piece.size for piece in pieces})
    return sum(functools.reduce(lambda left, right: left | right, sizes).values())


def names_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def full_gradients(parameters: dict[str, nn.Parameter], are_summed: bool = True) -> list[Piece]:
    pieces = []
    for name, parameter in parameters.items():
        gradient: Any = parameter.grad
        if (
            not are_summed
            and isinstance(gradient, DTensor)
            and any(placement.is_partial() for placement in gradient.placements)
        ):
            name, gradient = f"{name}, term of rank {dist.get_rank()}", gradient.to_local()
        values = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).flatten()
        pieces.append(Piece(name, values.numel(), np.arange(values.numel()), values.numpy().copy()))
    return pieces


def layout_of(parameters: dict[str, nn.Parameter], **names: Any) -> Layout:
    return Layout(list(parameters.values()), functools.partial(full_gradients, parameters), names)


# -- PyTorch's own


class Experts(nn.Module):
    """Experts. Each process of a mesh has some of the experts, and applies them to all rows."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        weight = distribute_tensor(torch.randn(4, WIDTH, WIDTH), mesh, [Shard(0)])
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        mesh = self.weight.device_mesh
        everywhere = DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        own = torch.einsum("btw,ewv->btv", everywhere, self.weight.to_local())
        return DTensor.from_local(own, mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local().clone()


class Model(nn.Module):
    def __init__(self, mesh_of_experts: DeviceMesh | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.experts = nn.Identity() if mesh_of_experts is None else Experts(mesh_of_experts)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.experts(self.down(torch.relu(self.up(x))))
        return self.head(self.norm(hidden)).clone()  # FSDP2 warns of results that are views


def backward(model: nn.Module, part: int) -> None:
    torch.manual_seed(7 + part)
    (9 * model(torch.randn(4, 4, WIDTH))).square().mean().backward()


def data_parallel() -> Layout:
    torch.manual_seed(5)
    model = nn.parallel.DistributedDataParallel(Model())
    backward(model, dist.get_rank())
    return layout_of(names_of(model))


def fsdp(mesh: DeviceMesh, *, accumulates: bool = False, **options: Any) -> Layout:
    """With `accumulates`, the first of two backward passes does not reduce its gradients."""
    torch.manual_seed(5)
    model: Any = Model()
    for layer in (model.norm, model):
        fully_shard(layer, mesh=mesh, **options)
    if accumulates:
        model.set_requires_gradient_sync(False)
        backward(model, dist.get_rank() + 10)
        model.set_requires_gradient_sync(True)
    backward(model, dist.get_rank())
    return layout_of(names_of(model))


def offloaded() -> Layout:
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=False), "mp_policy": MixedPrecisionPolicy(torch.bfloat16)}
    return fsdp(row("dp"), accumulates=True, **options)


def fsdp_and_tensor_parallel(has_experts: bool) -> Layout:
    """Layers outside of the plan are on a submesh, so other ranks have copies."""
    torch.manual_seed(5)
    mesh = mesh_of("dp", "tp")
    experts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("experts' data", "experts")) if has_experts else None
    model = Model(experts and experts["experts"])
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if experts is not None:
        fully_shard(model.experts, mesh=experts["experts' data"])
    fully_shard(model, mesh=mesh["dp"])
    backward(model, mesh.get_local_rank("dp"))
    return layout_of(names_of(model), mesh=mesh)


def tensor_parallel(mesh: DeviceMesh) -> Layout:
    """All ranks along other dimensions of the mesh have the same data."""
    torch.manual_seed(5)
    model = parallelize_module(Model(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    backward(model, 0)
    return layout_of(names_of(model), mesh=mesh)


def sequence_parallel() -> Layout:
    """The norm layer has a part of each sequence, so the gradient of its weight is a partial sum."""
    torch.manual_seed(5)
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    model = parallelize_module(Model(), row("tp"), plan)
    backward(model, 0)
    return layout_of(names_of(model))


def context_parallel() -> Layout:
    """FSDP2 shards over data-parallel and context-parallel ranks alike."""
    torch.manual_seed(5)
    model = Model()
    mesh = mesh_of("dp", "cp")
    fully_shard(model, mesh=mesh._flatten("dp_cp"))
    backward(model, dist.get_rank())
    return layout_of(names_of(model))


def experts_of_some() -> Layout:
    """Experts on the second dimension, with copies along the first, beside FSDP2 on all ranks."""
    mesh = mesh_of("dp", "ep")
    experts = {"experts": with_gradient("experts", (4, WIDTH, 3), mesh["ep"], Shard(0))}
    dense = {"dense": with_gradient("dense", (WIDTH, HIDDEN), row("fsdp"), Shard(0))}
    return layout_of({**experts, **dense}, mesh=mesh)


def plain_experts(rows: int) -> Layout:
    """Experts as plain tensors. Each rank has its own experts, or two ranks have copies of the same experts."""
    mesh = mesh_of("dp", "ep")
    dense = {"0.dense.weight": with_gradient("dense", (WIDTH, HIDDEN), row("fsdp"), Shard(0))}
    position = dist.get_rank() % (4 // rows)
    experts = layout_of_shards(
        [shard_of("0.experts.weight", (4, WIDTH, 3), slice(position * rows, (position + 1) * rows))]
    )
    named = [*dense.items(), ("0.experts.weight", experts.parameters[0])]
    return Layout(named, lambda summed: [*full_gradients(dense), *experts.pieces(summed)], {"mesh": mesh})


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = Model().requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(WIDTH, 3, bias=False), nn.Linear(3, WORDS, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 9 * self.adapter(x)


def adapters() -> Layout:
    torch.manual_seed(5)
    model = Adapted()
    fully_shard(model.base, mesh=row("dp"))
    fully_shard(model, mesh=row("dp"))
    backward(model, dist.get_rank())
    trained = {name: parameter for name, parameter in names_of(model).items() if parameter.requires_grad}
    return layout_of(trained)._replace(parameters=list(model.parameters()))


def wide_gradients() -> Layout:
    parameters = {}
    for name, shape in (("up", (HIDDEN, WIDTH)), ("norm", (WIDTH,))):
        wide = with_gradient(name, shape, row("dp"), Shard(0))
        parameter = nn.Parameter(wide.detach().to(torch.bfloat16))
        parameter.grad_dtype = torch.float32  # type: ignore[attr-defined]
        parameter.grad = wide.grad
        parameters[name] = parameter
    return layout_of(parameters)


class RaggedShard(Placement):  # type: ignore[misc]
    """An imitation of veScale's placement: each rank has some rows of the flattened dimensions `dims`."""

    def __init__(self, dims: tuple[int, ...], local_units: tuple[int, ...]) -> None:
        super().__init__()
        self.dims, self.local_units = dims, local_units

    def __eq__(self, value: object) -> bool:
        return isinstance(value, RaggedShard) and repr(self) == repr(value)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"RaggedShard(dims={self.dims}, local_units={self.local_units})"


def ragged() -> Layout:
    """Rows that are not spread evenly. One rank has none."""
    mesh, rank, placement = row("fsdp"), dist.get_rank(), RaggedShard((0,), (1, 4, 0, 5))
    pieces, parameters = [], []
    for name, shape in (("up", (WORDS, WIDTH)), ("norm", (WORDS,))):
        parameter = with_gradient(name, shape, mesh, Replicate())
        gradient: Any = parameter.grad
        begin = sum(placement.local_units[:rank])
        local = gradient.to_local()[begin : begin + placement.local_units[rank]].clone()
        global_shape = {"run_check": False, "shape": gradient.shape, "stride": gradient.stride()}
        parameter = nn.Parameter(DTensor.from_local(torch.zeros_like(local), mesh, [placement], **global_shape))
        parameter.grad = DTensor.from_local(local, mesh, [placement], **global_shape)
        parameters.append(parameter)
        first = begin * gradient.numel() // WORDS
        pieces.append((name, gradient.numel(), np.arange(first, first + local.numel()), parameter))
    return Layout(
        parameters,
        lambda _: [
            Piece(name, size, positions, parameter.grad.to_local().flatten().numpy().copy())  # type: ignore[union-attr]
            for name, size, positions, parameter in pieces
        ],
    )


def with_gradient(name: str, shape: Sequence[int], mesh: DeviceMesh, placement: Any) -> nn.Parameter:
    parameter = nn.Parameter(distribute_tensor(torch.zeros(*shape), mesh, [placement], src_data_rank=None))
    parameter.grad = distribute_tensor(gradient_of(name, shape), mesh, [placement], src_data_rank=None)
    return parameter


def stages_of_fsdp(is_tied: bool) -> Layout:
    """FSDP2 modules on the two stages of a pipeline. If `is_tied`, the last stage shares the embedding's weight."""
    mesh = mesh_of("pp", "dp")
    is_first = mesh.get_local_rank("pp") == 0
    layers: dict[str, nn.Module] = (
        {"embedding": nn.Embedding(WORDS, WIDTH), "norm": nn.LayerNorm(WIDTH)}
        if is_first
        else {"up": nn.Linear(WIDTH, WIDTH), "head": nn.Linear(WIDTH, WORDS, bias=False)}
    )
    stage = nn.Sequential(OrderedDict(layers))
    fully_shard(stage, mesh=mesh["dp"])
    tied = [stage.get_parameter("head.weight")] if is_tied and not is_first else []
    parameters = names_of(stage)
    if tied:
        parameters["embedding.weight"] = parameters.pop("head.weight")
    for name, parameter in parameters.items():
        parameter.grad = distribute_tensor(
            gradient_of(name, parameter.shape), mesh["dp"], [Shard(0)], src_data_rank=None
        )
    return layout_of(parameters, mesh=mesh, tied=tied)


def plain_stages(is_tied: bool) -> Layout:
    mesh = mesh_of("pp", "dp")
    is_first = mesh.get_local_rank("pp") == 0
    last = "embedding" if is_tied else "head"
    shapes: dict[str, tuple[int, ...]] = (
        {"embedding": (WORDS, WIDTH), "first": (WIDTH,)} if is_first else {"last": (HIDDEN,), last: (WORDS, WIDTH)}
    )
    parameters = {name: parameter_with(gradient_of(name, shape)) for name, shape in shapes.items()}
    weight = parameters["embedding"] if is_tied and not is_first else None
    return layout_of(parameters, data_rank=mesh.get_local_rank("dp"), tied_weight=weight)


def fsdp1(strategy: ShardingStrategy, **options: Any) -> Layout:
    torch.manual_seed(5)
    return layout_of_fsdp1(wrap(Model(), sharding_strategy=strategy, **options))


def wrap(module: nn.Module, **options: Any) -> FullyShardedDataParallel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated
        return FullyShardedDataParallel(
            module, **{"device_id": torch.device("cpu"), "use_orig_params": True, **options}
        )


def layout_of_fsdp1(model: FullyShardedDataParallel) -> Layout:
    backward(model, dist.get_rank())

    def pieces(are_summed: bool) -> list[Piece]:
        with (
            warnings.catch_warnings(),
            FullyShardedDataParallel.summon_full_params(model, with_grads=True, writeback=False),
        ):
            warnings.simplefilter("ignore")
            return full_gradients(names_of(model))

    return Layout(list(model.parameters()), pieces, {"model": model})


def hybrid_shards() -> Layout:
    mesh = mesh_of("replicate", "shard")
    return fsdp1(ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


def flat_pieces(model: FullyShardedDataParallel) -> list[Piece]:
    """Return the elements on this rank, without communication."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    pieces = []
    for module in FullyShardedDataParallel.fsdp_modules(model):
        flat: Any = module._handle and module._handle.flat_param
        if not module._handle or not module._handle.uses_sharded_strategy:
            continue
        for parameter, size, shard_info in zip(flat._params, flat._numels, flat._shard_param_infos, strict=True):
            name = names.pop(parameter)
            if shard_info.in_shard:
                positions = np.arange(shard_info.intra_param_start_idx, shard_info.intra_param_end_idx + 1)
                pieces.append(Piece(name, size, positions, parameter.grad.flatten().numpy().copy()))
    return pieces + full_gradients({name: parameter for parameter, name in names.items()})


def copies_in_fsdp1() -> Layout:
    """A layer that FSDP1 ignores and a layer that FSDP1 copies, beside shards. All ranks have the same data."""
    torch.manual_seed(5)
    module = Model()
    module.down = wrap(module.down, sharding_strategy=ShardingStrategy.NO_SHARD)
    model = wrap(module, ignored_modules=[module.norm])
    backward(model, 0)
    return Layout(list(model.parameters()), lambda _: flat_pieces(model), {"model": model})


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "`DistributedDataParallel`, DeepSpeed ZeRO 0": data_parallel,
    "FSDP2 (`fully_shard`)": lambda: fsdp(row("dp")),
    "HSDP (`fully_shard` on two dimensions)": lambda: fsdp(mesh_of("replicate", "shard")),
    "FSDP2 with context parallel": context_parallel,
    "FSDP2 with `CPUOffloadPolicy` and gradient accumulation": offloaded,
    "FSDP2 with LoRA": adapters,
    "FSDP2 with `grad_dtype`": wide_gradients,
    "veScale, `RaggedShard`": ragged,
    "tensor parallel (`parallelize_module`) on all ranks": lambda: tensor_parallel(row("tp")),
    'tensor parallel on `mesh["tp"]`': lambda: tensor_parallel(mesh_of("dp", "tp")),
    "sequence parallel (`SequenceParallel`) on all ranks": sequence_parallel,
    'tensor parallel on `mesh["tp"]` with FSDP2': lambda: fsdp_and_tensor_parallel(False),
    "expert parallel with FSDP2 on all ranks": lambda: fsdp_and_tensor_parallel(True),
    "expert parallel on some ranks": experts_of_some,
    "experts as plain tensors, different experts on each rank": lambda: plain_experts(1),
    "experts as plain tensors on some ranks": lambda: plain_experts(2),
    "pipeline stages of FSDP2": lambda: stages_of_fsdp(is_tied=False),
    "pipeline stages of FSDP2, tied embedding": lambda: stages_of_fsdp(is_tied=True),
    "pipeline stages": lambda: plain_stages(is_tied=False),
    "pipeline stages, tied embedding": lambda: plain_stages(is_tied=True),
    "FSDP1, `FULL_SHARD`": lambda: fsdp1(ShardingStrategy.FULL_SHARD),
    "FSDP1, `SHARD_GRAD_OP`": lambda: fsdp1(ShardingStrategy.SHARD_GRAD_OP),
    "FSDP1, `HYBRID_SHARD`": hybrid_shards,
    "FSDP1, ignored modules and `NO_SHARD` modules": copies_in_fsdp1,
    "DeepSpeed ZeRO 2 and 3": zero,
    "Megatron, distributed optimizer": distributed_optimizer,
    "Megatron, distributed optimizer, model with experts": distributed_optimizer_of_experts,
    "Megatron, tensor and pipeline parallel": megatron,
    "Megatron, tensor parallel and data parallel, model with experts": megatron_copies,
}


def clip_with_replaced_parameter() -> str:
    mesh = mesh_of("pp", "dp")
    stage = nn.Sequential(OrderedDict(head=nn.Linear(WIDTH, WORDS, bias=False)))
    tied = [stage.head.weight]
    fully_shard(stage, mesh=mesh["dp"])
    parameter = stage.get_parameter("head.weight")
    parameter.grad = distribute_tensor(gradient_of("head", parameter.shape), mesh["dp"], [Shard(0)], src_data_rank=None)
    ownership = mesh_ownership(mesh, "pp", also_elsewhere=tied)
    return error_message(lambda: uc.clip_grad_norm_(stage.parameters(), THRESHOLD, ownership=ownership))
