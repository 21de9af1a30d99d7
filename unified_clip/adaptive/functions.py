"""Clip by an adaptive rule. The functions get the state as an argument, and return the new state."""

from __future__ import annotations

import math
from typing import Any

from .._core import containers, entry, rule, validation
from .._core.backend import Backend
from .._core.collect import collect, collect_in_place
from .._core.gradients import GradientList
from .._core.rule import ClipConvention, ClipRule
from .._core.types import Tensor
from .._dispatch import backend_of, resolve
from . import state as states
from . import tensor_thresholds
from .rules import AdaGC, Data, Rule


def initial_state(adaptive: Rule | AdaGC, like: Any, data: Data | None = None) -> Tensor:
    """Return the initial state of a rule, or a saved state, as a tensor for the functions of this module.

    Args:
        adaptive: The adaptive rule, such as `ZClip()`.
        like: A tensor, or any container of tensors, such as the gradients. The state has the framework and the device
            of these tensors. For `AdaGC`, pass all tensors that you clip together, because the state has a number for
            each tensor.
        data: A saved state that `read_state` returned. The default is the initial state.

    Returns:
        A float64 vector. On JAX, an int32 matrix, because JAX has no float64 without `jax_enable_x64`.

    Raises:
        ValueError: `data` is not a saved state, or is the state of another rule. For `AdaGC`, `like` has more
            or fewer tensors than `data` was saved for.
        TypeError: `adaptive` is not a rule with a state. The state grows in each step, like the state of `Percentile`
            without a window.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> grads = [np.array([3.0, 4.0], np.float32)]
        >>> adaptive.initial_state(adaptive.EmaRatio(), grads)
        array([0., 0.])
    """
    states.check_rule(adaptive, Rule, AdaGC)
    backend, like = resolve(like)
    states.check_fixed_size(adaptive)
    numbers = states.initial(adaptive) if data is None else states.from_data(adaptive, data)
    if isinstance(adaptive, AdaGC):
        numbers = tensor_thresholds.resize(numbers, len(containers.flatten(backend, like).leaves))
    tensor = like[0] if isinstance(like, (list, tuple)) and like else like
    state = backend.from_state(states.flatten(adaptive, numbers), tensor if backend.is_tensor(tensor) else None)
    backend_of(state)  # so that torch.compile can trace it
    return state


def read_state(adaptive: Rule | AdaGC, state: Tensor) -> Data:
    """Return a state as a dict of numbers and lists of numbers, such as for a JSON file.

    Args:
        adaptive: The adaptive rule, such as `ZClip()`.
        state: The state that `initial_state` or the last clip returned.

    Raises:
        TypeError: `state` is inside a compiled graph of JAX or TensorFlow, or is not a tensor from `initial_state` or
            from a clip. `adaptive` is not a rule with a state.
        ValueError: `state` belongs to another rule.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> rule = adaptive.EmaRatio()
        >>> adaptive.read_state(rule, adaptive.initial_state(rule, [np.zeros(2, np.float32)]))
        {'steps': 0.0, 'mean': 0.0}
    """
    backend = states.backend_for(adaptive, state, Rule, AdaGC)
    try:
        values = backend.to_numpy(state)
    except (TypeError, AttributeError):  # raised by tensors in graphs of JAX and TensorFlow
        raise TypeError(
            "the state is inside a compiled graph, where it has no values. Return the state from the graph, and "
            "call read_state outside."
        ) from None
    return states.to_data(states.read_packed(adaptive, values))


def clip_grad_norm_(parameters: Any, adaptive: Rule, state: Tensor, max_norm: Any = math.inf) -> tuple[Tensor, Tensor]:
    """Clip all gradients in place by their total norm. An adaptive rule computes the threshold.

    Args:
        parameters: On PyTorch and Paddle, the parameters whose `.grad` is clipped. On NumPy and MLX, the gradients. On
            TensorFlow and JAX, a list or a dict, in which the clipped tensors replace the gradients.
        adaptive: The rule, such as `ZClip()`.
        state: The state that `initial_state` or the last clip returned.
        max_norm: An upper limit for the threshold: a number, or a tensor with one element. inf means no limit.

    Returns:
        (the total norm before clipping, the new state).

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is not a tensor. max_norm is not a number.
            `adaptive` is not a rule for the total norm. `state` is not a tensor from `initial_state` or from a clip.
        ValueError: max_norm is negative or NaN. Two gradients overlap in memory. A gradient is read-only or an expanded
            view. `state` has the wrong length for the rule. The gradients are distributed, and the norm over all ranks
            cannot be computed.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> rule, grads = adaptive.EmaRatio(ratio=1.0, warmup_steps=1), [np.array([3.0, 4.0], np.float32)]
        >>> state = adaptive.initial_state(rule, grads)
        >>> for _ in range(2):
        ...     grads = [2 * grads[0]]
        ...     norm, state = adaptive.clip_grad_norm_(grads, rule, state)
        >>> float(norm), grads[0].round(3)
        (20.0, array([6., 8.], dtype=float32))
    """
    return entry.run(_clip_grad_norm_, parameters, adaptive, state, max_norm)


def clip_by_global_norm(
    t_list: Any, adaptive: Rule, state: Tensor, clip_norm: Any = math.inf
) -> tuple[Any, Tensor, Tensor]:
    """Clip all gradients by their total norm, and return new tensors. An adaptive rule computes the threshold.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None.
        adaptive: The rule, such as `ZClip()`.
        state: The state that `initial_state` or the last clip returned.
        clip_norm: An upper limit for the threshold: a number, or a tensor with one element. inf means no limit.

    Returns:
        (the clipped gradients, the total norm before clipping, the new state).

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is not a tensor. clip_norm is not a number.
            `adaptive` is not a rule for the total norm. `state` is not a tensor from `initial_state` or from a clip.
        ValueError: clip_norm is negative or NaN. `state` has the wrong length for the rule. The gradients are
            distributed, and the norm over all ranks cannot be computed.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> rule, grads = adaptive.EmaRatio(ratio=1.0, warmup_steps=1), [np.array([3.0, 4.0], np.float32)]
        >>> state = adaptive.initial_state(rule, grads)
        >>> _, norm, state = adaptive.clip_by_global_norm(grads, rule, state)
        >>> clipped, norm, state = adaptive.clip_by_global_norm([2 * grads[0]], rule, state)
        >>> float(norm), clipped[0]
        (10.0, array([3., 4.], dtype=float32))
    """
    return entry.run(_clip_by_global_norm, t_list, adaptive, state, clip_norm)


def _clip_grad_norm_(parameters: Any, adaptive: Rule, state: Tensor, max_norm: Any) -> tuple[Tensor, Tensor]:
    backend = states.backend_for(adaptive, state, Rule)
    limit = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    has_values = backend.has_values(state)
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grad_norm_", "clip_by_global_norm", plain=has_values and isinstance(limit, float)
    )
    norm, new = _clip(backend, gradients, adaptive, state, has_values, limit, rule.PYTORCH)
    writer.finish()
    return norm, new


def _clip_by_global_norm(t_list: Any, adaptive: Rule, state: Tensor, clip_norm: Any) -> tuple[Any, Tensor, Tensor]:
    backend = states.backend_for(adaptive, state, Rule)
    limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
    has_values = backend.has_values(state)
    gradients, writer = collect(backend, t_list, "clip_by_global_norm", plain=has_values and isinstance(limit, float))
    norm, new = _clip(backend, gradients, adaptive, state, has_values, limit, rule.TENSORFLOW_GLOBAL)
    return writer.result(), norm, new


def _clip(
    backend: Backend,
    gradients: GradientList,
    adaptive: Rule,
    state: Tensor,
    has_values: bool,
    limit: Any,
    convention: ClipConvention,
) -> tuple[Tensor, Tensor]:
    current = states.read_packed(adaptive, backend.to_numpy(state)) if has_values else state
    threshold = states.RuleThreshold(adaptive, current, limit)
    inputs = [] if has_values else [tensor for tensor in (state, limit) if not isinstance(tensor, float)]
    clip_rule = ClipRule("global_norm", convention, threshold)
    if gradients.shards is not None:
        fields = {"adaptive": threshold.describe(), **convention.arguments}
        gradients.set_consensus_fields(fields)
    norms = rule.measure(gradients, range(len(gradients.values)), clip_rule, inputs)
    if gradients.shards is None and not gradients.values:
        return norms[0].total, state
    rule.apply(gradients, clip_rule, norms)
    new = norms[0].state
    if isinstance(new, dict):
        new = backend.from_state(states.flatten(adaptive, new), state)
    return norms[0].total, new
