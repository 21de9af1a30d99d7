"""Record PyTorch's own clipping functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .base import OBSERVER, clip_parameters
from .hooks import HOOKS

NAMES = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
"""PyTorch's clip functions. `clip_grad_norm_` calls the private function, of which the public one is a copy."""


def install() -> None:
    for name in NAMES:
        HOOKS.wrap([(torch.nn.utils.clip_grad, name), (torch.nn.utils, name)], _watched)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    recorded = OBSERVER.around(clip_parameters)(function)

    def watched(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if torch.compiler.is_compiling() else recorded(*args, **kwargs)

    return watched
