"""Operations of PyTorch, for the device path: first on single tensors, then on lists. Products are rounded once.

The operations on lists record no derivatives, and do not support `vmap`. Their number does not depend on the number of
tensors. All tensors of a list are dense, real and not empty. `coef` and `divisor` are one number for all tensors, or a
vector with a number for each tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..._compute.device import relative_powers
from ..._core.types import Deferred, Scalar, Tensor, Write

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


# -- on lists

WIDE = (torch.float32, torch.float64)
MAX_WIDENED = 2**26
"""The maximum number of 16-bit elements that are converted to float32 together, to limit the memory for the copies."""

ALONE = 2**16
"""16-bit GPU tensors of at least this length are multiplied one by one, without float32 copies."""


def power_sums(tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Tensor:
    """Return a vector with the float64 sum of |g / divisor|**p for each tensor. p is 1 or 2."""

    def norms(indices: list[int], group: list[Tensor]) -> Tensor:
        if divisor is None:
            return _norms(group, p)
        divisors = _scalars_for(divisor, indices, group)
        if group[0].dtype == torch.float64:
            return _norms(torch._foreach_div(group, divisors), p)
        return _norms(group, p) / (torch.stack(divisors) if isinstance(divisors, list) else divisors)

    return measured(tensors, norms) ** p


def max_abs(tensors: Sequence[Tensor]) -> Tensor:
    return measured(tensors, lambda _, group: _norms(group, math.inf))


def prepare_multiply(tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
    """Allocate all memory before the first write."""
    limited_groups = list(_limited_groups(tensors))
    memory = _memory([group for _, group in limited_groups if not (group[0].dtype in WIDE or _is_alone(group[0]))])
    writes = []
    for indices, group in limited_groups:
        coefs = _scalars_for(coef.to(_product_dtype(group)), indices, group)
        if _is_alone(group[0]):
            writes.append(Write(functools.partial(_multiply_alone, group, coefs, group)))
        elif group[0].dtype in WIDE:
            writes.append(Write(functools.partial(torch._foreach_mul_, group, coefs)))
        else:
            wide = _float32_like(group, memory.get(group[0].device))
            writes.append(Write(functools.partial(_write_products, group, wide, coefs)))
    return writes


def _memory(narrow_groups: Sequence[Sequence[Tensor]]) -> dict[torch.device, Tensor]:
    sizes: dict[torch.device, int] = {}
    for group in () if torch.compiler.is_compiling() else narrow_groups:
        device = group[0].device
        sizes[device] = max(sizes.get(device, 0), sum(tensor.numel() for tensor in group))
    return {device: torch.empty(size, dtype=torch.float32, device=device) for device, size in sizes.items()}


def _float32_like(group: Sequence[Tensor], memory: Tensor | None) -> list[Tensor]:
    if memory is None:
        return [torch.empty_like(tensor, dtype=torch.float32) for tensor in group]
    wide, start = [], 0
    for tensor in group:
        strides = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
        wide.append(memory.as_strided(tensor.shape, strides, start))
        start += tensor.numel()
    return wide


def _write_products(group: Sequence[Tensor], wide: Sequence[Tensor], coef: Scalar) -> None:
    """wide: Memory for the float32 products."""
    torch._foreach_copy_(wide, group)
    torch._foreach_mul_(wide, coef)
    torch._foreach_copy_(group, wide)


def multiplied(tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
    results: dict[int, Tensor] = {}
    for indices, group in _limited_groups(tensors):
        products = _products(group, _scalars_for(coef.to(_product_dtype(group)), indices, group))
        results.update(zip(indices, products, strict=True))
    return [results[index] for index in range(len(tensors))]


def prepare_clamp(tensors: Sequence[Tensor], low: float, high: float) -> list[Write]:
    """Round the bounds to the tensors' dtype first. Do not pass a bound of 0: PyTorch might turn -0.0 into 0.0."""
    return [
        Write(functools.partial(torch._foreach_clamp_min_, tensors, low)),
        Write(functools.partial(torch._foreach_clamp_max_, tensors, high)),
    ]


def stored(scalar: Scalar) -> Scalar:
    """Store a scalar in memory, so that a compiled loop does not compute it again in every step."""
    return scalar.as_strided(scalar.shape, scalar.stride()) if torch.compiler.is_compiling() else scalar


def groups(
    tensors: Sequence[Tensor], condition: Callable[[Tensor], bool] | None = None
) -> list[tuple[list[int], list[Tensor]]]:
    """Group tensors by device, dtype and result of the condition. Return (indices, tensors) of each group."""
    by_kind: dict[Any, tuple[list[int], list[Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        indices, group = by_kind.setdefault((tensor.device, tensor.dtype, condition and condition(tensor)), ([], []))
        indices.append(index)
        group.append(tensor)
    return list(by_kind.values())


def measured(tensors: Sequence[Tensor], measure: Callable[[list[int], list[Tensor]], Tensor]) -> Tensor:
    vectors = [(indices, measure(indices, group).to(tensors[0].device)) for indices, group in groups(tensors)]
    if len(vectors) == 1:
        return vectors[0][1]
    numbers = {i: number for indices, vector in vectors for i, number in zip(indices, vector.unbind(), strict=True)}
    return torch.stack([numbers[index] for index in range(len(tensors))])


def _limited_groups(tensors: Sequence[Tensor]) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield (indices, tensors). A group of several tensors has at most MAX_WIDENED 16-bit elements.

    Each large 16-bit tensor (see ALONE) is its own group.
    """
    for indices, group in groups(tensors, _is_alone):
        start, elements = 0, 0
        for index, tensor in enumerate(group):
            if tensor.dtype not in WIDE and index > start and elements + tensor.numel() > MAX_WIDENED:
                yield indices[start:index], group[start:index]
                start, elements = index, 0
            elements += tensor.numel()
        yield indices[start:], group[start:]


def _is_alone(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype not in WIDE and tensor.numel() >= ALONE and not torch.compiler.is_compiling()


def _multiply_alone(group: Sequence[Tensor], coefs: Scalar | list[Scalar], results: Sequence[Tensor]) -> None:
    """Give the coefficient an axis, so that PyTorch multiplies in float32."""
    factors = coefs if isinstance(coefs, list) else [coefs] * len(group)
    for tensor, coef, result in zip(group, factors, results, strict=True):
        torch.mul(tensor, coef.reshape(1), out=result)


def _norms(group: Sequence[Tensor], p: float) -> Tensor:
    if not (torch.compiler.is_compiling() and group[0].device.type == "cpu"):
        return torch.stack(torch._foreach_norm(group, p, dtype=torch.float64))
    # The compiler fuses a conversion with a sum. PyTorch's own operation on the CPU would convert a copy first.
    wide = [tensor.to(torch.float64) for tensor in group]
    if p == math.inf:
        return torch.stack([numbers.abs().max() for numbers in wide])
    if p == 1:
        return torch.stack([numbers.abs().sum() for numbers in wide])
    return torch.stack([(numbers * numbers).sum() for numbers in wide]).sqrt()


def _products(group: Sequence[Tensor], coef: Scalar | list[Scalar]) -> list[Tensor]:
    if _is_alone(group[0]):
        products = list(map(torch.empty_like, group))
        _multiply_alone(group, coef, products)
        return products
    if group[0].dtype in WIDE:
        return list(torch._foreach_mul(group, coef))
    return _converted(torch._foreach_mul(_converted(group, torch.float32), coef), group[0].dtype)


def _product_dtype(group: Sequence[Tensor]) -> torch.dtype:
    """Return float32 for 16-bit tensors, so that the multiplication loses no precision."""
    return torch.float64 if group[0].dtype == torch.float64 else torch.float32


def _converted(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    new = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(new, tensors)
    return new


def _scalars_for(scalar: Scalar, indices: Sequence[int], group: Sequence[Tensor]) -> Scalar | list[Scalar]:
    scalar = stored(scalar.to(group[0].device))
    if not scalar.dim():
        return scalar
    scalars = scalar.unbind()
    return [scalars[index] for index in indices]
