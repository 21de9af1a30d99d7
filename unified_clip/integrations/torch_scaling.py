"""Gradients that a `torch.amp.GradScaler` has scaled: clipping is of what they are without the scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..config.schema import Settings


def unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Unscale the gradients, unless that has been done since the last step; whether any is not finite, per device."""
    if not scaler._found_inf_per_device(optimizer):
        scaler.unscale_(optimizer)
    return list(scaler._found_inf_per_device(optimizer).values())


def leaves_out(scaler: Any, optimizer: torch.optim.Optimizer, settings: Settings) -> bool:
    """Unscale the gradients, and say whether the scaler leaves the step out.

    Unless the optimizer is fused, `GradScaler.step` waits for that answer too, right afterwards: to wait costs nothing.
    """
    found = unscaled(scaler, optimizer)
    return is_left_out(found, settings, is_awaited=not getattr(optimizer, "_step_supports_amp_scaling", False))


def is_left_out(found: Iterable[torch.Tensor], settings: Settings, *, is_awaited: bool = False) -> bool:
    """Whether the scaler leaves the step out, which is its way to find a scale, and no error.

    On a GPU the answer is waited for only where somebody waits anyway: the scaler, or the configuration.
    """
    waits = is_awaited or settings.nonfinite in ("raise", "skip")
    return any(bool(each) for each in found if waits or each.device.type == "cpu")


@contextmanager
def without_scale(optimizer: Any, gradients: Sequence[torch.Tensor]) -> Iterator[None]:
    """Take the scale from gradients, in place, in the place of a fused optimizer's step, which would do it later.

    After an error they are as they were, to rounding (exactly, where the scale is a power of two and no gradient
    without it is below the normal numbers or overflows), and the optimizer is as before `GradScaler.step`, which would
    leave it with what it had told it for good.
    """
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        _multiply(gradients, scale.double().reciprocal().float())  # as GradScaler.unscale_ does
        optimizer.grad_scale = None
    try:
        yield
    except BaseException:
        if scale is not None:
            _multiply(gradients, scale)
        if hasattr(optimizer, "found_inf"):
            del optimizer.grad_scale, optimizer.found_inf
        raise


def _multiply(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    by_device = defaultdict(list)
    for tensor in tensors:
        by_device[tensor.device].append(tensor)
    with torch.no_grad():
        for device, group in by_device.items():
            torch._foreach_mul_(group, factor.to(device, non_blocking=True))
