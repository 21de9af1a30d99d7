"""Record PyTorch's own clipping functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .base import Observer, clip_parameters, wrap

NAMES = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
"""`clip_grad_norm_` and others call the private one, of which the public one is a copy."""


def install(observer: Observer) -> None:
    for name in NAMES:
        wrap([(torch.nn.utils.clip_grad, name), (torch.nn.utils, name)], lambda function: _watched(observer, function))


def _watched(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    recorded = observer.around(clip_parameters)(function)

    def watched(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if torch.compiler.is_compiling() else recorded(*args, **kwargs)

    return watched
