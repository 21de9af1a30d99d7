"""Functions with TensorFlow's names and formulas. Each namespace, such as `unified_clip.torch`, binds them."""

# mypy: no-warn-return-any
# Tensors are Any here. `Framework.bind` gives the functions the types of a framework.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core import containers, rule, validation
from .._core.collect import collect, declared_spec, from_tree, listed
from .._core.distributed import Measures, declared
from .._core.rule import ClipRule
from . import plain_calls
from .framework import Framework, Norm, Number


def clip_by_global_norm(
    framework: Framework[Number, Norm],
    t_list: Any,
    clip_norm: Number,
    use_norm: Number | None = None,
    name: str | None = None,
    *,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> tuple[Any, Norm]:
    """Clip the gradients by their total norm. Return new tensors, and the norm.

    Let n be the norm over all gradients. Each gradient is multiplied by min(1, clip_norm / n). If n is NaN or inf,
    every element of the result is NaN. Source: `tf.clip_by_global_norm`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None. The first tensor that is not a NumPy
            array selects the framework.
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        use_norm: A norm to use instead of n: a number, or a tensor with one element.
        name: The name scope of the operations in a graph of TensorFlow. Other frameworks ignore it.
        process_group: As in `clip_grad_norm_`.
        ownership: As in `clip_grad_norm_`.
        check_numel: As in `clip_grad_norm_`.
        check_replicas: As in `clip_grad_norm_`.

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
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> grads = [np.array([6.0, 8.0], np.float32), None]
        >>> clipped, norm = uc.clip_by_global_norm(grads, clip_norm=5.0)
        >>> clipped[0]
        array([3., 4.], dtype=float32)
        >>> float(norm)
        10.0
    """
    backend, t_list = framework.resolve(t_list)
    with backend.name_scope(name or "clip_by_global_norm"):
        arguments = process_group, ownership, check_numel, check_replicas
        if use_norm is None and plain_calls.is_plain(clip_norm, 2.0, arguments):
            t_list = listed(t_list)
            clipped = plain_calls.clip_to_new(backend, t_list, clip_norm, rule.TENSORFLOW_GLOBAL)
            if clipped is not None:
                return clipped
        spec = declared_spec(backend, t_list, arguments, in_place=False)
        if use_norm is not None and spec.check_replicas:
            raise ValueError(
                "check_replicas is not supported with use_norm: only a call that measures the norm compares the copies "
                "of a gradient. Leave out check_replicas or use_norm"
            )
        known_norm = (
            None if use_norm is None else validation.given_norm(backend, use_norm, "use_norm", differentiable=True)
        )
        measures: Measures | None = "total" if known_norm is None else None
        gradients, writer = collect(backend, t_list, "clip_by_global_norm", spec=spec, measures=measures)
        threshold = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
        norm = rule.clip(gradients, ClipRule("global_norm", rule.TENSORFLOW_GLOBAL, threshold, given_norm=known_norm))
        return writer.result(), norm


def clip_by_norm(
    framework: Framework[Number, Norm],
    t: Any,
    clip_norm: Number,
    axes: int | Sequence[int] | None = None,
    name: str | None = None,
    *,
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
            end. None means all axes. With some of several sparse axes, the call needs memory for the dense tensor.
        name: The name scope of the operations in a graph of TensorFlow. Other frameworks ignore it.
        process_group: As in `clip_grad_norm_`.

    Returns:
        A new tensor of the shape and dtype of `t`.

    Raises:
        TypeError: `t` has an integer or boolean dtype, or is not a tensor. clip_norm is not a number. An axis is not an
            int.
        ValueError: clip_norm is negative or NaN. An axis is out of range, or you list an axis twice. `t` is
            distributed, and you pass `axes`. `t` is distributed, and the norm over all ranks cannot be computed.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> uc.clip_by_norm(np.array([6.0, 8.0], np.float32), clip_norm=5.0)
        array([3., 4.], dtype=float32)
    """
    backend, t = framework.resolve(t)
    with backend.name_scope(name or "clip_by_norm"):
        validation.one_tensor(backend, t, "clip_by_norm")
        spec = declared(process_group)
        if axes is None:
            gradients, writer = collect(backend, t, "clip_by_norm", spec=spec, measures="each")
        else:
            gradients, writer = from_tree(backend, containers.flatten(backend, t), differentiable=True, spec=spec)
        threshold = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
        along = None
        if axes is not None and gradients.values:
            along, rows = list(validation.axes(axes, gradients.shape(0))), gradients.sparse[0]
            if rows is not None and backend.sparse is not None and rows.sparse_axes > 1:
                inner = [axis - rows.sparse_axes + 1 for axis in along if axis >= rows.sparse_axes]
                if 0 < len(along) - len(inner) < rows.sparse_axes:  # a slice has elements in some rows
                    dense = backend.sparse.to_dense(rows.restore(rows.values))
                    clipped = clip_by_norm(framework, dense, clip_norm, axes)
                    return rows.restore(backend.sparse.stored(clipped, rows.indices))
                along = [0, *inner] if len(along) > len(inner) else inner
        rule.clip(gradients, ClipRule("norm", rule.TENSORFLOW, threshold, axes=along))
        return writer.result()


def clip_by_value(
    framework: Framework[Number, Norm], t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Any:
    """Return one tensor with every element clipped to [clip_value_min, clip_value_max].

    NaN stays NaN. An element that equals a bound stays unchanged. Source: `tf.clip_by_value`.

    Args:
        t: A tensor of any shape, with a real or integer dtype. For None, the result is None.
        clip_value_min: The lower bound: a number, or a tensor that broadcasts to `t`. The bound is rounded to the dtype
            of `t`.
        clip_value_max: The upper bound: a number, or a tensor that broadcasts to `t`. The bound is rounded to the dtype
            of `t`.
        name: The name scope of the operations in a graph of TensorFlow. Other frameworks ignore it.

    Returns:
        A new tensor of the shape and dtype of `t`.

    Raises:
        TypeError: `t` is complex or boolean, or is not a tensor. A bound is not a number. `t` has integers, and a bound
            is not a whole number.
        ValueError: A bound is NaN, or does not broadcast to `t`. A lower bound is above the upper bound. `t` has
            integers, and no value of its dtype is within the bounds. `t` is sparse, and a bound is a tensor. `t` is
            sparse, and the bounds exclude 0.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> uc.clip_by_value(np.array([5.0, 2.0], np.float32), -3.0, 3.0)
        array([3., 2.], dtype=float32)
    """
    backend, t = framework.resolve(t)
    with backend.name_scope(name or "clip_by_value"):
        low = validation.bound(backend, clip_value_min, "clip_value_min")
        high = validation.bound(backend, clip_value_max, "clip_value_max")
        validation.one_tensor(backend, t, "clip_by_value")
        tree, integers = containers.flatten(backend, t), validation.INTEGER_RANGES
        gradients, writer = from_tree(backend, tree, differentiable=True, extra_dtypes=integers, reject_complex=True)
        if gradients.values:
            if gradients.is_sparse(0):
                validation.sparse_bounds(low, high, gradients.leaves[0])
            low, high = validation.value_bounds(backend, low, high, gradients.values[0])
            rule.clip(gradients, ClipRule("value", bounds=(low, high)))
        return writer.result()


def global_norm(
    framework: Framework[Number, Norm],
    t_list: Any,
    name: str | None = None,
    *,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> Norm:
    """Return the 2-norm over all gradients.

    Source: `tf.linalg.global_norm`.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None. The first tensor that is not a NumPy
            array selects the framework.
        name: The name scope of the operations in a graph of TensorFlow. Other frameworks ignore it.
        process_group: As in `clip_grad_norm_`.
        ownership: As in `clip_grad_norm_`.
        check_numel: As in `clip_grad_norm_`.
        check_replicas: As in `clip_grad_norm_`.

    Returns:
        The norm, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and float32 otherwise. On a
        CPU, eager calls without automatic differentiation round the norm correctly.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None.
        ValueError: Ranks make different calls. check_numel or check_replicas fails. The owner rank of a gradient is
            unknown.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> float(uc.global_norm([np.array([3.0], np.float32), np.array([4.0], np.float32)]))
        5.0
    """
    backend, t_list = framework.resolve(t_list)
    with backend.name_scope(name or "global_norm"):
        arguments = process_group, ownership, check_numel, check_replicas
        spec = declared_spec(backend, t_list, arguments, in_place=False)
        return rule.total_norm(collect(backend, t_list, "global_norm", spec=spec)[0], 2.0)
