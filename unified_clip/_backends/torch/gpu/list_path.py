"""The device path for gradients on one GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...._compute import collected, host
from ...._compute.device import DeviceScalars
from ...._core.types import Tensor
from .. import conditions
from ..device_path import LIST_PRIMITIVES, PER_TENSOR_PRIMITIVES, ListPrimitives, TorchPath
from . import lists as gpu_lists

if TYPE_CHECKING:
    from ...._core.path import Path
    from .lists import GpuLists

PLAIN_METHODS = [("is_neg", False), ("is_inference", False)]
COLLECTOR: Any = collected.collector(torch.Tensor, torch.nn.Parameter, PLAIN_METHODS, ("requires_grad", True))


class GpuListPath(TorchPath):
    def __init__(self, device_list: Any, primitives: ListPrimitives = LIST_PRIMITIVES) -> None:
        self._backend, self._differentiable = primitives, False
        self._list, self._tensors = device_list, device_list.tensors
        self.xp = DeviceScalars(primitives, self._tensors)
        self.norm_dtype = "float64" if device_list.has_float64 else "float32"

    def per_tensor(self) -> Path | None:
        return super().per_tensor() if self._list.has_float64 else GpuListPath(self._list, PER_TENSOR_PRIMITIVES)

    @functools.cached_property
    def _eager_lists(self) -> GpuLists | None:
        return gpu_lists.of_collected(self._list)

    def clip_at_once(self, p: float, threshold: float, eps: float, infinite_norm_gives_nan: bool) -> Tensor | None:
        """Clip in place by the total norm with two kernels. Return the norm, or None if kernels cannot do so."""
        lists = self._on_gpu if gpu_lists.measures(self._tensors, p) else None
        return lists and lists.clip(p, threshold, eps, infinite_norm_gives_nan)


def collect_parameters(parameters: Sequence[Any]) -> GpuListPath | None:
    return _path(lambda on_cpu: COLLECTOR.of_parameters_on_gpu(parameters, on_cpu))


def collect_tensors(tensors: Sequence[Any], *, recording: bool) -> GpuListPath | None:
    """Return None if PyTorch records a derivative.

    Also return None if the kernels do not support a tensor, or if tensors overlap or are on several devices.
    """
    return _path(lambda on_cpu: COLLECTOR.of_tensors_on_gpu(tensors, recording, on_cpu))


def _path(collect: Callable[[bool], Any]) -> GpuListPath | None:
    if COLLECTOR is None or conditions.is_watched():
        return None
    device_list = collect(host.forced_path())
    return None if device_list is None or not device_list.tensors else GpuListPath(device_list)
