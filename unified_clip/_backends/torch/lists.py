"""PyTorch's operations on lists: as many of them, and nearly as many kernels, for a thousand tensors as for ten.

They have no derivative here, and no rule for `vmap`. All tensors are dense, real and not empty. A scalar is one for all
tensors, or a vector of one for each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..._core.types import Scalar, Tensor, Write

WIDE = (torch.float32, torch.float64)
AT_ONCE = 2**26
"""How many elements of 16 bits are widened to float32 at a time: that takes new memory."""


def power_sums(tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Tensor:
    """Return the float64 sum of |g / divisor|**p over each tensor, p being 1 or 2: a vector."""

    def norms(indices: list[int], group: list[Tensor]) -> Tensor:
        if divisor is None:
            return _norms(group, p)
        own = _own(divisor, indices, group)
        if group[0].dtype == torch.float64:
            return _norms(torch._foreach_div(group, own), p)
        return _norms(group, p) / (torch.stack(own) if isinstance(own, list) else own)

    return measured(tensors, norms) ** p


def max_abs(tensors: Sequence[Tensor]) -> Tensor:
    """Return the greatest magnitude of each tensor, NaN if there is any: a vector."""
    return measured(tensors, lambda _, group: _norms(group, math.inf))


def prepare_multiply(tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
    """Prepare products in place. Those of 16 bits take memory when they are written, for a part of them at a time."""
    writes = []
    for indices, group in _parts(tensors):
        own = _own(coef.to(_product_dtype(group)), indices, group)
        write = torch._foreach_mul_ if group[0].dtype in WIDE else _write_products
        writes.append(Write(functools.partial(write, group, own)))
    return writes


def _write_products(group: Sequence[Tensor], coef: Scalar) -> None:
    torch._foreach_copy_(group, _products(group, coef))


def multiplied(tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
    """Return the products, in new tensors."""
    found: dict[int, Tensor] = {}
    for indices, group in _parts(tensors):
        products = _products(group, _own(coef.to(_product_dtype(group)), indices, group))
        narrow = products if group[0].dtype in WIDE else _converted(products, group[0].dtype)
        found.update(zip(indices, narrow, strict=True))
    return [found[index] for index in range(len(tensors))]


def prepare_clamp(tensors: Sequence[Tensor], low: float, high: float) -> list[Write]:
    """Prepare clipping to bounds that their dtype holds and that are not 0: 0 and -0 are not told apart here."""
    return [
        Write(functools.partial(torch._foreach_clamp_min_, tensors, low)),
        Write(functools.partial(torch._foreach_clamp_max_, tensors, high)),
    ]


def stored(scalar: Scalar) -> Scalar:
    """A scalar that a compiled loop reads, and does not compute again at every step: what is strided anew is stored."""
    return scalar.as_strided(scalar.shape, scalar.stride()) if torch.compiler.is_compiling() else scalar


def groups(tensors: Sequence[Tensor]) -> list[tuple[list[int], list[Tensor]]]:
    """Those of one device and dtype, and where they stood."""
    found: dict[Any, tuple[list[int], list[Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        indices, group = found.setdefault((tensor.device, tensor.dtype), ([], []))
        indices.append(index)
        group.append(tensor)
    return list(found.values())


def measured(tensors: Sequence[Tensor], measure: Callable[[list[int], list[Tensor]], Tensor]) -> Tensor:
    """One number for each tensor, as `measure` finds them for a group: a vector on the first tensor's device."""
    parts = [(indices, measure(indices, group).to(tensors[0].device)) for indices, group in groups(tensors)]
    if len(parts) == 1:
        return parts[0][1]
    found = {index: each for indices, part in parts for index, each in zip(indices, part.unbind(), strict=True)}
    return torch.stack([found[index] for index in range(len(tensors))])


def _parts(tensors: Sequence[Tensor]) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Groups of which those that have to be widened hold no more than is widened at a time, or one tensor."""
    for indices, group in groups(tensors):
        start, held = 0, 0
        for index, tensor in enumerate(group):
            if tensor.dtype not in WIDE and index > start and held + tensor.numel() > AT_ONCE:
                yield indices[start:index], group[start:index]
                start, held = index, 0
            held += tensor.numel()
        yield indices[start:], group[start:]


def _norms(group: Sequence[Tensor], p: float) -> Tensor:
    """Return the p-norm of each tensor of a group, in float64: p is 1, 2 or inf."""
    if not (torch.compiler.is_compiling() and group[0].device.type == "cpu"):
        return torch.stack(torch._foreach_norm(group, p, dtype=torch.float64))
    # The compiler makes one loop of a conversion and a sum; PyTorch's own operation on the CPU converts a copy first.
    wide = [tensor.to(torch.float64) for tensor in group]
    if p == math.inf:
        return torch.stack([numbers.abs().max() for numbers in wide])
    if p == 1:
        return torch.stack([numbers.abs().sum() for numbers in wide])
    return torch.stack([(numbers * numbers).sum() for numbers in wide]).sqrt()


def _products(group: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
    return list(torch._foreach_mul(group if group[0].dtype in WIDE else _converted(group, torch.float32), coef))


def _product_dtype(group: Sequence[Tensor]) -> torch.dtype:
    """In which g * coef is taken: coef in 16 bits would be another number."""
    return torch.float64 if group[0].dtype == torch.float64 else torch.float32


def _converted(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    new = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(new, tensors)
    return new


def _own(scalar: Scalar, indices: Sequence[int], group: Sequence[Tensor]) -> Scalar | list[Scalar]:
    """Return a scalar that all share, or each tensor's own of a vector, on the device of a group."""
    scalar = stored(scalar.to(group[0].device))
    if not scalar.dim():
        return scalar
    every = scalar.unbind()
    return [every[index] for index in indices]
