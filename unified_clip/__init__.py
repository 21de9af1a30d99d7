"""Gradient clipping with the same semantics on PyTorch, TensorFlow, Paddle, JAX, MLX and NumPy.

The functions of this module accept tensors of any framework, and import only the framework of these tensors. Each
framework also has a module with the same functions: `unified_clip.torch`, `.tensorflow`, `.paddle`, `.jax`, `.mlx` and
`.numpy`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _api, _compilers, _dispatch
from ._api import classes as _classes
from ._api import settings as _settings
from ._api import tensorflow_functions as _tensorflow_functions
from ._api import torch_functions as _torch_functions
from ._api.framework import Framework as _Framework
from .errors import ClipWarning, ConfigError, NonFiniteNormError, NotRepresentableError, PartlyClippedError
from .recording.recorder import record

__version__ = "0.2.0"

_compilers.watch()

_FRAMEWORK = _Framework[Any, Any](__name__, _dispatch.resolve)

clip_grad_norm_ = _FRAMEWORK.bind(_torch_functions.clip_grad_norm_)
clip_grad_value_ = _FRAMEWORK.bind(_torch_functions.clip_grad_value_)
get_total_norm = _FRAMEWORK.bind(_torch_functions.get_total_norm)
clip_grads_with_norm_ = _FRAMEWORK.bind(_torch_functions.clip_grads_with_norm_)
clip_by_global_norm = _FRAMEWORK.bind(_tensorflow_functions.clip_by_global_norm)
clip_by_norm = _FRAMEWORK.bind(_tensorflow_functions.clip_by_norm)
clip_by_value = _FRAMEWORK.bind(_tensorflow_functions.clip_by_value)
global_norm = _FRAMEWORK.bind(_tensorflow_functions.global_norm)
set_gradient_clip = _FRAMEWORK.bind(_settings.set_gradient_clip)
append_gradient_clip_ops = _FRAMEWORK.bind(_settings.append_gradient_clip_ops)


class GradientClipByValue(_classes.GradientClipByValue, framework=_FRAMEWORK): ...


class GradientClipByNorm(_classes.GradientClipByNorm, framework=_FRAMEWORK): ...


class GradientClipByGlobalNorm(_classes.GradientClipByGlobalNorm, framework=_FRAMEWORK): ...


class ErrorClipByValue(_classes.ErrorClipByValue, framework=_FRAMEWORK): ...


ClipGradByValue, ClipGradByNorm = GradientClipByValue, GradientClipByNorm
ClipGradByGlobalNorm = GradientClipByGlobalNorm

if TYPE_CHECKING:
    from .config.clip_config import ClipConfig as ClipConfig
    from .suggest import suggest_threshold as suggest_threshold

_LATER = {"ClipConfig": "config.clip_config", "suggest_threshold": "suggest"}
"""{name that needs the extra `config`: its module}. `__all__` lacks these names."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(__name__):
            raise
        from ._kit import install

        message = f"{name} needs {error.name}. Install the extra `config`: {install.command('config')}"
        raise ModuleNotFoundError(message, name=error.name) from None


def native_available(in_graphs_of: str | None = None) -> bool:
    """Return whether clips on a CPU use the compiled kernels.

    Without kernels, clips in eager mode use NumPy, which is slower and computes the same bits. Compiled graphs
    without kernels compute the norm by operations of the framework, and the last bit of the norm can differ.
    `docs/contract.md` lists the compiled graphs that use kernels.

    Args:
        in_graphs_of: Check compiled graphs of "torch", "tensorflow", "paddle", "jax", "mlx" or "numpy". The call
            imports this framework. By default, the function checks clips in eager mode.

    Raises:
        ValueError: The name of the framework is unknown.
        ModuleNotFoundError: The framework is not installed.

    Example:
        >>> import unified_clip
        >>> unified_clip.native_available() in (True, False)
        True
        >>> unified_clip.native_available("numpy")
        False
    """
    from ._native import KERNELS

    if in_graphs_of is None:
        return KERNELS is not None
    return KERNELS is not None and _dispatch.backend_named(in_graphs_of).kernels_in_graphs()


__all__ = [
    *_api.__all__,
    "ClipWarning",
    "ConfigError",
    "NonFiniteNormError",
    "NotRepresentableError",
    "PartlyClippedError",
    "native_available",
    "record",
]
