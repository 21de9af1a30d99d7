"""Clip with Accelerate, in place of `accelerator.clip_grad_norm_`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from .._backends.torch.backend import BACKEND
from .._core import containers
from .._core.types import Tensor
from ..config.clip_config import ClipConfig
from ..config.clipper import Clipper
from .torch_optimizers import check_engine, check_not_attached, is_attached, parameters_of, skips_step


def clip_(
    accelerator: Accelerator, clip: ClipConfig | Clipper, parameters: Tensor | Iterable[Any], *, step: int | None = None
) -> Tensor | None:
    """Unscale the gradients if a `GradScaler` scaled them. Then clip them in place, before the optimizer's step.

    Call this function on all ranks, after every `accelerator.backward`. It does nothing while Accelerate accumulates
    gradients.

    If the scaler skips the step of an optimizer, the function ignores the gradients of this optimizer. With a fused
    optimizer on a GPU, the function ignores them only if nonfinite is "raise" or "skip". With other values of
    nonfinite, the function clips them and does not wait for the GPU.

    Args:
        accelerator: The accelerator that prepared the model and the optimizer.
        clip: A configuration. To declare a process group or ownership, pass a clipper that `ClipConfig.clipper`
            returned.
        parameters: `model.parameters()`, a single parameter or a dict {name: parameter}. If the configuration selects
            parameters by name, pass `model.named_parameters()`.
        step: The number of this step, counted from 0, for a threshold with a schedule. The default is the number of
            earlier clips.

    Returns:
        The total norm before clipping, a scalar tensor. Return None while Accelerate accumulates gradients, or if the
        scaler skips the steps of all optimizers.

    Raises:
        ValueError: A configuration is attached to an optimizer of these parameters.
        RuntimeError: Accelerate uses DeepSpeed, Megatron-LM or XLA, which do not expose the gradients. FSDP1 shards
            the gradients, but `ownership` is missing.
        TypeError: An entry of `parameters` is not a parameter. The configuration selects parameters by name, but
            `parameters` has no names.
        NonFiniteNormError: The norm is not finite, and nonfinite is "raise".

    Source: unified_clip. The function replaces `accelerate.Accelerator.clip_grad_norm_`.

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
    check_engine([accelerator.distributed_type.value])
    if not accelerator.sync_gradients:
        return None
    parameters = _listed(parameters)
    settings = clip.settings if isinstance(clip, Clipper) else clip
    if accelerator.scaler is None and not any(map(is_attached, accelerator._optimizers)):
        return clip.clip_(parameters, step=step)
    ids = {id(leaf.tensor) for leaf in containers.flatten(BACKEND, parameters).leaves}
    wrappers = [wrapper for wrapper in accelerator._optimizers if not ids.isdisjoint(map(id, parameters_of(wrapper)))]
    for wrapper in wrappers:
        check_not_attached(wrapper)
    if accelerator.scaler is None:
        return clip.clip_(parameters, step=step)
    optimizers, scaler = [wrapper.optimizer for wrapper in wrappers], accelerator.scaler
    skipped = [optimizer for optimizer in optimizers if skips_step(scaler, optimizer, settings)]
    if skipped and len(skipped) == len(optimizers):
        return None
    with _without_gradients([parameter for optimizer in skipped for parameter in parameters_of(optimizer)]):
        return clip.clip_(parameters, step=step)


def _listed(parameters: Any) -> Any:
    if isinstance(parameters, Mapping):
        return {key: _listed(value) for key, value in parameters.items()}
    if type(parameters) is tuple:
        return tuple(map(_listed, parameters))
    return list(map(_listed, parameters)) if isinstance(parameters, Iterator | list) else parameters


@contextmanager
def _without_gradients(parameters: list[Any]) -> Iterator[None]:
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
