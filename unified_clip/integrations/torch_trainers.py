"""What the integrations with PyTorch share: gradients of a `torch.amp.GradScaler`, and engines that hide gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..config.schema import Settings


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def unscale(scaler: Any, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    if not scaler._found_inf_per_device(optimizer):
        scaler.unscale_(optimizer)
    return list(scaler._found_inf_per_device(optimizer).values())


def skips_step(scaler: Any, optimizer: torch.optim.Optimizer, settings: Settings) -> bool:
    """Unscale the gradients, and return whether the scaler skips the step."""
    waits = not getattr(optimizer, "_step_supports_amp_scaling", False)
    return is_skipped(unscale(scaler, optimizer), settings, waits=waits)


def is_skipped(flags: Iterable[torch.Tensor], settings: Settings, *, waits: bool = False) -> bool:
    """Return whether the scaler skips the step. Ignore flags on a GPU if the call must not wait for the GPU."""
    waits = waits or settings.nonfinite in ("raise", "skip")
    return any(bool(flag) for flag in flags if waits or flag.device.type == "cpu")


@contextmanager
def without_scale(optimizer: Any, gradients: Sequence[torch.Tensor]) -> Iterator[None]:
    """Unscale gradients before the `with` block. A fused optimizer would unscale them after the clip."""
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


# -- trainers

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's configuration",
    "DeepSpeedStrategy": "gradient_clip_val of the Trainer",
    "MEGATRON_LM": "gradient_clipping of Accelerate's MegatronLMPlugin",
    "XLA": "max_grad_norm of TrainingArguments, or accelerator.clip_grad_norm_ in a training loop of your own",
    "XLAStrategy": "gradient_clip_val of the Trainer",
}
"""{engine of Accelerate or Lightning: the setting that makes the engine clip}."""

TWO_CALLBACKS = (
    "The Trainer has two ClipCallbacks, which would clip gradients twice. Remove one. For separate thresholds, set "
    "`groups` in one configuration: see docs/config.md."
)


def check_engine(kinds: Iterable[str]) -> None:
    """Raise RuntimeError if a training engine does not expose the gradients of a step."""
    for kind in kinds:
        if kind in INSTEAD:
            advice = f"Remove the clip of unified_clip. To clip, use {INSTEAD[kind]}."
            raise RuntimeError(f"{kind} does not expose the gradients of a step. {advice}")
