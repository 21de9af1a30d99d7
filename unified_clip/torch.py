# `python tools/namespaces.py` writes this file from tools/namespaces.toml.
# fmt: off
"""Clip gradients on PyTorch. In-place functions take parameters and clip their `.grad`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ._api import classes, functions, settings
from ._backends.torch.backend import BACKEND
from ._core import entry

__all__ = [
    "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "ErrorClipByValue", "GradientClipByGlobalNorm",
    "GradientClipByNorm", "GradientClipByValue", "append_gradient_clip_ops", "clip_by_global_norm", "clip_by_norm",
    "clip_by_value", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "global_norm",
    "set_gradient_clip",
]


def __dir__() -> list[str]:
    return __all__


def clip_grad_norm_(
    parameters: Any, max_norm: float | torch.Tensor, norm_type: float | str = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None, *, process_group: Any = "auto", ownership: Any = None,
    check_numel: bool | int | None = None, check_replicas: bool = False,
) -> torch.Tensor:
    """Clip the gradients of parameters by their total norm, in place.

    Let n be the norm over all gradients. Each gradient is multiplied by min(1, max_norm / (n + 1e-6)). If this factor
    is 1, the gradients do not change. Source: `torch.nn.utils.clip_grad_norm_`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        parameters: The parameters whose `.grad` is clipped: one parameter, a dict, or an iterable. An entry is a
            parameter, None or a (name, parameter) tuple. To exclude a parameter, set its attribute `need_clip = False`.
        max_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'.
        error_if_nonfinite: Raise NonFiniteNormError if the norm is NaN or inf. On a GPU, True waits for the norm. Under
            `torch.compile`, True causes a graph break.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.
        ownership: Which rank owns a gradient element. Only the owner rank includes the element in the norm. If
            placements do not determine the owner rank, pass 'replicated' (every rank has a copy) or 'distinct' (no two
            ranks have the same element). Or pass a function that gets a parameter and returns True if this rank owns
            its gradient. Or pass a dict that maps name patterns to 'replicated', 'distinct' or a function.
        check_numel: The number of gradient elements that all ranks together must own. True computes the number from the
            full shapes of this rank's gradients.
        check_replicas: Check that the copies of a gradient are equal on all ranks.

    Returns:
        The total norm before clipping, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and
        float32 otherwise. In eager calls on a CPU without automatic differentiation, the norm is correctly rounded for
        p = 1, 2 and inf.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. max_norm or
            norm_type is not a number.
        ValueError: max_norm is negative or NaN. norm_type is not above 0. Two gradients overlap in memory. A gradient
            is read-only or an expanded view. Ranks make different calls. check_numel or check_replicas fails. The owner
            rank of a gradient is unknown.
        NonFiniteNormError: The norm is not finite, and error_if_nonfinite is True. The gradients stay unchanged.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([96.0, 128.0])
        >>> norm = uc.clip_grad_norm_([weight], max_norm=5.0)
        >>> float(norm)
        160.0
        >>> weight.grad
        tensor([3., 4.])
    """
    return entry.run(
        functions.clip_grad_norm_, BACKEND, parameters, max_norm, norm_type, error_if_nonfinite, foreach, process_group,
        ownership, check_numel, check_replicas,
    )


def clip_grad_value_(parameters: Any, clip_value: float | torch.Tensor, foreach: bool | None = None) -> None:
    """Clip every element of the gradients of parameters to [-clip_value, clip_value], in place.

    NaN stays NaN. Source: `torch.nn.utils.clip_grad_value_`.

    Args:
        parameters: The parameters whose `.grad` is clipped: one parameter, a dict, or an iterable. An entry is a
            parameter, None or a (name, parameter) tuple. To exclude a parameter, set its attribute `need_clip = False`.
        clip_value: The largest magnitude of a clipped element: a number of at least 0, or a tensor with one element.
            The number is rounded to the dtype of each gradient. inf means no limit.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.

    Raises:
        TypeError: A gradient has a complex, integer or boolean dtype. An entry is neither a tensor nor None. clip_value
            is not a number.
        ValueError: clip_value is negative or NaN. Two gradients overlap in memory. A gradient is read-only or an
            expanded view.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([5.0, 1.0])
        >>> uc.clip_grad_value_([weight], clip_value=2.0)
        >>> weight.grad
        tensor([2., 1.])
    """
    entry.run(functions.clip_grad_value_, BACKEND, parameters, clip_value, foreach)


def get_total_norm(
    tensors: Any, norm_type: float | str = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None, *,
    process_group: Any = "auto", ownership: Any = None, check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> torch.Tensor:
    """Return the norm over all gradients. Nothing is clipped.

    Source: `torch.nn.utils.get_total_norm`.

    Args:
        tensors: The gradients (not the parameters): one tensor, or any container of tensors and None.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'.
        error_if_nonfinite: Raise NonFiniteNormError if the norm is NaN or inf. On a GPU, True waits for the norm. Under
            `torch.compile`, True causes a graph break.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.
        ownership: Which rank owns a gradient element. Only the owner rank includes the element in the norm. If
            placements do not determine the owner rank, pass 'replicated' (every rank has a copy) or 'distinct' (no two
            ranks have the same element). Or pass a function that gets a gradient and returns True if this rank owns it.
            Or pass a dict that maps name patterns to 'replicated', 'distinct' or a function.
        check_numel: The number of gradient elements that all ranks together must own. True computes the number from the
            full shapes of this rank's gradients.
        check_replicas: Check that the copies of a gradient are equal on all ranks.

    Returns:
        The norm, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and float32 otherwise. In
        eager calls on a CPU without automatic differentiation, the norm is correctly rounded for p = 1, 2 and inf.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. norm_type is not a
            number.
        ValueError: norm_type is not above 0. Ranks make different calls. check_numel or check_replicas fails. The owner
            rank of a gradient is unknown.
        NonFiniteNormError: The norm is not finite, and error_if_nonfinite is True.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> grads = [torch.tensor([3.0, 4.0]), None]
        >>> float(uc.get_total_norm(grads, norm_type=1))
        7.0
    """
    return entry.run(
        functions.get_total_norm, BACKEND, tensors, norm_type, error_if_nonfinite, foreach, process_group, ownership,
        check_numel, check_replicas,
    )


def clip_grads_with_norm_(
    parameters: Any, max_norm: float | torch.Tensor, total_norm: float | torch.Tensor, foreach: bool | None = None,
) -> None:
    """Clip the gradients of parameters to `max_norm`, given their norm `total_norm`, in place.

    `get_total_norm` followed by this function gives the same bits as `clip_grad_norm_`. Source:
    `torch.nn.utils.clip_grads_with_norm_`.

    Args:
        parameters: The parameters whose `.grad` is clipped: one parameter, a dict, or an iterable. An entry is a
            parameter, None or a (name, parameter) tuple. To exclude a parameter, set its attribute `need_clip = False`.
        max_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        total_norm: The total norm: a number, or a tensor with one element.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. max_norm or
            total_norm is not a number.
        ValueError: max_norm or total_norm is negative. max_norm is NaN. Two gradients overlap in memory. A gradient is
            read-only or an expanded view.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([96.0, 128.0])
        >>> norm = uc.get_total_norm([weight.grad])
        >>> uc.clip_grads_with_norm_([weight], max_norm=5.0, total_norm=norm)
        >>> weight.grad
        tensor([3., 4.])
    """
    entry.run(functions.clip_grads_with_norm_, BACKEND, parameters, max_norm, total_norm, foreach)


def clip_by_global_norm(
    t_list: Any, clip_norm: float | torch.Tensor, use_norm: float | torch.Tensor | None = None, name: str | None = None,
    *, process_group: Any = "auto", ownership: Any = None, check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> tuple[Any, torch.Tensor]:
    """Clip the gradients by their total norm. Return new tensors, and the norm.

    Let n be the norm over all gradients. Each gradient is multiplied by min(1, clip_norm / n). If n is NaN or inf,
    every element of the result is NaN. Source: `tf.clip_by_global_norm`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None.
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        use_norm: A norm to use instead of n: a number, or a tensor with one element.
        name: Accepted for compatibility with TensorFlow, and ignored.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.
        ownership: Which rank owns a gradient element. Only the owner rank includes the element in the norm. If
            placements do not determine the owner rank, pass 'replicated' (every rank has a copy) or 'distinct' (no two
            ranks have the same element). Or pass a function that gets a gradient and returns True if this rank owns it.
            Or pass a dict that maps name patterns to 'replicated', 'distinct' or a function.
        check_numel: The number of gradient elements that all ranks together must own. True computes the number from the
            full shapes of this rank's gradients.
        check_replicas: Check that the copies of a gradient are equal on all ranks.

    Returns:
        (the clipped gradients, the total norm). If you pass a flat list, tuple or iterator, the clipped gradients are
        in a list. If you pass one tensor, the clipped gradient is one tensor. Any other container keeps its structure.
        None entries stay None. The norm is a scalar.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. clip_norm or
            use_norm is not a number.
        ValueError: clip_norm is negative or NaN. use_norm is negative. You pass both use_norm and check_replicas. Ranks
            make different calls. check_numel or check_replicas fails. The owner rank of a gradient is unknown.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> grads = [torch.tensor([6.0, 8.0]), None]
        >>> clipped, norm = uc.clip_by_global_norm(grads, clip_norm=5.0)
        >>> clipped[0]
        tensor([3., 4.])
        >>> float(norm)
        10.0
    """
    return entry.run(
        functions.clip_by_global_norm, BACKEND, t_list, clip_norm, use_norm, name, process_group, ownership,
        check_numel, check_replicas,
    )


def clip_by_norm(
    t: Any, clip_norm: float | torch.Tensor, axes: int | Sequence[int] | None = None, name: str | None = None, *,
    process_group: Any = "auto",
) -> Any:
    """Return one tensor clipped by its own norm. With `axes`, clip each slice that spans these axes by its own norm.

    Let n be the 2-norm of the tensor or slice. The tensor or slice is multiplied by min(1, clip_norm / n). Source:
    `tf.clip_by_norm`.

    Args:
        t: A tensor of any shape. A sparse tensor is clipped like its dense form, and stays sparse. For None, the result
            is None.
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        axes: The axes that each slice spans, as in `tf.norm`: an int or a list of ints. Negative ints count from the
            end. None means all axes.
        name: Accepted for compatibility with TensorFlow, and ignored.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.

    Returns:
        A new tensor of the shape and dtype of `t`.

    Raises:
        TypeError: `t` has an integer or boolean dtype, or is not a tensor. clip_norm is not a number. An axis is not an
            int.
        ValueError: clip_norm is negative or NaN. An axis is out of range, or you list an axis twice. `t` is
            distributed, and you pass `axes`. `t` is distributed, and the norm over all ranks cannot be computed.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> uc.clip_by_norm(torch.tensor([6.0, 8.0]), clip_norm=5.0)
        tensor([3., 4.])
    """
    return entry.run(functions.clip_by_norm, BACKEND, t, clip_norm, axes, name, process_group)


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """Return one tensor with every element clipped to [clip_value_min, clip_value_max].

    NaN stays NaN. An element that equals a bound stays unchanged. Source: `tf.clip_by_value`.

    Args:
        t: A tensor of any shape, with a real or integer dtype. For None, the result is None.
        clip_value_min: The lower bound: a number, or a tensor that broadcasts to `t`. The bound is rounded to the dtype
            of `t`.
        clip_value_max: The upper bound: a number, or a tensor that broadcasts to `t`. The bound is rounded to the dtype
            of `t`.
        name: Accepted for compatibility with TensorFlow, and ignored.

    Returns:
        A new tensor of the shape and dtype of `t`.

    Raises:
        TypeError: `t` is complex or boolean, or is not a tensor. A bound is not a number. `t` has integers, and a bound
            is not a whole number.
        ValueError: A bound is NaN, or does not broadcast to `t`. A lower bound is above the upper bound. `t` has
            integers, and no value of its dtype is within the bounds. `t` is sparse, and a bound is a tensor. `t` is
            sparse, and the bounds exclude 0.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> uc.clip_by_value(torch.tensor([5.0, 2.0]), -3.0, 3.0)
        tensor([3., 2.])
    """
    return entry.run(functions.clip_by_value, BACKEND, t, clip_value_min, clip_value_max, name)


def global_norm(
    t_list: Any, name: str | None = None, *, process_group: Any = "auto", ownership: Any = None,
    check_numel: bool | int | None = None, check_replicas: bool = False,
) -> torch.Tensor:
    """Return the 2-norm over all gradients.

    Source: `tf.linalg.global_norm`.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None.
        name: Accepted for compatibility with TensorFlow, and ignored.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.
        ownership: Which rank owns a gradient element. Only the owner rank includes the element in the norm. If
            placements do not determine the owner rank, pass 'replicated' (every rank has a copy) or 'distinct' (no two
            ranks have the same element). Or pass a function that gets a gradient and returns True if this rank owns it.
            Or pass a dict that maps name patterns to 'replicated', 'distinct' or a function.
        check_numel: The number of gradient elements that all ranks together must own. True computes the number from the
            full shapes of this rank's gradients.
        check_replicas: Check that the copies of a gradient are equal on all ranks.

    Returns:
        The norm, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and float32 otherwise. On a
        CPU, eager calls without automatic differentiation round the norm correctly.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None.
        ValueError: Ranks make different calls. check_numel or check_replicas fails. The owner rank of a gradient is
            unknown.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> float(uc.global_norm([torch.tensor([3.0]), torch.tensor([4.0])]))
        5.0
    """
    return entry.run(
        functions.global_norm, BACKEND, t_list, name, process_group, ownership, check_numel, check_replicas,
    )


def set_gradient_clip(
    clip: classes.GradientClip | None, param_list: Iterable[Any] | None = None, program: Any = None,
) -> None:
    """Set the clip that `append_gradient_clip_ops` applies.

    Source: `paddle.fluid.clip.set_gradient_clip`.

    Args:
        clip: A GradientClipByValue, GradientClipByNorm or GradientClipByGlobalNorm. None removes the clip.
        param_list: The parameters to which this clip applies. With None, the clip applies to all parameters without a
            clip of their own.
        program: Only for `unified_clip.paddle`. Keep the default.

    Raises:
        TypeError: `clip` has an unsupported type. param_list is not a list of parameters. `program` is not None.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> uc.set_gradient_clip(uc.GradientClipByNorm(clip_norm=5.0))
        >>> ((name, clipped),) = uc.append_gradient_clip_ops([("weight", torch.tensor([6.0, 8.0]))])
        >>> clipped
        tensor([3., 4.])
        >>> uc.set_gradient_clip(None)
    """
    entry.run(settings.set_gradient_clip, BACKEND, clip, param_list, program)


def append_gradient_clip_ops(params_grads: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return (parameter, gradient) tuples, with each gradient clipped by the clip of its parameter.

    `set_gradient_clip` sets the clips. Parameters share one norm if their clips are GradientClipByGlobalNorm with the
    same `group_name` and threshold. Source: `paddle.fluid.clip.append_gradient_clip_ops`.

    Args:
        params_grads: (parameter, gradient) or (name of a parameter, gradient) tuples. A gradient can be None.

    Returns:
        The list of tuples, in the same order. A parameter without a clip keeps its gradient.

    Raises:
        TypeError: params_grads is not an iterable of (parameter, gradient) tuples. A gradient has an integer or boolean
            dtype. A GradientClipByValue applies to a complex gradient.
        ValueError: `set_gradient_clip` has set clips for single parameters, and a tuple contains a name in place of a
            parameter.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> uc.set_gradient_clip(uc.GradientClipByValue(max=2.0))
        >>> ((name, clipped),) = uc.append_gradient_clip_ops([("weight", torch.tensor([5.0, 1.0]))])
        >>> clipped
        tensor([2., 1.])
        >>> uc.set_gradient_clip(None)
    """
    return entry.run(settings.append_gradient_clip_ops, BACKEND, params_grads)


class GradientClipByValue(classes.GradientClipByValue):
    """Clip every element of every gradient to [min, max]. NaN stays NaN.

    Call `clip_(parameters)` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with
    clipped gradients. Source: `paddle.nn.ClipGradByValue`, `paddle.fluid.clip.GradientClipByValue`.

    Args:
        max: The upper bound, a number.
        min: The lower bound, a number. None means -max.
        need_clip: A function that gets a parameter, and returns False to leave its gradient unchanged. The attribute
            `need_clip = False` of a parameter has the same effect.

    Raises:
        TypeError: A bound is not a number. A bound is a tensor on a GPU or in a graph. need_clip is not a function.
        ValueError: A bound is NaN. `min` is above `max`. `max` is negative and `min` is None.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> clip = uc.GradientClipByValue(max=5.0)
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([6.0, 8.0])
        >>> clip.clip_([weight])
        >>> weight.grad
        tensor([5., 5.])
    """

    _backend = BACKEND


class GradientClipByNorm(classes.GradientClipByNorm):
    """Clip every gradient by its own 2-norm n: multiply it by min(1, clip_norm / n).

    Call `clip_(parameters)` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with
    clipped gradients. Source: `paddle.nn.ClipGradByNorm`, `paddle.fluid.clip.GradientClipByNorm`.

    Args:
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        need_clip: A function that gets a parameter, and returns False to leave its gradient unchanged. The attribute
            `need_clip = False` of a parameter has the same effect.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.

    Raises:
        TypeError: clip_norm is not a number. clip_norm is a tensor on a GPU or in a graph. need_clip is not a function.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> clip = uc.GradientClipByNorm(clip_norm=5.0)
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([6.0, 8.0])
        >>> clip.clip_([weight])
        >>> weight.grad
        tensor([3., 4.])
    """

    _backend = BACKEND


class GradientClipByGlobalNorm(classes.GradientClipByGlobalNorm):
    """Clip all gradients of a call by their total norm n: multiply each gradient by min(1, clip_norm / n).

    Call `clip_(parameters)` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with
    clipped gradients. Source: `paddle.nn.ClipGradByGlobalNorm`, `paddle.fluid.clip.GradientClipByGlobalNorm`; Pascanu,
    Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.

    Args:
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        group_name: A name for `append_gradient_clip_ops`: clips with the same name and threshold share one total norm.
        auto_skip_clip: Accepted for compatibility with Paddle, and ignored.
        need_clip: A function that gets a parameter, and returns False to exclude its gradient from the norm and the
            clip. The attribute `need_clip = False` of a parameter has the same effect.
        process_group: The ranks that together own the gradients: a `torch.distributed` process group, a `DeviceMesh`,
            or None for this process alone. All these ranks must make the call. 'auto' reads the group from DTensors.
        ownership: Which rank owns a gradient element. Only the owner rank includes the element in the norm. If
            placements do not determine the owner rank, pass 'replicated' (every rank has a copy) or 'distinct' (no two
            ranks have the same element). Or pass a function that gets a parameter and returns True if this rank owns
            its gradient. Or pass a dict that maps name patterns to 'replicated', 'distinct' or a function.
        check_numel: The number of gradient elements that all ranks together must own. True computes the number from the
            full shapes of this rank's gradients.
        check_replicas: Check that the copies of a gradient are equal on all ranks.

    Raises:
        TypeError: clip_norm is not a number. clip_norm is a tensor on a GPU or in a graph. need_clip is not a function.
            group_name is not a string.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> clip = uc.GradientClipByGlobalNorm(clip_norm=5.0)
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([6.0, 8.0])
        >>> norm = clip.clip_([weight])
        >>> weight.grad
        tensor([3., 4.])
    """

    _backend = BACKEND


class ErrorClipByValue(classes.ErrorClipByValue):
    """Clip every element of one gradient to [min, max]. NaN stays NaN.

    Pass the instance to `register_hook` of a tensor. Or call the instance with the gradient to get the clipped
    gradient. Source: `paddle.fluid.clip.ErrorClipByValue`.

    Args:
        max: The upper bound, a number.
        min: The lower bound, a number. None means -max.

    Raises:
        TypeError: A bound is not a number. A bound is a tensor on a GPU or in a graph.
        ValueError: A bound is NaN. `min` is above `max`. `max` is negative and `min` is None.

    Example:
        >>> import torch
        >>> import unified_clip.torch as uc
        >>> hidden = torch.zeros(2, requires_grad=True)
        >>> handle = hidden.register_hook(uc.ErrorClipByValue(max=2.0))
        >>> (hidden * torch.tensor([5.0, 1.0])).sum().backward()
        >>> hidden.grad
        tensor([2., 1.])
    """

    _backend = BACKEND


ClipGradByValue = GradientClipByValue
"""The name of `GradientClipByValue` in Paddle 2 and 3."""

ClipGradByNorm = GradientClipByNorm
"""The name of `GradientClipByNorm` in Paddle 2 and 3."""

ClipGradByGlobalNorm = GradientClipByGlobalNorm
"""The name of `GradientClipByGlobalNorm` in Paddle 2 and 3."""
