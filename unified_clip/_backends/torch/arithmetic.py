"""Float64 operations on single PyTorch tensors, for the device path. Products are rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..._compute.device import relative_powers
from ..._core.types import Deferred, Scalar, Tensor

HALF = (torch.float16, torch.bfloat16)
WITHOUT_FLOAT64 = ("mps",)


def lacks_float64(tensor: Tensor) -> bool:
    return tensor.device.type in WITHOUT_FLOAT64


def widened(tensor: Tensor) -> Tensor:
    """Convert to float64 or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def magnitudes(wide: Tensor) -> Tensor:
    """Unlike PyTorch's `abs`, return NaN for inf + nan j."""
    return torch.where(wide.isnan(), math.nan, wide.abs()) if wide.is_complex() else wide.abs()


def powers(tensor: Tensor, p: float, divisor: Scalar | None) -> Tensor:
    wide = widened(tensor)
    numbers = wide if p == 2 else magnitudes(wide)
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    if divisor is not None:
        divisor = divisor.to(wide.device)
    if divisor is not None and p in (1, 2):
        numbers = numbers / (divisor.unsqueeze(-1) if numbers.dim() > wide.dim() and divisor.dim() else divisor)
    if p == 2:
        squares = numbers * numbers
        return squares.sum(-1) if wide.is_complex() else squares
    if p == 1:
        return numbers
    assert divisor is not None  # for p other than 1 and 2, callers pass a divisor
    return relative_powers(numbers, p, divisor, where=torch.where, log=torch.log, exp=torch.exp)


def product(tensor: Tensor, coef: Scalar) -> Tensor:
    coef = coef.to(tensor.device)
    if tensor.dtype == torch.float64:
        return tensor * coef
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj())
        return torch.view_as_complex(product(parts, coef.unsqueeze(-1) if coef.dim() else coef))
    return (tensor.to(torch.float32) * coef.to(torch.float32)).to(tensor.dtype)


def read_later(scalars: Sequence[Tensor]) -> Deferred:
    numbers = [scalar.detach() for scalar in scalars]
    events = {number.device: torch.cuda.Event() for number in numbers if number.is_cuda}
    if not events:
        return Deferred(lambda: [number.tolist() for number in numbers])
    # Copy into pinned memory now. A later read would wait for kernels that are queued until then.
    copies = [number.to("cpu", non_blocking=number.is_cuda) for number in numbers]
    for device, event in events.items():
        event.record(torch.cuda.current_stream(device))

    def values() -> list[Any]:
        for event in events.values():
            event.synchronize()
        return [copy.tolist() for copy in copies]

    return Deferred(values, lambda: all(event.query() for event in events.values()))
