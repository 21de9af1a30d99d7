"""Compute the sum of |g|**p over the gradients of one rank.

The device adds up blocks in float64, and the host adds up the block sums as integers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from ..._compute import checksums, host, kernels
from ..._compute.device import norm_dtype
from ..._core.backend import Backend
from ..._core.exact import BLOCK, Accumulator
from ..._core.types import Tensor
from . import operations

CHUNK = 1024 * BLOCK

ROWS = 32


class LocalSums:
    """Sums and maxima of this rank's tensors. The CPU computes exact sums, sums for float64 norms, and maxima."""

    def __init__(self, backend: Backend, tensors: Sequence[Tensor]) -> None:
        self._backend, self._tensors = backend, [tensor.detach() for tensor in tensors]
        self.norm_dtype = norm_dtype([backend.dtype(tensor) for tensor in tensors])

    @functools.cached_property
    def _on_host(self) -> host.HostPath:
        copies = [tensor.cpu().resolve_conj().resolve_neg() for tensor in self._tensors]
        return host.HostPath(self._backend, copies)

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
