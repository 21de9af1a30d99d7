"""Clips that the processes of a `World` run, by configurations with groups. Each group has its own norm."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_layout import parameter_with
from support.processes.torch_sharded import mesh_of
from support.processes.worlds import error_message
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from unified_clip import ClipConfig

PLACEMENTS: dict[str, Any] = {"sharded": Shard(0), "copied": Replicate(), "terms": Partial()}


class ClippedGroups(NamedTuple):
    error: str
    after: list[np.ndarray]


def reject_in_second_group(p: float) -> tuple[str, str, list[list[float]]]:
    """Return the errors of two calls, and the gradients. In the first one, the `ownership` function of rank 1 raises
    for a parameter of the second group."""
    named = [(name, nn.Parameter(torch.zeros(2))) for name in "ab"]
    for _, parameter in named:
        parameter.grad = torch.full((2,), 1.0 + dist.get_rank())

    def raising(parameter: Any) -> bool:
        if parameter is named[1][1] and dist.get_rank() == 1:
            raise LookupError("no stage")
        return True

    groups: Any = [{"name": "second", "include": ["b"], "threshold": 10.0}]
    config: Any = ClipConfig(rule="global_norm", threshold=10.0, norm_type=p, groups=groups)
    errors = []
    for owner in (raising, "distinct"):
        try:
            config.clipper(process_group=dist.group.WORLD, ownership=owner).clip_(named)
            errors.append("")
        except (LookupError, ValueError) as rejection:
            errors.append(f"{type(rejection).__name__}: {rejection}")
    return errors[0], errors[1], [parameter.grad.tolist() for _, parameter in named]  # type: ignore[union-attr]


def clip_by_groups(
    kinds: list[str], drifts: str, check_numel: int | None = None, check_replicas: bool = False
) -> ClippedGroups:
    """Clip gradients of ones by a configuration with one group for each gradient. Each group has the threshold 1.

    kinds: The layout of each gradient. drifts: On rank 1, the copies of gradients of this kind differ.
    """
    named, rank = [], dist.get_rank()
    for number, kind in enumerate(kinds):
        local = torch.full((4,), 2.0 if kind == drifts and rank == 1 else 1.0)
        gradient: Any = local
        if kind != "plain":
            gradient = DTensor.from_local(local, mesh_of("row"), [PLACEMENTS[kind]], run_check=False)
        named.append((f"{number}", parameter_with(gradient)))
    groups = [{"name": f"group {name}", "include": [name], "threshold": 1.0} for name, _ in named]
    config: Any = ClipConfig(rule="global_norm", threshold=1.0, groups=groups)
    clipper = config.clipper(check_numel=check_numel, check_replicas=check_replicas)
    error = error_message(lambda: clipper.clip_(named))
    gradients: list[Any] = [parameter.grad for _, parameter in named]
    return ClippedGroups(error, [(g.to_local() if isinstance(g, DTensor) else g).numpy().copy() for g in gradients])
