# `python tools/namespaces.py` writes this file from tools/namespaces.toml.
# fmt: off
"""Clip gradients on TensorFlow. Tensors are immutable, so in-place functions update the list or dict of gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ._api import classes, functions, settings
from ._backends.tensorflow.backend import BACKEND
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
    parameters: Any, max_norm: float | tf.Tensor, norm_type: float | str = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None, *, process_group: Any = "auto", ownership: Any = None,
    check_numel: bool | int | None = None, check_replicas: bool = False,
) -> tf.Tensor:
    """Clip the gradients by their total norm, and replace them in their list or dict.

    Let n be the norm over all gradients. Each gradient is multiplied by min(1, max_norm / (n + 1e-6)). If this factor
    is 1, the gradients do not change. Source: `torch.nn.utils.clip_grad_norm_`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        parameters: The gradients, in a flat or nested list or dict. An entry is a tensor, None, a (gradient, variable)
            tuple or a (name, gradient) tuple. The clipped tensors replace the gradients in the list or dict. An entry
            can also be a non-trainable variable, such as an accumulator. The clip then assigns the clipped value to the
            variable.
        max_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'.
        error_if_nonfinite: Raise NonFiniteNormError if the norm is NaN or inf. Inside `tf.function`, True raises
            TypeError.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.
        process_group: Not supported on TensorFlow: sum the gradients of all replicas first. Keep the default.
        ownership: Not supported on TensorFlow. Keep the default.
        check_numel: Not supported on TensorFlow. Keep the default.
        check_replicas: Not supported on TensorFlow. Keep the default.

    Returns:
        The total norm before clipping, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and
        float32 otherwise. In eager calls on a CPU without automatic differentiation, the norm is correctly rounded for
        p = 1, 2 and inf.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. max_norm or
            norm_type is not a number. `parameters` is a tuple, an iterator or one tensor. An entry is a trainable
            variable instead of a gradient. You pass an argument for distributed gradients, such as process_group.
        ValueError: max_norm is negative or NaN. norm_type is not above 0.
        NonFiniteNormError: The norm is not finite, and error_if_nonfinite is True. The gradients stay unchanged.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> grads = [tf.constant([96.0, 128.0])]
        >>> norm = uc.clip_grad_norm_(grads, max_norm=5.0)
        >>> float(norm)
        160.0
        >>> grads[0].numpy()
        array([3., 4.], dtype=float32)
    """
    return entry.run(
        functions.clip_grad_norm_, BACKEND, parameters, max_norm, norm_type, error_if_nonfinite, foreach, process_group,
        ownership, check_numel, check_replicas,
    )


def clip_grad_value_(parameters: Any, clip_value: float | tf.Tensor, foreach: bool | None = None) -> None:
    """Clip every element of the gradients to [-clip_value, clip_value], and replace them in their list or dict.

    NaN stays NaN. Source: `torch.nn.utils.clip_grad_value_`.

    Args:
        parameters: The gradients, in a flat or nested list or dict. An entry is a tensor, None, a (gradient, variable)
            tuple or a (name, gradient) tuple. The clipped tensors replace the gradients in the list or dict. An entry
            can also be a non-trainable variable, such as an accumulator. The clip then assigns the clipped value to the
            variable.
        clip_value: The largest magnitude of a clipped element: a number of at least 0, or a tensor with one element.
            The number is rounded to the dtype of each gradient. inf means no limit.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.

    Raises:
        TypeError: A gradient has a complex, integer or boolean dtype. An entry is neither a tensor nor None. clip_value
            is not a number. `parameters` is a tuple, an iterator or one tensor. An entry is a trainable variable
            instead of a gradient.
        ValueError: clip_value is negative or NaN.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> grads = [tf.constant([5.0, 1.0])]
        >>> uc.clip_grad_value_(grads, clip_value=2.0)
        >>> grads[0].numpy()
        array([2., 1.], dtype=float32)
    """
    entry.run(functions.clip_grad_value_, BACKEND, parameters, clip_value, foreach)


def get_total_norm(
    tensors: Any, norm_type: float | str = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None, *,
    process_group: Any = "auto", ownership: Any = None, check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> tf.Tensor:
    """Return the norm over all gradients. Nothing is clipped.

    Source: `torch.nn.utils.get_total_norm`.

    Args:
        tensors: The gradients (not the parameters): one tensor, or any container of tensors and None.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'.
        error_if_nonfinite: Raise NonFiniteNormError if the norm is NaN or inf. Inside `tf.function`, True raises
            TypeError.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.
        process_group: Not supported on TensorFlow: sum the gradients of all replicas first. Keep the default.
        ownership: Not supported on TensorFlow. Keep the default.
        check_numel: Not supported on TensorFlow. Keep the default.
        check_replicas: Not supported on TensorFlow. Keep the default.

    Returns:
        The norm, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and float32 otherwise. In
        eager calls on a CPU without automatic differentiation, the norm is correctly rounded for p = 1, 2 and inf.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. norm_type is not a
            number. You pass an argument for distributed gradients, such as process_group.
        ValueError: norm_type is not above 0.
        NonFiniteNormError: The norm is not finite, and error_if_nonfinite is True.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> grads = [tf.constant([3.0, 4.0]), None]
        >>> float(uc.get_total_norm(grads, norm_type=1))
        7.0
    """
    return entry.run(
        functions.get_total_norm, BACKEND, tensors, norm_type, error_if_nonfinite, foreach, process_group, ownership,
        check_numel, check_replicas,
    )


def clip_grads_with_norm_(
    parameters: Any, max_norm: float | tf.Tensor, total_norm: float | tf.Tensor, foreach: bool | None = None,
) -> None:
    """Clip the gradients to `max_norm`, given their norm `total_norm`, and replace them in their list or dict.

    `get_total_norm` followed by this function gives the same bits as `clip_grad_norm_`. Source:
    `torch.nn.utils.clip_grads_with_norm_`.

    Args:
        parameters: The gradients, in a flat or nested list or dict. An entry is a tensor, None, a (gradient, variable)
            tuple or a (name, gradient) tuple. The clipped tensors replace the gradients in the list or dict. An entry
            can also be a non-trainable variable, such as an accumulator. The clip then assigns the clipped value to the
            variable.
        max_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        total_norm: The total norm: a number, or a tensor with one element.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. max_norm or
            total_norm is not a number. `parameters` is a tuple, an iterator or one tensor. An entry is a trainable
            variable instead of a gradient.
        ValueError: max_norm or total_norm is negative. max_norm is NaN.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> grads = [tf.constant([96.0, 128.0])]
        >>> norm = uc.get_total_norm(grads)
        >>> uc.clip_grads_with_norm_(grads, max_norm=5.0, total_norm=norm)
        >>> grads[0].numpy()
        array([3., 4.], dtype=float32)
    """
    entry.run(functions.clip_grads_with_norm_, BACKEND, parameters, max_norm, total_norm, foreach)


def clip_by_global_norm(
    t_list: Any, clip_norm: float | tf.Tensor, use_norm: float | tf.Tensor | None = None, name: str | None = None, *,
    process_group: Any = "auto", ownership: Any = None, check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> tuple[Any, tf.Tensor]:
    """Clip the gradients by their total norm. Return new tensors, and the norm.

    Let n be the norm over all gradients. Each gradient is multiplied by min(1, clip_norm / n). If n is NaN or inf,
    every element of the result is NaN. Source: `tf.clip_by_global_norm`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None.
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        use_norm: A norm to use instead of n: a number, or a tensor with one element.
        name: The name scope of the operations in a graph.
        process_group: Not supported on TensorFlow: sum the gradients of all replicas first. Keep the default.
        ownership: Not supported on TensorFlow. Keep the default.
        check_numel: Not supported on TensorFlow. Keep the default.
        check_replicas: Not supported on TensorFlow. Keep the default.

    Returns:
        (the clipped gradients, the total norm). If you pass a flat list, tuple or iterator, the clipped gradients are
        in a list. If you pass one tensor, the clipped gradient is one tensor. Any other container keeps its structure.
        None entries stay None. The norm is a scalar.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. clip_norm or
            use_norm is not a number. You pass an argument for distributed gradients, such as process_group.
        ValueError: clip_norm is negative or NaN. use_norm is negative.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> grads = [tf.constant([6.0, 8.0]), None]
        >>> clipped, norm = uc.clip_by_global_norm(grads, clip_norm=5.0)
        >>> clipped[0].numpy()
        array([3., 4.], dtype=float32)
        >>> float(norm)
        10.0
    """
    return entry.run(
        functions.clip_by_global_norm, BACKEND, t_list, clip_norm, use_norm, name, process_group, ownership,
        check_numel, check_replicas,
    )


def clip_by_norm(
    t: Any, clip_norm: float | tf.Tensor, axes: int | Sequence[int] | None = None, name: str | None = None, *,
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
        name: The name scope of the operations in a graph.
        process_group: Not supported on TensorFlow. Keep the default.

    Returns:
        A new tensor of the shape and dtype of `t`.

    Raises:
        TypeError: `t` has an integer or boolean dtype, or is not a tensor. clip_norm is not a number. An axis is not an
            int. You pass an argument for distributed gradients, such as process_group.
        ValueError: clip_norm is negative or NaN. An axis is out of range, or you list an axis twice.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> uc.clip_by_norm(tf.constant([6.0, 8.0]), clip_norm=5.0).numpy()
        array([3., 4.], dtype=float32)
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
        name: The name scope of the operations in a graph.

    Returns:
        A new tensor of the shape and dtype of `t`.

    Raises:
        TypeError: `t` is complex or boolean, or is not a tensor. A bound is not a number. `t` has integers, and a bound
            is not a whole number.
        ValueError: A bound is NaN, or does not broadcast to `t`. A lower bound is above the upper bound. `t` has
            integers, and no value of its dtype is within the bounds. `t` is sparse, and a bound is a tensor. `t` is
            sparse, and the bounds exclude 0.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> uc.clip_by_value(tf.constant([5.0, 2.0]), -3.0, 3.0).numpy()
        array([3., 2.], dtype=float32)
    """
    return entry.run(functions.clip_by_value, BACKEND, t, clip_value_min, clip_value_max, name)


def global_norm(
    t_list: Any, name: str | None = None, *, process_group: Any = "auto", ownership: Any = None,
    check_numel: bool | int | None = None, check_replicas: bool = False,
) -> tf.Tensor:
    """Return the 2-norm over all gradients.

    Source: `tf.linalg.global_norm`.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None.
        name: The name scope of the operations in a graph.
        process_group: Not supported on TensorFlow: sum the gradients of all replicas first. Keep the default.
        ownership: Not supported on TensorFlow. Keep the default.
        check_numel: Not supported on TensorFlow. Keep the default.
        check_replicas: Not supported on TensorFlow. Keep the default.

    Returns:
        The norm, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and float32 otherwise. On a
        CPU, eager calls without automatic differentiation round the norm correctly.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. You pass an
            argument for distributed gradients, such as process_group.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> float(uc.global_norm([tf.constant([3.0]), tf.constant([4.0])]))
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
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> uc.set_gradient_clip(uc.GradientClipByNorm(clip_norm=5.0))
        >>> ((name, clipped),) = uc.append_gradient_clip_ops([("weight", tf.constant([6.0, 8.0]))])
        >>> clipped.numpy()
        array([3., 4.], dtype=float32)
        >>> uc.set_gradient_clip(None)
    """
    entry.run(settings.set_gradient_clip, BACKEND, clip, param_list, program)


def append_gradient_clip_ops(params_grads: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return (parameter, gradient) tuples, with each gradient clipped by the clip of its parameter.

    `set_gradient_clip` sets the clips. Parameters share one norm if their clips are GradientClipByGlobalNorm with the
    same `group_name` and threshold. Source: `paddle.fluid.clip.append_gradient_clip_ops`.

    Args:
        params_grads: (gradient, variable), (variable, gradient) or (name of a variable, gradient) tuples. A gradient
            can be None.

    Returns:
        The list of tuples, in the same order. A parameter without a clip keeps its gradient.

    Raises:
        TypeError: params_grads is not an iterable of (parameter, gradient) tuples. A gradient has an integer or boolean
            dtype. A GradientClipByValue applies to a complex gradient.
        ValueError: `set_gradient_clip` has set clips for single parameters, and a tuple contains a name in place of a
            parameter.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> uc.set_gradient_clip(uc.GradientClipByValue(max=2.0))
        >>> ((name, clipped),) = uc.append_gradient_clip_ops([("weight", tf.constant([5.0, 1.0]))])
        >>> clipped.numpy()
        array([2., 1.], dtype=float32)
        >>> uc.set_gradient_clip(None)
    """
    return entry.run(settings.append_gradient_clip_ops, BACKEND, params_grads)


class GradientClipByValue(classes.GradientClipByValue):
    """Clip every element of every gradient to [min, max]. NaN stays NaN.

    Call `clip_(gradients)` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with
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
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> clip = uc.GradientClipByValue(max=5.0)
        >>> variable = tf.Variable([0.0, 0.0])
        >>> ((gradient, _),) = clip([(tf.constant([6.0, 8.0]), variable)])
        >>> gradient.numpy()
        array([5., 5.], dtype=float32)
    """

    _backend = BACKEND


class GradientClipByNorm(classes.GradientClipByNorm):
    """Clip every gradient by its own 2-norm n: multiply it by min(1, clip_norm / n).

    Call `clip_(gradients)` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with
    clipped gradients. Source: `paddle.nn.ClipGradByNorm`, `paddle.fluid.clip.GradientClipByNorm`.

    Args:
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        need_clip: A function that gets a parameter, and returns False to leave its gradient unchanged. The attribute
            `need_clip = False` of a parameter has the same effect.
        process_group: Not supported on TensorFlow. Keep the default.

    Raises:
        TypeError: clip_norm is not a number. clip_norm is a tensor on a GPU or in a graph. need_clip is not a function.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> clip = uc.GradientClipByNorm(clip_norm=5.0)
        >>> variable = tf.Variable([0.0, 0.0])
        >>> ((gradient, _),) = clip([(tf.constant([6.0, 8.0]), variable)])
        >>> gradient.numpy()
        array([3., 4.], dtype=float32)
    """

    _backend = BACKEND


class GradientClipByGlobalNorm(classes.GradientClipByGlobalNorm):
    """Clip all gradients of a call by their total norm n: multiply each gradient by min(1, clip_norm / n).

    Call `clip_(gradients)` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with
    clipped gradients. Source: `paddle.nn.ClipGradByGlobalNorm`, `paddle.fluid.clip.GradientClipByGlobalNorm`; Pascanu,
    Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.

    Args:
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        group_name: A name for `append_gradient_clip_ops`: clips with the same name and threshold share one total norm.
        auto_skip_clip: Accepted for compatibility with Paddle, and ignored.
        need_clip: A function that gets a parameter, and returns False to exclude its gradient from the norm and the
            clip. The attribute `need_clip = False` of a parameter has the same effect.
        process_group: Not supported on TensorFlow: sum the gradients of all replicas first. Keep the default.
        ownership: Not supported on TensorFlow. Keep the default.
        check_numel: Not supported on TensorFlow. Keep the default.
        check_replicas: Not supported on TensorFlow. Keep the default.

    Raises:
        TypeError: clip_norm is not a number. clip_norm is a tensor on a GPU or in a graph. need_clip is not a function.
            group_name is not a string.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> clip = uc.GradientClipByGlobalNorm(clip_norm=5.0)
        >>> variable = tf.Variable([0.0, 0.0])
        >>> ((gradient, _),) = clip([(tf.constant([6.0, 8.0]), variable)])
        >>> gradient.numpy()
        array([3., 4.], dtype=float32)
    """

    _backend = BACKEND


class ErrorClipByValue(classes.ErrorClipByValue):
    """Clip every element of one gradient to [min, max]. NaN stays NaN.

    Call the instance with the gradient to get the clipped gradient. Source: `paddle.fluid.clip.ErrorClipByValue`.

    Args:
        max: The upper bound, a number.
        min: The lower bound, a number. None means -max.

    Raises:
        TypeError: A bound is not a number. A bound is a tensor on a GPU or in a graph.
        ValueError: A bound is NaN. `min` is above `max`. `max` is negative and `min` is None.

    Example:
        >>> import tensorflow as tf
        >>> import unified_clip.tensorflow as uc
        >>> clip = uc.ErrorClipByValue(max=2.0)
        >>> clip(tf.constant([5.0, 1.0])).numpy()
        array([2., 1.], dtype=float32)
    """

    _backend = BACKEND


ClipGradByValue = GradientClipByValue
"""The name of `GradientClipByValue` in Paddle 2 and 3."""

ClipGradByNorm = GradientClipByNorm
"""The name of `GradientClipByNorm` in Paddle 2 and 3."""

ClipGradByGlobalNorm = GradientClipByGlobalNorm
"""The name of `GradientClipByGlobalNorm` in Paddle 2 and 3."""
