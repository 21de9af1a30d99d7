"""Functions that processes of a `World` run: norms that stay on the device, with kernels in Triton's interpreter."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from support.processes import torch_sharded, torch_sharded_terms
from support.processes.torch_layout import parameter_with
from support.processes.torch_sharded import gathered, record_collectives
from support.processes.torch_sharded_terms import Summed
from support.processes.worlds import World, worlds_of_any_size
from torch import nn

import unified_clip.torch as uc
from unified_clip._backends.torch import gpu
from unified_clip._backends.torch.process_group import TorchGroup

THRESHOLD = 1.0


def start(rank: int, size: int, meeting: str) -> None:
    os.environ.update(TRITON_INTERPRET="1", UNIFIED_CLIP_PATH="framework")
    torch_sharded.start(rank, size, meeting)
    warnings.filterwarnings("ignore", ".*fp_fusion.*|overflow.*|invalid.*")
    gpu.ENABLED = True
    from unified_clip._backends.torch.gpu import table

    assert table.INTERPRETED
    table.LANES = 64


def worlds() -> AbstractContextManager[Callable[[int], World]]:
    return worlds_of_any_size(start)


class Clip(NamedTuple):
    norm: float
    after: list[np.ndarray]
    collectives: list[str]
    stays: bool
    error: str = ""


def clip(arrays: list[np.ndarray], p: float = 2.0, threshold: float = THRESHOLD, **keywords: Any) -> Clip:
    dtype = getattr(torch, keywords.pop("dtype", "float32"))
    gradients = [
        parameter.grad.to(dtype) for parameter in torch_sharded.parameters(arrays, keywords.pop("layout", "FSDP"))
    ]
    return clip_parameters(list(map(parameter_with, gradients)), p, threshold, **keywords)


def clip_parameters(params: list[nn.Parameter], p: float, threshold: float = THRESHOLD, **keywords: Any) -> Clip:
    calls: list[int] = []
    norm_on_device = TorchGroup.norm_on_device

    def on_device(*args: Any) -> Any:
        calls.append(1)
        return norm_on_device(*args)

    with record_collectives() as collectives, mock.patch.object(TorchGroup, "norm_on_device", on_device):
        try:
            norm = uc.clip_grad_norm_(params, threshold, p, **keywords).item()
            error = ""
        except ValueError as rejection:
            norm, error = np.nan, str(rejection)
    recorded = list(collectives)
    gradients = [parameter.grad.abs() if parameter.grad.is_complex() else parameter.grad for parameter in params]
    after = [gathered(gradient.double()) for gradient in gradients]  # of the same dtype on all ranks
    return Clip(norm, after, recorded, bool(calls), error)


def clips(arrays: list[np.ndarray], p: float, dtype: str, layout: str = "FSDP") -> list[Clip]:
    """Clip equal gradients three times. The first norm is read on the host."""
    group = dist.new_group(list(range(dist.get_world_size())))
    return [clip(arrays, p, process_group=group, dtype=dtype, layout=layout) for _ in range(3)]


def clips_of_terms(layout: str, p: float, reads: bool) -> list[tuple[Summed, bool]]:
    """Clip `Partial` gradients beside a sharded one three times, then the sharded one alone twice.

    Return the clips, and whether each norm stayed on the device.

    reads: Whether the kernels of rank 1 read its gradients.
    """
    group, clips, original = dist.new_group(), [], gpu.table_of

    def table_of(tensors: Any, **options: Any) -> Any:
        return original(tensors, **options) if reads or dist.get_rank() != 1 else None

    for number in (*[torch_sharded_terms.NUMBER] * 3, 0, 0):
        with (
            mock.patch.object(
                TorchGroup, "norm_on_device", autospec=True, side_effect=TorchGroup.norm_on_device
            ) as stay,
            mock.patch.object(gpu, "table_of", table_of),
        ):
            clip = torch_sharded_terms.clip_terms(layout, p, number=number, process_group=group)
        clips.append((clip, bool(stay.call_count)))
    return clips


def clips_with_faulty_terms(change: str) -> list[Summed]:
    """Clip three times: with a norm that is read on the host, with a fault of rank 1, and once more."""
    group = dist.new_group()
    thresholds = {"threshold": 1.0 + (dist.get_rank() == 1)} if change == "another threshold" else {}
    changes = {} if change == "another threshold" else {"change": change}
    return [
        torch_sharded_terms.clip_terms("row", process_group=group, **keywords)
        for keywords in ({}, thresholds | changes, {})
    ]


def terms_of_other_lists() -> list[Summed]:
    """Clip all gradients twice, and without the first one twice. Then only rank 1 lacks it. Then clip once more."""
    group = dist.new_group()
    fewer: dict[str, Any] = {"change": "without the first"}
    calls = ({}, {}, fewer | {"everywhere": True}, fewer | {"everywhere": True}, fewer, {})
    return [torch_sharded_terms.clip_terms("row", process_group=group, **keywords) for keywords in calls]


def clips_of_stages(stages: list[list[np.ndarray]]) -> list[Clip]:
    """Clip distinct gradients of each rank three times. In the third clip, rank 1 lacks its last gradient."""
    group, own = dist.new_group(list(range(dist.get_world_size()))), stages[dist.get_rank()]
    keywords = {"layout": "plain", "process_group": group, "ownership": "distinct"}
    fewer = own[:-1] if dist.get_rank() == 1 else own
    return [clip(arrays, **keywords) for arrays in (own, own, fewer)]


def clips_of_dtypes(arrays: list[np.ndarray], p: float, dtypes: list[str], dense: list[bool]) -> list[Clip]:
    """Clip a distinct gradient of each rank twice, in the rank's dtype.

    dense: For each rank, whether its gradient is contiguous. Kernels cannot read other gradients.
    """
    rank, group = dist.get_rank(), dist.new_group()
    clips = []
    for _ in range(2):
        parameter = nn.Parameter(torch.zeros(len(arrays[rank]), dtype=getattr(torch, dtypes[rank])))
        values = torch.from_numpy(arrays[rank]).to(parameter.dtype)
        parameter.grad = values.clone() if dense[rank] else torch.stack([values, values], 1)[:, 0]
        clips.append(clip_parameters([parameter], p, process_group=group, ownership="distinct"))
    return clips


def clips_of_copies(arrays: list[np.ndarray], p: float, dtype: str) -> list[Clip]:
    keywords = {"layout": "replicated", "dtype": dtype}
    return [clip(arrays, p, **keywords), clip(arrays, p, **keywords, check_numel=True)]


def norms_of_complex(arrays: list[np.ndarray]) -> list[tuple[float, bool]]:
    group, gradients = dist.new_group(), [parameter.grad for parameter in torch_sharded.parameters(arrays, "FSDP")]
    norms = []
    for _ in range(2):
        with mock.patch.object(
            TorchGroup, "norm_on_device", autospec=True, side_effect=TorchGroup.norm_on_device
        ) as stay:
            norm = uc.get_total_norm(gradients, process_group=group).item()
        norms.append((norm, bool(stay.call_count)))
    return norms


FAULTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "other thresholds": lambda rank: {"threshold": 1.0 + rank},
    "one rank rejects": lambda rank: {"threshold": -1.0 if rank else 1.0},
    "one rank checks": lambda rank: {"check_numel": True if rank else None},
    "one rank has float64": lambda rank: {"dtype": "float64" if rank else "float32"},
    "one rank has complex": lambda rank: {"dtype": "complex64" if rank else "float32"},
}
"""By name, the arguments of the second clip on each rank."""


def order_of(fault: str) -> float:
    """The order of the norm. Kernels compute only the 2-norm of complex gradients."""
    return 1.0 if fault == "one rank has complex" else 2.0


def clips_with_fault(arrays: list[np.ndarray], fault: str) -> list[Clip]:
    group = dist.new_group(list(range(dist.get_world_size())))
    common = {"process_group": group, "p": order_of(fault)}
    return [clip(arrays, **common, **keywords) for keywords in ({}, FAULTS[fault](dist.get_rank()), {})]
