"""The device path of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ..._compute import checksums, host, kernels
from ..._compute.device import DevicePath, norm_dtype
from ..._core.backend import Backend
from ..._core.exact import BLOCK, Accumulator
from ..._core.path import Change, Path
from ..._core.types import Scalar, Tensor, Write
from . import conditions, gpu_lists, kernel_operators, operations, releases
from .conditions import PLAIN
from .gpu_lists import GpuLists, Launch
from .primitives import PER_TENSOR_PRIMITIVES, PRIMITIVES, TorchPrimitives


class TorchPath(DevicePath):
    _backend: TorchPrimitives

    def __init__(
        self,
        primitives: TorchPrimitives,
        tensors: Sequence[Tensor],
        differentiable: bool,
        *,
        device_list: Any | None = None,
    ) -> None:
        """device_list: The tensors as a list that the kernels for GPUs read, if the backend has collected one."""
        has_float64 = None if device_list is None else device_list.has_float64
        options: dict[str, Any] = {"is_per_tensor": primitives.is_per_tensor, "has_float64": has_float64}
        super().__init__(primitives, tensors, differentiable, **options)
        self._device_list = device_list

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors

    def part(self, group: range) -> TorchPath:
        primitives = self._backend if len(group) else PRIMITIVES  # operations on lists need a tensor
        return TorchPath(primitives, self._tensors[group.start : group.stop], self._differentiable)

    def per_tensor(self) -> Path | None:
        if self._differentiable or not self._backend.may_launch:
            return None
        device_list = None if self.norm_dtype == "float64" else self._device_list
        path = TorchPath(PER_TENSOR_PRIMITIVES, self._tensors, False, device_list=device_list)
        if device_list is not None:
            return path
        if not self._backend.in_lists:
            return path if path._has_kernels_for_gpu else None
        is_forced = conditions.is_traced() or host.forced_path()
        if not is_forced and any(tensor.device.type == "cpu" for tensor in self._tensors):
            return None  # CPU tensors may take the host path
        return path

    @property
    def _has_kernels_for_gpu(self) -> bool:
        return self._on_gpu is not None or (kernel_operators.supports(self._tensors) and self._tensors[0].is_cuda)

    @property
    def _on_gpu(self) -> GpuLists | None:
        return self._eager_lists if gpu_lists.may_launch() and not torch.compiler.is_compiling() else None

    @functools.cached_property  # its lock cannot be traced, so compiled graphs do not read this
    def _eager_lists(self) -> GpuLists | None:
        if self._device_list is not None:
            return gpu_lists.of_collected(self._device_list)
        return gpu_lists.of_tensors(self._tensors) if self._backend.may_launch else None

    def clip_at_once(self, p: float, threshold: float, eps: float, infinite_norm_gives_nan: bool) -> Tensor | None:
        """Clip in place by the total norm with two kernels. Return the norm, or None if kernels cannot do so."""
        lists = self._on_gpu
        if lists is None or not gpu_lists.can_measure(self._tensors, p):
            return None
        return lists.clip(p, threshold, eps, infinite_norm_gives_nan)

    def scale(self, coef: Scalar) -> list[Tensor]:
        if not self._fits(coef) or self._on_gpu is None:
            return self._backend.scale(self._tensors, coef)
        return self._new_tensors(functools.partial(self._on_gpu.scale, coef))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        if self._fits(coef) and self._on_gpu is not None:
            return self._launch(self._on_gpu.scale(coef))
        is_supported = self._fits(coef) and self._backend.may_launch and kernel_operators.supports(self._tensors)
        if not (is_supported and kernel_operators.may_write(self._tensors)):
            return super().prepare_scale(coef)
        return [Write(functools.partial(kernel_operators.scale_, self._tensors, coef, per_tensor=self._is_per_tensor))]

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        if _has_tensor(low, high) or self._on_gpu is None:
            return super().clamp(low, high)
        return self._new_tensors(functools.partial(self._on_gpu.clamp, low, high))

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        if _has_tensor(low, high) or self._on_gpu is None:
            return super().prepare_clamp(low, high)
        return self._launch(self._on_gpu.clamp(low, high))

    def _new_tensors(self, launch_into: Callable[[Sequence[Tensor]], Launch]) -> list[Tensor]:
        results = [torch.empty_like(tensor) for tensor in self._tensors]
        launch_into(results)()
        return results

    def _fits(self, coef: Scalar) -> bool:
        return bool(coef.dim() == self._is_per_tensor)

    def _launch(self, launch: Launch) -> list[Write]:
        bump = functools.partial(releases.increment_versions, self._tensors)
        return [Write(bump, lambda: None), Write(launch)]

    _rounded: tuple[Scalar, Tensor] | None = None
    """The total norm, as float64 and in its own dtype."""

    def norm(self, p: float) -> Scalar:
        tensors, lists = self._tensors, self._on_gpu
        if lists is not None and gpu_lists.can_measure(tensors, p):
            if self._is_per_tensor:
                return lists.norms()
            self._rounded = lists.norm(p)
            return self._rounded[0]
        if kernel_operators.supports(tensors) and (gpu_lists.can_measure(tensors, p) or not tensors[0].is_cuda):
            return kernel_operators.norm(tensors, p, per_tensor=self._is_per_tensor)
        return self.norm_by_operations(p)

    def as_norm(self, n: Scalar) -> Tensor:
        if self._rounded is not None and n is self._rounded[0]:
            return self._rounded[1]
        return super().as_norm(n)

    def norm_by_operations(self, p: float) -> Scalar:
        if not self._is_per_tensor:
            return super().norm_by_operations(p)
        if not conditions.fit_lists(self._tensors):
            norms = [TorchPath(PRIMITIVES, [tensor], False).norm_by_operations(p) for tensor in self._tensors]
            return torch.stack([norm.to(self._tensors[0].device) for norm in norms])
        # Norms are rounded to a dtype, so measure tensors of each dtype separately.
        return operations.measured(
            self._tensors, lambda _, group: TorchPath(PER_TENSOR_PRIMITIVES, group, False)._total_norm(p)
        )

    def _bounds(self, tensor: Tensor, *bounds: Any) -> list[Any]:
        if not torch.compiler.is_compiling():
            return super()._bounds(tensor, *bounds)
        return [self._backend.bound(bound, tensor) for bound in bounds]  # only operations round symbolic numbers

    def _all_bounds(self, low: Any, high: Any) -> list[list[Any]]:
        if _has_tensor(low, high):
            return super()._all_bounds(low, high)
        bounds: dict[Any, list[Any]] = {}  # by dtype and device
        for tensor in self._tensors:
            key = (tensor.dtype, tensor.device)
            if key not in bounds:
                bounds[key] = self._bounds(tensor, low, high)
        return [bounds[tensor.dtype, tensor.device] for tensor in self._tensors]

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        if conditions.is_transformed() or not all(type(tensor) in PLAIN for tensor in self._tensors):
            return super().prepare_zeroed(change, keep)
        drop = {device: (~keep).to(device) for device in {tensor.device for tensor in self._tensors}}
        zeros = [
            Write(functools.partial(_zero_where, tensor, drop[tensor.device], conditions.is_inference(tensor)))
            for tensor in self._tensors
        ]
        return [*change.writes(), *zeros]


def _has_tensor(*scalars: Any) -> bool:
    return any(isinstance(scalar, torch.Tensor) for scalar in scalars)


def _zero_where(tensor: Tensor, condition: Tensor, in_inference: bool) -> None:
    with torch.inference_mode() if in_inference else nullcontext():
        tensor.masked_fill_(condition, 0)


# -- devices without float64


class OnHost(host.HostPath):
    """The host path over copies in CPU memory, for gradients on a device without float64, such as Apple's MPS.

    The results are on the devices of `tensors`, except for norms of float64. This class has never run on such a device.
    """

    def __init__(self, backend: Backend, tensors: Sequence[Tensor]) -> None:
        self._originals = list(tensors)
        super().__init__(backend, [_plain_copy(tensor) for tensor in tensors])

    def as_norm(self, n: Scalar) -> Tensor:
        norm = super().as_norm(n)
        return norm if norm.dtype == torch.float64 or not self._originals else norm.to(self._originals[0].device)

    def _bound(self, bound: Any, dtype: str) -> kernels.Array:
        return super()._bound(bound.cpu() if isinstance(bound, torch.Tensor) else bound, dtype)

    def _new_arrays(self, compute: Callable[[list[kernels.Array]], object]) -> list[Tensor]:
        results = super()._new_arrays(compute)
        return [result.to(tensor.device) for result, tensor in zip(results, self._originals, strict=True)]

    def _writes(self, write: Callable[[], object], results: Callable[[], list[Tensor]]) -> list[Write]:
        """Change the copies, and then copy them into the gradients."""
        return [*super()._writes(write, results), *PRIMITIVES.prepare_write(self._originals, self._tensors)]


def _plain_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg()


# -- sums over the gradients of one rank
#
# The device adds up blocks in float64, and the host adds up the block sums as integers.


CHUNK = 1024 * BLOCK

ROWS = 32


class LocalSums:
    """Sums and maxima of this rank's tensors. The CPU computes exact sums, sums for float64 norms, and maxima."""

    def __init__(self, backend: Backend, tensors: Sequence[Tensor]) -> None:
        self._backend, self._tensors = backend, [tensor.detach() for tensor in tensors]
        self.norm_dtype = norm_dtype([backend.dtype(tensor) for tensor in tensors])

    @functools.cached_property
    def _on_host(self) -> host.HostPath:
        return host.HostPath(self._backend, list(map(_plain_copy, self._tensors)))

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        if exactly or self.norm_dtype == "float64" or any(map(_is_hard, self._tensors)):
            return self._on_host.power_sum(p, exactly)
        sums = [total for tensor in self._tensors for total in _block_sums(tensor, p)]
        if not sums:
            return Accumulator()
        joined = kernels.array_list(
            [(torch.cat([total.to(sums[0].device) for total in sums]).cpu().numpy(), "float64")]
        )
        total = kernels.power_sum(joined, 1, "float64", threads=1, exactly=True)
        return Accumulator.from_block_sums(total.total) + Accumulator(nan=total.nan, infinite=total.infinite)

    def checksum(self) -> int:
        numbers = torch.from_numpy(checksums.weights().view("int64"))
        weights = {device: numbers.to(device) for device in {tensor.device for tensor in self._tensors}}
        sums = [total for tensor in self._tensors for total in _weighted_sums(tensor, weights[tensor.device])]
        totals = torch.cat([total.to(sums[0].device) for total in sums]).tolist() if sums else []  # waits once
        return checksums.combined(total % 2**64 for total in totals)

    def max_abs(self, dtype: str) -> float:
        return self._on_host.max_abs(dtype)

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        return self._on_host.relative_sum(p, top)


def _is_hard(tensor: Tensor) -> bool:
    return tensor.is_complex() or operations.lacks_float64(tensor)


def _block_sums(tensor: Tensor, p: int) -> Iterator[Tensor]:
    for chunk in tensor.reshape(-1).split(CHUNK):
        wide = chunk.double()
        powers = wide.square() if p == 2 else wide.abs()
        end = powers.numel() // BLOCK * BLOCK
        if end:
            yield powers[:end].view(-1, BLOCK).sum(1)
        if end < powers.numel():
            yield powers[end:].sum().reshape(1)


def _weighted_sums(tensor: Tensor, weights: Tensor) -> Iterator[Tensor]:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    bits = flat.view(torch.int16 if flat.element_size() == 2 else torch.int32)
    mask = 2**16 - 1 if bits.dtype == torch.int16 else 2**32 - 1
    for part in bits.split(ROWS * checksums.CHUNK):
        width = min(max(len(part), 1), checksums.CHUNK)
        end = len(part) // width * width
        if end:
            yield ((part[:end].view(-1, width).long() & mask) * weights[:width]).sum(1) + width
        if rest := len(part) - end:
            yield ((part[end:].long() & mask) * weights[:rest]).sum().reshape(1) + rest
