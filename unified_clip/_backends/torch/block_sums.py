"""Partial sums of PyTorch's tensors on devices: float64 over blocks on the device, then integers on the host."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from ..._compute import checksums, host, kernels
from ..._core.backend import Backend
from ..._core.exact import BLOCK, Accumulator
from ..._core.types import Tensor
from . import arithmetic

CHUNK = 1024 * BLOCK
"""Elements per conversion to float64."""

ROWS = 32
"""Chunks of a checksum per conversion to int64."""


class TorchSums(host.HostPath):
    """`PartialSums` of tensors on devices, and of traced ones: the host path over copies, except for fast sums."""

    def __init__(self, backend: Backend, tensors: Sequence[Tensor]) -> None:
        super().__init__(backend, [tensor.detach() for tensor in tensors])

    @functools.cached_property
    def _views(self) -> list[kernels.Array]:
        return [self._backend.to_numpy(tensor) for tensor in self._tensors]

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        if exactly or self.norm_dtype == "float64" or any(map(_is_hard, self._tensors)):
            return super().power_sum(p, exactly)
        sums = [total for tensor in self._tensors for total in _block_sums(tensor, p)]
        if not sums:
            return Accumulator()
        joined = kernels.array_list(
            [(torch.cat([total.to(sums[0].device) for total in sums]).cpu().numpy(), "float64")]
        )
        total = kernels.power_sum(joined, 1, "float64", self._threads, exactly=True)
        return Accumulator.from_block_sums(total.total) + Accumulator(nan=total.nan, infinite=total.infinite)

    def checksum(self) -> int:
        """Return the result of `checksums.checksum`, computed on the tensors' devices."""
        numbers = torch.from_numpy(checksums.weights().view("int64"))
        weights = {device: numbers.to(device) for device in {tensor.device for tensor in self._tensors}}
        sums = [total for tensor in self._tensors for total in _weighted_sums(tensor, weights[tensor.device])]
        totals = torch.cat([total.to(sums[0].device) for total in sums]).tolist() if sums else []  # waits once
        return checksums.combined(total % 2**64 for total in totals)


def _is_hard(tensor: Tensor) -> bool:
    """Return whether a tensor needs exact sums on the host."""
    return tensor.is_complex() or arithmetic.lacks_float64(tensor)


def _block_sums(tensor: Tensor, p: int) -> Iterator[Tensor]:
    """Yield sums over at most BLOCK exact powers each."""
    for chunk in tensor.reshape(-1).split(CHUNK):
        wide = chunk.double()
        powers = wide.square() if p == 2 else wide.abs()
        end = powers.numel() // BLOCK * BLOCK
        if end:
            yield powers[:end].view(-1, BLOCK).sum(1)
        if end < powers.numel():
            yield powers[end:].sum().reshape(1)


def _weighted_sums(tensor: Tensor, weights: Tensor) -> Iterator[Tensor]:
    """Yield the sums of products of a checksum, for each of its chunks."""
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
