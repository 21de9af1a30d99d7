"""Functions with PyTorch's names and formulas. Each namespace, such as `unified_clip.jax`, binds them."""

# mypy: no-warn-return-any
# Tensors are Any here. `Framework.bind` gives the functions the types of a framework.

from __future__ import annotations

import math
from typing import Any

from .._core import rule, validation
from .._core.collect import collect, collect_in_place, declared_spec, listed
from .._core.rule import ClipRule
from . import plain_calls
from .framework import Framework, Norm, Number

BY_VALUE = "ClipConfig(rule='value', threshold=clip_value)(grads)"


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
            Paddle, a group of `paddle.distributed` or a `ProcessMesh`. On JAX, the names of mesh axes, inside
            `shard_map` and `pmap`. On other frameworks, keep the default.
        ownership: Which rank owns a gradient element, on PyTorch and Paddle. Only the owner includes the element in
            the norm. If placements do not determine the owner, pass 'replicated' (every rank has a copy) or
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
    spec = declared_spec(backend, parameters, arguments, in_place=True)
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grad_norm_", "clip_by_global_norm", spec=spec, measures="total"
    )
    threshold = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    p = validation.norm_type(norm_type)
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
    gradients, writer = collect_in_place(backend, parameters, "clip_grad_value_", BY_VALUE, reject_complex=True)
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
    spec = declared_spec(backend, tensors, arguments, in_place=False)
    gradients, _ = collect(backend, tensors, "get_total_norm", spec=spec)
    return rule.total_norm(gradients, validation.norm_type(norm_type), error_if_nonfinite)


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
    gradients, writer = collect_in_place(backend, parameters, "clip_grads_with_norm_", "clip_by_global_norm")
    rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, threshold, given_norm=norm))
    writer.finish()
