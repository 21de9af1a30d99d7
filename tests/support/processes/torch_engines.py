"""Functions that processes of a `World` run: imitations of engines, with the code of docs/integrations/engines.md."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from support.processes import torch_sharded_layouts as layouts
from support.processes.torch_layout import THRESHOLD, Layout, Piece, mesh_of, row
from support.processes.torch_sharded import record_collectives
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


class Result(NamedTuple):
    full: list[Piece]
    engine: float
    norm: float
    all_reduces: int
    after: list[Piece]


def nested_modules(**attributes: Any) -> dict[str, ModuleType]:
    path = attributes.pop("path").split(".")
    modules = {".".join(path[:end]): ModuleType(".".join(path[:end])) for end in range(1, len(path) + 1)}
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    vars(modules[".".join(path)]).update(attributes)
    return modules


# -- torchtitan


def norm_of_one_mesh(gradients: list[Any]) -> torch.Tensor:
    total = nn.utils.get_total_norm(gradients)
    return total.full_tensor() if isinstance(total, DTensor) else total


def titan_norm(parameters: Iterable[Any], pp_mesh: DeviceMesh | None) -> float:
    by_mesh: dict[Any, list[Any]] = {}
    for parameter in parameters:
        by_mesh.setdefault(parameter.device_mesh.mesh_dim_names, []).append(parameter.grad)
    total = sum(norm_of_one_mesh(gradients) ** 2 for gradients in by_mesh.values())
    assert isinstance(total, torch.Tensor)
    if pp_mesh is not None:
        dist.all_reduce(total, group=pp_mesh.get_group())
    return float(total) ** 0.5


def clip_as_titan(code: str, stages: bool, experts: bool) -> Result:
    pp_mesh, rows = (mesh_of("pp", "fsdp"), mesh_of("pp", "ep")) if stages else (None, None)
    dense = row("fsdp") if pp_mesh is None else pp_mesh["fsdp"]
    sparse = row("ep") if rows is None else rows["ep"]
    stage = 0 if pp_mesh is None else pp_mesh.get_local_rank("pp")
    shapes = {f"{stage}.weight": ((9, 4), dense), f"{stage}.bias": ((5,), dense)}
    if experts:
        shapes[f"{stage}.experts"] = ((4, 3, 2), sparse)
    parameters = {name: layouts.with_gradient(name, shape, mesh, Shard(0)) for name, (shape, mesh) in shapes.items()}
    full, engine = (
        layouts.full_gradients(parameters),
        titan_norm(parameters.values(), pp_mesh and pp_mesh["pp"]),
    )
    fakes = nested_modules(path="torchtitan.distributed.utils")
    with mock.patch.dict(sys.modules, fakes):
        exec(compile(code, "engines.md", "exec"), {})
        dist_utils: Any = fakes["torchtitan.distributed.utils"]
        with record_collectives() as calls:
            norm = dist_utils.clip_grad_norm_(
                [parameter for model_part in [parameters] for parameter in model_part.values()],
                THRESHOLD,
                foreach=True,
                pp_mesh=pp_mesh and pp_mesh["pp"],
                ep_enabled=experts,
            )
    return Result(full, engine, norm.item(), len(calls), layouts.full_gradients(parameters))


# -- DeepSpeed


class DeepSpeedZeroOptimizer:
    """An imitation of the optimizers of ZeRO 1 to 3: gradients of this rank's shards, and a norm function."""

    model_parallel_group, has_moe_layers, cpu_offload = None, False, False

    def __init__(self, gradients: list[torch.Tensor], group: Any) -> None:
        self.averaged_gradients: dict[int, list[torch.Tensor] | None] = {0: gradients[:1], 1: gradients[1:], 2: None}
        self.dp_process_group = group

    def scaled_global_norm(self, norm_type: float = 2) -> torch.Tensor:
        norms = [gradient.norm() for group in self.averaged_gradients.values() for gradient in group or []]
        total = torch.stack([torch.zeros(()), *norms]).square().sum()
        dist.all_reduce(total, group=self.dp_process_group)
        return total.sqrt()

    def _get_norm_groups(self) -> list[torch.Tensor]:
        return [self.scaled_global_norm()]


def deepspeed_modules(optimizer: type) -> dict[str, ModuleType]:
    return {
        **nested_modules(path="deepspeed.runtime.engine", clip_grad_norm_=nn.utils.clip_grad_norm_),
        **nested_modules(path="deepspeed.runtime.zero.stage3", DeepSpeedZeroOptimizer_Stage3=optimizer),
        **nested_modules(path="deepspeed.runtime.zero.stage_1_and_2", DeepSpeedZeroOptimizer=optimizer),
    }


def norms_as_deepspeed(code: str) -> tuple[list[Piece], float, list[float], int]:
    """Return the full gradients, the imitated norm, the norms of ZeRO 2 and 3 by the page's code, and the number of
    their all-reduces."""
    layout = layouts.LAYOUTS["DeepSpeed ZeRO 2 and 3"]()
    kind = type("Optimizer", (DeepSpeedZeroOptimizer,), {})
    optimizer = kind([parameter.grad for parameter in layout.parameters], layout.names["data_parallel_group"])
    engine = float(optimizer.scaled_global_norm())
    with mock.patch.dict(sys.modules, deepspeed_modules(kind)):
        exec(compile(code, "engines.md", "exec"), {})
    with record_collectives() as calls:
        norms = [optimizer.scaled_global_norm().item(), *(norm.item() for norm in optimizer._get_norm_groups())]
    optimizer.cpu_offload = True
    with contextlib.suppress(NotImplementedError):
        norms.append(optimizer.scaled_global_norm().item())  # a third norm, if it is not an error
    return layout.pieces(True), engine, norms, len(calls)


# -- Megatron-core


class MegatronOptimizer:
    """An imitation of Megatron's optimizer: its selection of gradients, and its calls of imported functions."""

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
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    total = torch.stack(norms).square().sum() if norms else torch.zeros(())
    dist.all_reduce(total, group=grad_stats_parallel_group)
    return float(total) ** 0.5


def clip_as_megatron(code: str, layout: str) -> Result:
    gradients_layout = layouts.LAYOUTS[layout]()
    fakes = nested_modules(path="megatron.core.optimizer.optimizer", get_grad_norm_fp32=megatron_norm)
    module: Any = fakes["megatron.core.optimizer.optimizer"]
    optimizer, full = MegatronOptimizer(module, gradients_layout), gradients_layout.pieces(True)
    engine = module.get_grad_norm_fp32(
        optimizer.get_main_grads_for_grad_norm(), grad_stats_parallel_group=dist.group.WORLD
    )
    with mock.patch.dict(sys.modules, fakes):
        exec(compile(code, "engines.md", "exec"), {})
    with record_collectives() as calls:
        norm = optimizer.clip_grad_norm(THRESHOLD)
    return Result(full, engine, norm, len(calls), gradients_layout.pieces(True))
