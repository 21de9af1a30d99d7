"""What processes of a `World` run: imitations of engines whose functions docs/integrations/engines.md replaces."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from support.processes import torch_sharded_layouts as layouts
from support.processes.torch_sharded import counted
from support.processes.torch_sharded_layouts import LIMIT, Layout, Piece
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


class Result(NamedTuple):
    whole: list[Piece]
    engine: float
    """The norm of the engine's own function."""

    norm: float
    all_reduces: int
    after: list[Piece]


def modules(**attributes: Any) -> dict[str, ModuleType]:
    """Modules by their names, of which the last one has attributes, and each is one of the module before."""
    path = attributes.pop("path").split(".")
    found = {".".join(path[:end]): ModuleType(".".join(path[:end])) for end in range(1, len(path) + 1)}
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(found[parent], last, module)
    vars(found[".".join(path)]).update(attributes)
    return found


# -- torchtitan


def norm_of_one_mesh(gradients: list[Any]) -> torch.Tensor:
    total = nn.utils.get_total_norm(gradients)
    return total.full_tensor() if isinstance(total, DTensor) else total


def titan_norm(parameters: Iterable[Any], pp_mesh: DeviceMesh | None) -> float:
    """As torchtitan adds up the norms of meshes and stages."""
    by_mesh: dict[Any, list[Any]] = {}
    for parameter in parameters:
        by_mesh.setdefault(parameter.device_mesh.mesh_dim_names, []).append(parameter.grad)
    total = sum(norm_of_one_mesh(gradients) ** 2 for gradients in by_mesh.values())
    assert isinstance(total, torch.Tensor)
    if pp_mesh is not None:
        dist.all_reduce(total, group=pp_mesh.get_group())
    return float(total) ** 0.5


def titan(code: str, stages: bool, experts: bool) -> Result:
    """A step of torchtitan's trainer: dense layers, and experts on a mesh of their own, maybe on two stages."""
    pp_mesh, rows = (layouts.mesh_of("pp", "fsdp"), layouts.mesh_of("pp", "ep")) if stages else (None, None)
    dense = layouts.row("fsdp") if pp_mesh is None else pp_mesh["fsdp"]
    sparse = layouts.row("ep") if rows is None else rows["ep"]
    stage = 0 if pp_mesh is None else pp_mesh.get_local_rank("pp")
    shapes = {f"{stage}.weight": ((9, 4), dense), f"{stage}.bias": ((5,), dense)}
    if experts:
        shapes[f"{stage}.experts"] = ((4, 3, 2), sparse)
    parameters = {name: layouts.with_gradient(name, shape, mesh, Shard(0)) for name, (shape, mesh) in shapes.items()}
    whole, engine = (
        layouts.whole_gradients(parameters),
        titan_norm(parameters.values(), pp_mesh and pp_mesh["pp"]),
    )
    fakes = modules(path="torchtitan.distributed.utils")
    with mock.patch.dict(sys.modules, fakes):
        exec(compile(code, "engines.md", "exec"), {})
        dist_utils: Any = fakes["torchtitan.distributed.utils"]
        with counted() as calls:
            norm = dist_utils.clip_grad_norm_(
                [parameter for model_part in [parameters] for parameter in model_part.values()],
                LIMIT,
                foreach=True,
                pp_mesh=pp_mesh and pp_mesh["pp"],
                ep_enabled=experts,
            )
    return Result(whole, engine, norm.item(), len(calls), layouts.whole_gradients(parameters))


# -- Megatron-core


class MegatronOptimizer:
    """Megatron's selection of gradients, and its calls, of functions that its module imports."""

    def __init__(self, module: Any, layout: Layout) -> None:
        self._module, self._parameters, self._names = module, list(layout.parameters), layout.names

    def get_main_grads_for_grad_norm(self) -> list[torch.Tensor]:
        return [
            parameter.grad
            for parameter in self._parameters
            if parameter.grad is not None
            and not getattr(parameter, "shared", False)
            and (getattr(parameter, "tensor_model_parallel", False) or self._names["tensor_rank"] == 0)
        ]

    def clip_grad_norm(self, clip_grad: float) -> float:
        gradients = self.get_main_grads_for_grad_norm()
        norm: float = self._module.get_grad_norm_fp32(gradients, grad_stats_parallel_group=dist.group.WORLD)
        self._module.clip_grad_by_total_norm_fp32(self._parameters, clip_grad, norm, False)
        return norm


def megatron_norm(gradients: list[torch.Tensor], norm_type: float = 2, grad_stats_parallel_group: Any = None) -> float:
    """As Megatron adds up squares of norms in float32."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    total = torch.stack(norms).square().sum() if norms else torch.zeros(())
    dist.all_reduce(total, group=grad_stats_parallel_group)
    return float(total) ** 0.5


def megatron(code: str, layout: str) -> Result:
    made = layouts.LAYOUTS[layout]()
    fakes = modules(path="megatron.core.optimizer.optimizer", get_grad_norm_fp32=megatron_norm)
    module: Any = fakes["megatron.core.optimizer.optimizer"]
    optimizer, whole = MegatronOptimizer(module, made), made.pieces(True)
    engine = module.get_grad_norm_fp32(
        optimizer.get_main_grads_for_grad_norm(), grad_stats_parallel_group=dist.group.WORLD
    )
    with mock.patch.dict(sys.modules, fakes):
        exec(compile(code, "engines.md", "exec"), {})
    with counted() as calls:
        norm = optimizer.clip_grad_norm(LIMIT)
    return Result(whole, engine, norm, len(calls), made.pieces(True))
