"""Accelerate: clipping where `accelerator.clip_grad_norm_` stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from .._core.ops import Tensor
from ..config.clip_config import ClipConfig
from ..config.clipper import Clipper
from . import torch_scaling
from .torch_engines import check_within_reach


def clip_(
    accelerator: Accelerator, clip: ClipConfig | Clipper, parameters: Iterable[Any], *, step: int | None = None
) -> Tensor | None:
    """Clip in place before the optimizer's step; what a `GradScaler` has scaled is unscaled first.

    Call it after every `accelerator.backward`: while gradients accumulate it does nothing. Gradients of an optimizer
    whose step the scaler will leave out are not clipped, and not counted in the norm; on a GPU only the device knows
    that of a fused optimizer, and unless nonfinite is "raise" or "skip" they are clipped as all others.

    Args:
        accelerator: The accelerator that has prepared model and optimizer.
        clip: A configuration, or its `clipper(...)`, which may state who holds gradients that do not tell.
        parameters: `model.parameters()`, or `model.named_parameters()`, which patterns of names need.
        step: For a threshold with a schedule. None: clips are counted.

    Returns:
        The total norm before clipping, a scalar tensor; None where nothing was clipped: while gradients accumulate, and
        where the scaler will leave out the steps of all optimizers that have them.

    Raises:
        RuntimeError: The gradients are out of reach (DeepSpeed, Megatron-LM, XLA), or those of FSDP1, and nothing is
            stated of them.

    Source: none, it is our own; `accelerate.Accelerator.clip_grad_norm_` stands at the same place.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from unified_clip import ClipConfig
        >>> from unified_clip.integrations.accelerate_clip import clip_
        >>> accelerator = Accelerator(cpu=True)
        >>> model = accelerator.prepare(torch.nn.Linear(4, 1))
        >>> accelerator.backward(model(torch.ones(2, 4)).sum())
        >>> clip_(accelerator, ClipConfig(rule="global_norm", threshold=1.0), [model.weight])
        tensor(4.)
    """
    check_within_reach([accelerator.distributed_type.value])
    if not accelerator.sync_gradients:
        return None
    parameters = list(parameters)
    settings = clip.settings if isinstance(clip, Clipper) else clip
    if accelerator.scaler is None:
        return clip.clip_(parameters, step=step)
    given = {id(each[1] if isinstance(each, tuple) else each) for each in parameters}
    owners = [each.optimizer for each in accelerator._optimizers if any(id(own) in given for own in _owned(each))]
    left_out = [each for each in owners if torch_scaling.leaves_out(accelerator.scaler, each, settings)]
    if left_out and len(left_out) == len(owners):
        return None
    with _set_aside([parameter for optimizer in left_out for parameter in _owned(optimizer)]):
        return clip.clip_(parameters, step=step)


def _owned(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@contextmanager
def _set_aside(parameters: list[Any]) -> Iterator[None]:
    """Without their gradients, and not without them: names may go by position."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
