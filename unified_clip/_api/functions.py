"""The public functions of PyTorch and TensorFlow. Each public module, such as `unified_clip.torch`, binds them."""

# mypy: no-warn-return-any
# Tensors are Any here. `Framework.bind` gives the functions the types of a framework.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._core import containers, rule, validation
from .._core.backend import Backend
from .._core.collect import collect, collect_in_place, collect_one, from_tree, listed, prepare_rejection_for
from .._core.distributed import DISTINCT, DistributedSpec, declared
from .._core.rule import ClipRule
from . import plain_calls
from .framework import Framework, Norm, Number

BY_VALUE = "ClipConfig(rule='value', threshold=clip_value)(grads)"


# -- PyTorch's names


def clip_grad_norm_(
    framework: Framework[Number, Norm],
    parameters: Any,
    max_norm: Number,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> Norm:
    """Clip the gradients by their total norm, in place.

    Let n be the norm over all gradients. Each gradient is multiplied by min(1, max_norm / (n + 1e-6)). If this factor
    is 1, the gradients do not change. Source: `torch.nn.utils.clip_grad_norm_`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        parameters: On PyTorch and Paddle, the parameters whose `.grad` is clipped: one parameter, a dict, or an
            iterable of parameters, None and (name, parameter) tuples. To exclude a parameter, set its attribute
            `need_clip = False`. On NumPy and MLX, the gradients, which the clip overwrites. On TensorFlow and JAX, a
            flat or nested list or dict of gradients, which the clipped tensors replace. TensorFlow also takes
            (gradient, variable) tuples.
        max_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'.
        error_if_nonfinite: Raise NonFiniteNormError if the norm is NaN or inf. On a GPU, True waits for the norm. True
            ends a graph of `torch.compile`, and raises TypeError in other graphs.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.
        process_group: The ranks that together own the gradients. All of them must make the call. 'auto' reads the ranks
            from the tensors. None means this process alone. On PyTorch, pass a process group or a `DeviceMesh`. On
            Paddle, a group of `paddle.distributed` or a `ProcessMesh`. On JAX, the mesh axes inside `shard_map` and
            `pmap`, and otherwise a `jax.sharding.Mesh`, a list of process indices, or axes of the arrays' mesh. On
            other frameworks, keep the default.
        ownership: Which rank owns a gradient element, on PyTorch, Paddle and JAX. Only the owner includes the element
            in the norm. If placements do not determine the owner, pass 'replicated' (every rank has a copy) or
            'distinct' (no two ranks have the same element). Or pass a function that gets a parameter (in functions of
            gradients: a gradient), and returns True if this rank owns it. Or pass a dict that maps name patterns to
            'replicated', 'distinct' or a function.
        check_numel: The number of gradient elements that all ranks together must own. True computes the number from the
            full shapes of this rank's gradients.
        check_replicas: Check that the copies of a gradient are equal on all ranks.

    Returns:
        The total norm before clipping, a scalar. Its dtype is float64 if any gradient is float64 or complex128, and
        float32 otherwise. In eager calls on a CPU without automatic differentiation, the norm is correctly rounded for
        p = 1, 2 and inf.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. max_norm or
            norm_type is not a number. On TensorFlow and JAX, `parameters` is not a list or a dict.
        ValueError: max_norm is negative or NaN. norm_type is not above 0. Two gradients overlap in memory. A gradient
            is read-only or an expanded view. Ranks make different calls. check_numel or check_replicas fails. The owner
            rank of a gradient is unknown.
        NonFiniteNormError: The norm is not finite, and error_if_nonfinite is True. The gradients stay unchanged.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> grads = [np.array([96.0, 128.0], np.float32)]
        >>> norm = uc.clip_grad_norm_(grads, max_norm=5.0)
        >>> float(norm)
        160.0
        >>> grads[0]
        array([3., 4.], dtype=float32)
    """
    backend, parameters = framework.resolve(parameters)
    arguments = process_group, ownership, check_numel, check_replicas
    if plain_calls.is_plain(max_norm, norm_type, arguments) and error_if_nonfinite is False:
        if type(parameters) is not list and backend.writable:
            parameters = listed(parameters)
        plain = backend.plain_gradients(parameters)
        if plain is not None and plain.tensors:
            threads = 1 if plain.is_short else plain_calls.threads(backend)
            return plain.clip_(max_norm, *rule.PYTORCH, threads, backend.norm_from_host, backend.bump_versions)
    spec = _declared(backend, parameters, arguments, in_place=True)
    try:
        threshold = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
        p = validation.norm_type(norm_type)
    except (TypeError, ValueError):
        prepare_rejection_for(backend, parameters, spec, "total", in_place=True)
        raise
    in_one_pass = isinstance(threshold, float) and not error_if_nonfinite
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grad_norm_", "clip_by_global_norm", plain=in_one_pass, spec=spec, measures="total"
    )
    norm = rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, threshold, p=p), error_if_nonfinite)
    writer.finish()
    return norm


def clip_grad_value_(
    framework: Framework[Number, Norm], parameters: Any, clip_value: Number, foreach: bool | None = None
) -> None:
    """Clip every element of the gradients to [-clip_value, clip_value], in place.

    NaN stays NaN. Source: `torch.nn.utils.clip_grad_value_`.

    Args:
        parameters: The parameters or gradients, as in `clip_grad_norm_`.
        clip_value: The largest magnitude of a clipped element: a number of at least 0, or a tensor with one element.
            The number is rounded to the dtype of each gradient. inf means no limit.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.

    Raises:
        TypeError: A gradient has a complex, integer or boolean dtype. An entry is neither a tensor nor None. clip_value
            is not a number.
        ValueError: clip_value is negative or NaN. Two gradients overlap in memory. A gradient is read-only or an
            expanded view.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> grads = [np.array([5.0, 1.0], np.float32)]
        >>> uc.clip_grad_value_(grads, clip_value=2.0)
        >>> grads[0]
        array([2., 1.], dtype=float32)
    """
    backend, parameters = framework.resolve(parameters)
    threshold = validation.threshold(backend, clip_value, "clip_value", differentiable=False)
    plain = isinstance(threshold, float)
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grad_value_", BY_VALUE, plain=plain, reject_complex=True
    )
    rule.clip(gradients, ClipRule("value", bounds=(-threshold, threshold)))
    writer.finish()


def get_total_norm(
    framework: Framework[Number, Norm],
    tensors: Any,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> Norm:
    """Return the norm over all gradients. Nothing is clipped.

    Source: `torch.nn.utils.get_total_norm`.

    Args:
        tensors: The gradients (not the parameters): one tensor, or any container of tensors and None. The first tensor
            that is not a NumPy array selects the framework.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'.
        error_if_nonfinite: Raise NonFiniteNormError if the norm is NaN or inf. On a GPU, True waits for the norm. True
            ends a graph of `torch.compile`, and raises TypeError in other graphs.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.
        process_group: As in `clip_grad_norm_`.
        ownership: As in `clip_grad_norm_`.
        check_numel: As in `clip_grad_norm_`.
        check_replicas: As in `clip_grad_norm_`.

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
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> grads = [np.array([3.0, 4.0], np.float32), None]
        >>> float(uc.get_total_norm(grads, norm_type=1))
        7.0
    """
    backend, tensors = framework.resolve(tensors)
    arguments = process_group, ownership, check_numel, check_replicas
    if plain_calls.is_plain(math.inf, norm_type, arguments) and error_if_nonfinite is False:
        tensors = listed(tensors)
        norm = plain_calls.total_norm(backend, tensors)
        if norm is not None:
            return norm
    spec = _declared(backend, tensors, arguments, in_place=False)
    try:
        p = validation.norm_type(norm_type)
    except (TypeError, ValueError):
        prepare_rejection_for(backend, tensors, spec, "total", in_place=False)
        raise
    gradients, _ = collect(backend, tensors, "get_total_norm", plain=not error_if_nonfinite, spec=spec)
    return rule.total_norm(gradients, p, error_if_nonfinite)


def clip_grads_with_norm_(
    framework: Framework[Number, Norm],
    parameters: Any,
    max_norm: Number,
    total_norm: Number,
    foreach: bool | None = None,
) -> None:
    """Clip the gradients to `max_norm`, given their norm `total_norm`, in place.

    `get_total_norm` followed by this function gives the same bits as `clip_grad_norm_`. Source:
    `torch.nn.utils.clip_grads_with_norm_`.

    Args:
        parameters: The parameters or gradients, as in `clip_grad_norm_`.
        max_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        total_norm: The total norm: a number, or a tensor with one element.
        foreach: Accepted for compatibility with `torch.nn.utils`, and ignored.

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is neither a tensor nor None. max_norm or
            total_norm is not a number.
        ValueError: max_norm or total_norm is negative. max_norm is NaN. Two gradients overlap in memory. A gradient is
            read-only or an expanded view.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> grads = [np.array([96.0, 128.0], np.float32)]
        >>> norm = uc.get_total_norm(grads)
        >>> uc.clip_grads_with_norm_(grads, max_norm=5.0, total_norm=norm)
        >>> grads[0]
        array([3., 4.], dtype=float32)
    """
    backend, parameters = framework.resolve(parameters)
    threshold = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    norm = validation.given_norm(backend, total_norm, "total_norm", differentiable=False)
    plain = isinstance(threshold, float) and isinstance(norm, float)
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grads_with_norm_", "clip_by_global_norm", plain=plain
    )
    rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, threshold, given_norm=norm))
    writer.finish()


# -- TensorFlow's names


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
        spec = _declared(backend, t_list, arguments, in_place=False)
        if use_norm is not None and spec.check_replicas:
            raise ValueError(
                "check_replicas is not supported with use_norm: only a call that measures the norm compares the copies "
                "of a gradient. Leave out check_replicas or use_norm"
            )
        known_norm = (
            None if use_norm is None else validation.given_norm(backend, use_norm, "use_norm", differentiable=True)
        )
        try:
            threshold = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
        except (TypeError, ValueError):
            if known_norm is None:
                prepare_rejection_for(backend, t_list, spec, "total", in_place=False)
            raise
        plain = isinstance(threshold, float) and isinstance(known_norm, (float, type(None)))
        gradients, writer = collect(
            backend,
            t_list,
            "clip_by_global_norm",
            plain=plain,
            spec=spec,
            measures="total" if known_norm is None else None,
        )
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
            end. None means all axes.
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
        spec = declared(process_group)
        try:
            threshold = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
        except (TypeError, ValueError):
            if axes is None:
                prepare_rejection_for(backend, t, spec, "each", in_place=False)
            raise
        validation.one_tensor(backend, t, "clip_by_norm")
        plain = isinstance(threshold, float) and axes is None
        gradients, writer = collect_one(backend, t, plain=plain, spec=spec, measures="each" if axes is None else None)
        along = None
        if axes is not None and gradients.values:
            along = validation.axes(axes, gradients.shape(0))
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
        spec = _declared(backend, t_list, arguments, in_place=False)
        return rule.total_norm(collect(backend, t_list, "global_norm", spec=spec)[0], 2.0)


def _declared(
    backend: Backend, container: Any, arguments: tuple[Any, Any, Any, Any], *, in_place: bool
) -> DistributedSpec:
    try:
        return declared(*arguments)
    except (TypeError, ValueError):
        process_group, ownership, *_ = arguments
        if process_group is not None:
            valid = DistributedSpec(process_group, None if ownership is None else DISTINCT)
            prepare_rejection_for(backend, container, valid, "total", in_place=in_place)
        raise
