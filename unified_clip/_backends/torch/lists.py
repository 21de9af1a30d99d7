"""PyTorch's operations on lists of tensors: the number of operations does not depend on the number of tensors.

They have no derivative here, and no rule for `vmap`. All tensors are dense, real and not empty. A scalar is one number
for all tensors, or a vector with a number for each tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..._core.types import Scalar, Tensor, Write

WIDE = (torch.float32, torch.float64)
MAX_WIDENED = 2**26
"""At most this many 16-bit elements are converted to float32 together, to limit new memory."""

MULTIPLIES_16_BITS = ("cpu", "cuda")
"""The devices on which PyTorch multiplies a list of 16-bit tensors by a float32 number without a float32 copy."""


def power_sums(tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Tensor:
    """Return the float64 sum of |g / divisor|**p for each tensor, as a vector. p is 1 or 2."""

    def norms(indices: list[int], group: list[Tensor]) -> Tensor:
        if divisor is None:
            return _norms(group, p)
        divisors = _scalars_for(divisor, indices, group)
        if group[0].dtype == torch.float64:
            return _norms(torch._foreach_div(group, divisors), p)
        return _norms(group, p) / (torch.stack(divisors) if isinstance(divisors, list) else divisors)

    return measured(tensors, norms) ** p


def max_abs(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest magnitude of each tensor, as a vector. It is NaN if an element is NaN."""
    return measured(tensors, lambda _, group: _norms(group, math.inf))


def prepare_multiply(tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
    """Prepare the writes of products. Writes allocate nothing: if memory ran out, a list would be partly written."""
    limited_groups = list(_limited_groups(tensors))
    memory = _memory([group for _, group in limited_groups if _needs_copy(group[0])])
    writes = []
    for indices, group in limited_groups:
        coefs = _scalars_for(coef.to(_product_dtype(group)), indices, group)
        if group[0].dtype in WIDE:
            writes.append(Write(functools.partial(torch._foreach_mul_, group, coefs)))
        elif not _needs_copy(group[0]):
            writes.append(Write(functools.partial(torch.autograd.graph.increment_version, group), lambda: None))
            writes.append(Write(functools.partial(_multiply_16_bits, group, coefs, _ignored_flag(group))))
        else:
            wide = _float32_like(group, memory.get(group[0].device))
            writes.append(Write(functools.partial(_write_products, group, wide, coefs)))
    return writes


def _memory(narrow_groups: Sequence[Sequence[Tensor]]) -> dict[torch.device, Tensor]:
    """Return float32 memory for each device's largest group of 16-bit tensors, unless a compiler plans the memory."""
    sizes: dict[torch.device, int] = {}
    for group in () if torch.compiler.is_compiling() else narrow_groups:
        device = group[0].device
        sizes[device] = max(sizes.get(device, 0), sum(tensor.numel() for tensor in group))
    return {device: torch.empty(size, dtype=torch.float32, device=device) for device, size in sizes.items()}


def _float32_like(group: Sequence[Tensor], memory: Tensor | None) -> list[Tensor]:
    """Return float32 tensors with the shapes and strides of a group's tensors, one after the other in `memory`."""
    if memory is None:
        return [torch.empty_like(tensor, dtype=torch.float32) for tensor in group]
    wide, start = [], 0
    for tensor in group:
        strides = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
        wide.append(memory.as_strided(tensor.shape, strides, start))
        start += tensor.numel()
    return wide


def _write_products(group: Sequence[Tensor], wide: Sequence[Tensor], coef: Scalar) -> None:
    """Write the products of 16-bit tensors into them. `wide`: float32 tensors of their shapes, for the computation."""
    torch._foreach_copy_(wide, group)
    torch._foreach_mul_(wide, coef)
    torch._foreach_copy_(group, wide)


def multiplied(tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
    """Return the products of tensors with a coefficient, in new tensors."""
    results: dict[int, Tensor] = {}
    for indices, group in _limited_groups(tensors):
        products = _products(group, _scalars_for(coef.to(_product_dtype(group)), indices, group))
        results.update(zip(indices, products, strict=True))
    return [results[index] for index in range(len(tensors))]


def prepare_clamp(tensors: Sequence[Tensor], low: float, high: float) -> list[Write]:
    """Prepare the writes that clamp tensors to bounds, which are rounded to their dtype.

    A bound must not be 0, because PyTorch may replace -0 by 0.
    """
    return [
        Write(functools.partial(torch._foreach_clamp_min_, tensors, low)),
        Write(functools.partial(torch._foreach_clamp_max_, tensors, high)),
    ]


def stored(scalar: Scalar) -> Scalar:
    """Return the same scalar. A compiled loop reads it from memory, instead of computing it again in every step."""
    return scalar.as_strided(scalar.shape, scalar.stride()) if torch.compiler.is_compiling() else scalar


def groups(tensors: Sequence[Tensor]) -> list[tuple[list[int], list[Tensor]]]:
    """Group tensors by device and dtype. Return (indices, tensors) of each group."""
    by_kind: dict[Any, tuple[list[int], list[Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        indices, group = by_kind.setdefault((tensor.device, tensor.dtype), ([], []))
        indices.append(index)
        group.append(tensor)
    return list(by_kind.values())


def measured(tensors: Sequence[Tensor], measure: Callable[[list[int], list[Tensor]], Tensor]) -> Tensor:
    """Return a number for each tensor, as a vector on the first tensor's device.

    measure: A function that gets the indices and the tensors of a group, and returns the numbers of this group.
    """
    vectors = [(indices, measure(indices, group).to(tensors[0].device)) for indices, group in groups(tensors)]
    if len(vectors) == 1:
        return vectors[0][1]
    numbers = {i: number for indices, vector in vectors for i, number in zip(indices, vector.unbind(), strict=True)}
    return torch.stack([numbers[index] for index in range(len(tensors))])


def _limited_groups(tensors: Sequence[Tensor]) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield (indices, tensors) of groups. Groups that need float32 copies have at most MAX_WIDENED elements, or one
    tensor.
    """
    for indices, group in groups(tensors):
        start, elements = 0, 0
        for index, tensor in enumerate(group):
            if _needs_copy(tensor) and index > start and elements + tensor.numel() > MAX_WIDENED:
                yield indices[start:index], group[start:index]
                start, elements = index, 0
            elements += tensor.numel()
        yield indices[start:], group[start:]


def _needs_copy(tensor: Tensor) -> bool:
    """Return whether a tensor is multiplied in a float32 copy, so that each product is rounded once."""
    if tensor.dtype in WIDE:
        return False
    return torch.compiler.is_compiling() or tensor.device.type not in MULTIPLIES_16_BITS


def _multiply_16_bits(group: Sequence[Tensor], coefs: Scalar | list[Scalar], flag: Tensor) -> None:
    """Multiply 16-bit tensors in place by float32 coefficients.

    The operation is the one with which PyTorch's GradScaler divides gradients by the loss scale. It computes in
    float32, and does not increment the version counters that autograd checks.
    """
    if isinstance(coefs, list):
        for tensor, coef in zip(group, coefs, strict=True):
            torch._amp_foreach_non_finite_check_and_unscale_([tensor], flag, coef)
    else:
        torch._amp_foreach_non_finite_check_and_unscale_(group, flag, coefs)


def _ignored_flag(group: Sequence[Tensor]) -> Tensor:
    """Return memory in which `_multiply_16_bits` marks infinite elements and NaN."""
    return torch.empty(1, dtype=torch.float32, device=group[0].device)


def _norms(group: Sequence[Tensor], p: float) -> Tensor:
    """Return the p-norm of each tensor of a group in float64, as a vector. p is 1, 2 or inf."""
    if not (torch.compiler.is_compiling() and group[0].device.type == "cpu"):
        return torch.stack(torch._foreach_norm(group, p, dtype=torch.float64))
    # The compiler fuses a conversion with a sum; PyTorch's own operation on the CPU would convert a copy first.
    wide = [tensor.to(torch.float64) for tensor in group]
    if p == math.inf:
        return torch.stack([numbers.abs().max() for numbers in wide])
    if p == 1:
        return torch.stack([numbers.abs().sum() for numbers in wide])
    return torch.stack([(numbers * numbers).sum() for numbers in wide]).sqrt()


def _products(group: Sequence[Tensor], coef: Scalar | list[Scalar]) -> list[Tensor]:
    if group[0].dtype in WIDE:
        return list(torch._foreach_mul(group, coef))
    if not _needs_copy(group[0]):
        products = _converted(group, group[0].dtype)
        _multiply_16_bits(products, coef, _ignored_flag(group))
        return products
    return _converted(torch._foreach_mul(_converted(group, torch.float32), coef), group[0].dtype)


def _product_dtype(group: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype in which to multiply a group: float32 for 16 bits, so that no precision is lost."""
    return torch.float64 if group[0].dtype == torch.float64 else torch.float32


def _converted(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    new = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(new, tensors)
    return new


def _scalars_for(scalar: Scalar, indices: Sequence[int], group: Sequence[Tensor]) -> Scalar | list[Scalar]:
    """Return the scalar for a group, or the scalars of its tensors as a list, on the group's device."""
    scalar = stored(scalar.to(group[0].device))
    if not scalar.dim():
        return scalar
    scalars = scalar.unbind()
    return [scalars[index] for index in indices]
