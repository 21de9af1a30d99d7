"""Sums on the host of PyTorch's tensors anywhere, for what processes add up: float64 over blocks where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..._compute import checksums, kernels
from ..._compute.device import norm_dtype
from ..._core.exact import BLOCK, Accumulator
from ..._core.types import Tensor
from . import arithmetic

CHUNK = 1024 * BLOCK
"""Elements that are widened to float64 at a time."""

ROWS = 32
"""Chunks of a checksum that are widened to int64 at a time."""

NAMES = {
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64",
    torch.complex64: "complex64", torch.complex128: "complex128",
}  # fmt: skip


class TorchSums:
    """`PartialSums` of tensors that are not in the CPU's memory, or that something watches."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self.norm_dtype = norm_dtype([NAMES[tensor.dtype] for tensor in tensors])

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        if exactly or self.norm_dtype == "float64" or any(map(_is_hard, self._tensors)):
            return kernels.power_sum(self._magnitudes(p), p, self.norm_dtype, exactly=True)
        sums = [total for tensor in self._tensors for total in _block_sums(tensor, p)]
        if not sums:
            return Accumulator()
        together = torch.cat([total.to(sums[0].device) for total in sums])
        found = kernels.power_sum([(together.cpu().numpy(), "float64")], 1, "float64", exactly=True)
        flags = Accumulator(nan=found.nan, infinite=found.infinite)
        return Accumulator.from_block_sums(found.total) + flags

    def max_abs(self, dtype: str) -> float:
        return kernels.max_abs(self._magnitudes(float("inf")), dtype)

    def checksum(self) -> int:
        """As `checksums.checksum` computes it, on the tensors' own devices."""
        numbers = torch.from_numpy(checksums.weights().view("int64"))
        weights = {device: numbers.to(device) for device in {tensor.device for tensor in self._tensors}}
        sums = [each for tensor in self._tensors for each in _weighted_sums(tensor, weights[tensor.device])]
        together = torch.cat([each.to(sums[0].device) for each in sums]).tolist() if sums else []  # one wait for it
        return checksums.combined(total % 2**64 for total in together)

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        return kernels.relative_sum(self._magnitudes(p), p, top)

    def general_root(self, total: tuple[float, float], p: float, top: float, dtype: str) -> float:
        return kernels.general_root(total, p, top, dtype)

    def _magnitudes(self, p: float) -> list[tuple[kernels.Array, str]]:
        """Copies on the host."""
        parts = []
        for tensor in self._tensors:
            here = tensor.cpu().resolve_conj().resolve_neg().contiguous()
            dtype = NAMES[here.dtype]
            view = here.view(torch.uint16).numpy() if dtype == "bfloat16" else here.numpy()
            parts += kernels.real_parts(view, dtype, p)
        return parts


def _is_hard(tensor: Tensor) -> bool:
    """Return whether float64 sums on its device are not what is needed."""
    return tensor.is_complex() or arithmetic.lacks_float64(tensor)


def _block_sums(tensor: Tensor, p: int) -> Iterator[Tensor]:
    """Sums over at most BLOCK elements each, the terms of which are exact."""
    for chunk in tensor.reshape(-1).split(CHUNK):
        wide = chunk.double()
        terms = wide.square() if p == 2 else wide.abs()
        whole = terms.numel() // BLOCK * BLOCK
        if whole:
            yield terms[:whole].view(-1, BLOCK).sum(1)
        if whole < terms.numel():
            yield terms[whole:].sum().reshape(1)


def _weighted_sums(tensor: Tensor, weights: Tensor) -> Iterator[Tensor]:
    """Return the sums of products of a checksum, of each of its chunks."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    bits = flat.view(torch.int16 if flat.element_size() == 2 else torch.int32)
    mask = 2**16 - 1 if bits.dtype == torch.int16 else 2**32 - 1
    for part in bits.split(ROWS * checksums.CHUNK):
        width = min(max(len(part), 1), checksums.CHUNK)
        whole = len(part) // width * width
        if whole:
            yield ((part[:whole].view(-1, width).long() & mask) * weights[:width]).sum(1) + width
        if rest := len(part) - whole:
            yield ((part[whole:].long() & mask) * weights[:rest]).sum().reshape(1) + rest
