"""Lists of gradients on NVIDIA GPUs, and launches of the CUDA kernels (`_native/gpu/clip.cu`) for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..._compute import cuda, host
from ..._compute.kernels import CODES
from ..._core.exact import nearest
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from . import releases
from .conditions import COMPLEX, NAMES, PLAIN, REAL, is_dense, is_watched

Launch = Callable[[], None]

ORDERS = {1: 1, 2: 2, math.inf: 0}
BOUNDED = ("float16", "bfloat16", "float32", "float64")
"""The dtypes in the order of the kernels' bounds."""

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}

COLLECTOR: Any = host.collector(
    torch.Tensor, torch.nn.Parameter, [("is_neg", False), ("is_inference", False)], ("requires_grad", True)
)

emulated = False
"""For tests: the kernels run on tensors in CPU memory."""


class Part(NamedTuple):
    indices: Sequence[int]
    list: Any
    """A `DeviceList`."""

    device: torch.device
    gpu: Any
    """The object that launches kernels."""

    @property
    def stream(self) -> int:
        return 0 if emulated else torch._C._cuda_getCurrentRawStream(self.device.index)

    def numbers(self, length: int | tuple[()]) -> Tensor:
        return torch.empty(length, dtype=torch.float64, device=self.device)


class GpuLists:
    """One list for each device. The methods only launch kernels, and wait for none of them.

    `scale` and `clamp` allocate what they need, and return the launch, which needs no more memory.
    """

    def __init__(self, tensors: Sequence[Tensor], parts: Sequence[Part]) -> None:
        self._tensors, self._parts = tensors, parts
        self._wide = any(part.list.has_float64 for part in parts)

    def norm(self, p: float) -> tuple[Scalar, Tensor]:
        """Return the total norm, as float64 and in its own dtype."""
        first = self._parts[0]
        norm, rounded = first.numbers(()), self._rounded()
        targets = norm.data_ptr(), rounded.data_ptr()
        if len(self._parts) == 1:
            sums = first.numbers(first.gpu.numbers(first.list, False))
            first.gpu.norm(first.list, ORDERS[p], False, sums.data_ptr(), *targets, first.stream)
            return norm, rounded
        copies, depth = [], 1
        for part in self._parts:  # sums without a fast pass, whose doubt would have to cross devices
            sums = part.numbers(part.gpu.numbers(part.list, False))
            count, own_depth = part.gpu.add(part.list, ORDERS[p], sums.data_ptr(), part.stream)
            copies.append(sums[: 3 * count].to(first.device, non_blocking=True))
            depth = max(depth, own_depth)
        sums = torch.cat(copies)
        count, depth = len(sums) // 3, depth + len(sums)
        first.gpu.finish(
            first.list.device, ORDERS[p], self._wide, sums.data_ptr(), count, depth, *targets, first.stream
        )
        return norm, rounded

    def norms(self) -> Scalar:
        """Return the 2-norm of each tensor as float64."""
        first, vectors = self._parts[0], []
        for part in self._parts:
            sums = part.numbers(part.gpu.numbers(part.list, True))
            vectors.append(part.numbers(len(part.indices)))
            part.gpu.norm(part.list, 2, True, sums.data_ptr(), vectors[-1].data_ptr(), 0, part.stream)
        if len(vectors[0]) == len(self._tensors):
            return vectors[0]
        numbers = dict.fromkeys(range(len(self._tensors)), first.numbers(()).zero_())  # the norm of an empty tensor
        for part, vector in zip(self._parts, vectors, strict=True):
            numbers.update(zip(part.indices, vector.to(first.device, non_blocking=True).unbind(), strict=True))
        return torch.stack(list(numbers.values()))

    def clip(self, p: float, threshold: float, eps: float, infinite_norm_gives_nan: bool) -> Tensor | None:
        """Clip in place by the total norm, and return the norm. Return None for gradients on several devices."""
        if len(self._parts) > 1:
            return None
        (part,), rounded = self._parts, self._rounded()
        sums = part.numbers(part.gpu.numbers(part.list, False))
        part.gpu.clip(
            part.list, ORDERS[p], threshold, eps, infinite_norm_gives_nan,
            sums.data_ptr(), rounded.data_ptr(), (), part.stream,
        )  # fmt: skip
        releases.increment_versions(self._tensors)
        return rounded

    def scale(self, coef: Scalar, results: Sequence[Tensor] | None = None) -> Launch:
        """`coef` is a float64 number, or a vector with a number for each tensor."""
        each = bool(coef.dim())
        coefs = coef.unbind() if each and len(self._parts[0].indices) < len(self._tensors) else ()
        prepared = []
        for part in self._parts:
            own = torch.stack([coefs[index] for index in part.indices]) if coefs else coef
            prepared.append((part, own.to(part.device, non_blocking=True).contiguous(), _targets(part, results)))

        def launch() -> None:
            for part, factors, targets in prepared:
                part.gpu.scale(part.list, factors.data_ptr(), each, targets, part.stream)

        return launch

    def clamp(self, low: float, high: float, results: Sequence[Tensor] | None = None) -> Launch:
        bounds = [[nearest(bound, dtype) for dtype in BOUNDED] for bound in (low, high)]
        prepared = [(part, _targets(part, results)) for part in self._parts]

        def launch() -> None:
            for part, targets in prepared:
                part.gpu.clamp(part.list, *bounds, targets, part.stream)

        return launch

    def _rounded(self) -> Tensor:
        dtype = torch.float64 if self._wide else torch.float32
        return torch.empty((), dtype=dtype, device=self._parts[0].device)


def _targets(part: Part, results: Sequence[Tensor] | None) -> list[int]:
    return [] if results is None else [results[index].data_ptr() for index in part.indices]


def can_measure(tensors: Sequence[Tensor], p: float) -> bool:
    """Return whether the kernels can compute the norm. They read a complex number as two real numbers."""
    return p == 2 or (p in (1, math.inf) and not any(tensor.dtype in COMPLEX for tensor in tensors))


def may_launch() -> bool:
    return cuda.ENABLED and not torch.version.hip and KERNELS is not None


def collect_parameters(parameters: Sequence[Any]) -> Any | None:
    """Return the gradients of parameters as a `DeviceList`. Return None if a gradient needs more checks.

    For example, gradients overlap or are on several devices, or the kernels do not support their dtype.
    """
    return _collected(lambda collector: collector.of_parameters_on_gpu(parameters, host.forced_path()))


def collect_tensors(tensors: Sequence[Any], *, recording: bool) -> Any | None:
    """Return the tensors as a `DeviceList`. Also return None if PyTorch records a derivative."""
    return _collected(lambda collector: collector.of_tensors_on_gpu(tensors, recording, host.forced_path()))


def _collected(collect: Callable[[Any], Any]) -> Any | None:
    device_list = None if COLLECTOR is None or is_watched() else collect(COLLECTOR)
    return device_list if device_list is not None and device_list.tensors else None


def of_collected(device_list: Any) -> GpuLists | None:
    gpu = cuda.launcher(device_list.device)
    if gpu is None:
        return None
    tensors = device_list.tensors
    return GpuLists(tensors, [Part(range(len(tensors)), device_list, tensors[0].device, gpu)])


def of_tensors(tensors: Sequence[Tensor]) -> GpuLists | None:
    """Return None if the kernels do not support a tensor, or while PyTorch traces or transforms the code."""
    if KERNELS is None or not may_launch() or is_watched() or not tensors or not all(map(_is_supported, tensors)):
        return None
    groups: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.numel():
            groups.setdefault(tensor.device, []).append(index)
    parts = []
    for device, indices in groups.items():
        gpu = cuda.launcher(device.index or 0)
        if gpu is None:
            return None
        own = [tensors[index] for index in indices]
        counts = [tensor.numel() * (2 if tensor.dtype in COMPLEX else 1) for tensor in own]
        codes = "".join(CODES[NAMES[PARTS.get(tensor.dtype, tensor.dtype)]] for tensor in own)
        addresses = [tensor.data_ptr() for tensor in own]
        parts.append(Part(indices, KERNELS.DeviceList(device.index or 0, addresses, counts, codes), device, gpu))
    return GpuLists(tensors, parts) if parts else None


def _is_supported(tensor: Any) -> bool:
    return (
        type(tensor) in PLAIN
        and tensor.device.type == ("cpu" if emulated else "cuda")
        and tensor.layout is torch.strided
        and (tensor.dtype in REAL or (tensor.dtype in COMPLEX and not tensor.is_conj()))
        and (tensor.is_contiguous() or is_dense(tensor))
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and tensor.data_ptr() % (tensor.itemsize // (2 if tensor.dtype in COMPLEX else 1)) == 0
    )
