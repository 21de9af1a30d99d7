"""Watch PyTorch's own clipping functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ...tensors.frameworks.torch import Converter
from ...tensors.types import Dense, densify
from .base import NativeCall, ObservedTensors, Observer, wrap

EPS = 1e-6


def install(observer: Observer) -> None:
    for name in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_"):
        homes = [(torch.nn.utils.clip_grad, name), (torch.nn.utils, name)]
        wrap([home for home in homes if hasattr(*home)], lambda function: _watched(observer, function))
    private = "_clip_grads_with_norm_"  # clip_grad_norm_ and others call this one; the public name is a copy
    if hasattr(torch.nn.utils.clip_grad, private):
        wrap([(torch.nn.utils.clip_grad, private)], lambda function: _watched(observer, function))


def _watched(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        with observer.outermost() as is_outermost:
            if not is_outermost:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            given = next(iter(bound.arguments))
            if not torch.is_tensor(bound.arguments[given]):
                bound.arguments[given] = list(bound.arguments[given])
            parameters = bound.arguments[given]
            parameters = [parameters] if torch.is_tensor(parameters) else parameters
            held = [each for each in parameters if getattr(each, "grad", None) is not None]
            before = [_read(each.grad) for each in held]
            weights = [_read(each) for each in held]
            result = function(*bound.args, **bound.kwargs)
            observer.record(
                _describe_call(function.__name__, bound.arguments),
                ObservedTensors(before, [_read(each.grad) for each in held], weights),
            )
            return result

    return watched


def _describe_call(name: str, arguments: dict[str, Any]) -> NativeCall:
    name = f"torch.nn.utils.{name.lstrip('_')}"
    if "clip_value" in arguments:
        threshold = float(arguments["clip_value"])
        return NativeCall(name, "torch", "value", (-threshold, threshold), None, None)
    order, threshold = float(arguments.get("norm_type", 2.0)), float(arguments["max_norm"])
    given = float(arguments["total_norm"]) if "total_norm" in arguments else None
    return NativeCall(name, "torch", "global", threshold, order, EPS, given)


def _read(tensor: Any) -> Dense:
    found = densify(Converter().read(tensor.clone()))
    assert found is not None
    return found
