"""Clip by an adaptive rule. The functions for a rule with a state get the state, and return the new state."""

from __future__ import annotations

import math
from typing import Any

from .._core import containers, entry, rule, validation
from .._core.backend import Backend
from .._core.collect import collect, collect_in_place, from_tree
from .._core.gradients import GradientList
from .._core.rule import ClipConvention, ClipRule
from .._core.types import Tensor
from .._dispatch import resolve
from . import state as states
from .rules import AGC, Data, Rule
from .units import UnitThresholds


def initial_state(adaptive: Rule, like: Any, data: Data | None = None) -> Tensor:
    """Return the initial state of a rule, or a saved state, as a tensor for the functions of this module.

    Args:
        adaptive: The adaptive rule, such as `ZClip()`.
        like: A tensor, or any container of tensors, such as the gradients. The state has the framework and the device
            of these tensors.
        data: A saved state that `read_state` returned. The default is the initial state.

    Returns:
        A float64 vector. On JAX, an int32 matrix, because JAX has no float64 without `jax_enable_x64`.

    Raises:
        ValueError: `data` is not a saved state, or is the state of another rule.
        TypeError: `adaptive` is not a rule with a state. The state grows in each step, like the state of `Percentile`
            without a window.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> grads = [np.array([3.0, 4.0], np.float32)]
        >>> adaptive.initial_state(adaptive.EmaRatio(), grads)
        array([0., 0.])
    """
    states.check_rule(adaptive)
    backend, like = resolve(like)
    states.check_fixed_size(adaptive)
    numbers = states.initial(adaptive) if data is None else states.from_data(adaptive, data)
    tensor = like[0] if isinstance(like, (list, tuple)) and like else like
    return backend.from_state(states.flatten(adaptive, numbers), tensor if backend.is_tensor(tensor) else None)


def read_state(adaptive: Rule, state: Tensor) -> Data:
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
    backend = states.backend_for(adaptive, state)
    try:
        values = backend.to_numpy(state)
    except (TypeError, AttributeError):  # raised by tensors in graphs of JAX and TensorFlow
        raise TypeError(
            "the state is inside a compiled graph, where it has no values. Return the state from the graph, and "
            "call read_state outside."
        ) from None
    return states.to_data(states.read_packed(adaptive, values))


@entry.public
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
        TypeError: As in `unified_clip.clip_grad_norm_`. Or `adaptive` is not a rule for the total norm, or `state` is
            not a tensor from `initial_state` or from a clip.
        ValueError: As in `unified_clip.clip_grad_norm_`. Or `state` has the wrong length for the rule.

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
    backend = states.backend_for(adaptive, state)
    limit = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    gradients, writer = collect_in_place(backend, parameters, "clip_grad_norm_", "clip_by_global_norm")
    norm, new = _clip(backend, gradients, rule.PYTORCH, adaptive, state, limit)
    writer.finish()
    return norm, new


@entry.public
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
        TypeError: As in `unified_clip.clip_by_global_norm`. Or `adaptive` is not a rule for the total norm, or `state`
            is not a tensor from `initial_state` or from a clip.
        ValueError: As in `unified_clip.clip_by_global_norm`. Or `state` has the wrong length for the rule.

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
    backend = states.backend_for(adaptive, state)
    limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
    gradients, writer = collect(backend, t_list, "clip_by_global_norm")
    norm, new = _clip(backend, gradients, rule.TENSORFLOW_GLOBAL, adaptive, state, limit)
    return writer.result(), norm, new


@entry.public
def clip_by_unit_norm(t_list: Any, parameters: Any, adaptive: AGC = AGC(), clip_norm: Any = math.inf) -> Any:  # noqa: B008
    """Clip each unit of each gradient by its own norm, and return new tensors.

    A unit is a row or a channel, as in `AGC`. The norm of each unit is limited to `clip_factor` times the norm of the
    same row or channel of the parameter.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None.
        parameters: The parameters, in the order of `t_list` or with the same keys. Derivatives treat them as
            constants.
        adaptive: The settings, such as `AGC(clip_factor=0.02, convention="optax")`.
        clip_norm: An upper limit for the threshold: a number, or a tensor with one element. inf means no limit.

    Raises:
        TypeError: A parameter is None or not a tensor. A gradient is sparse, or has an integer or boolean dtype.
            clip_norm is not a number. adaptive is not AGC.
        ValueError: `parameters` and `t_list` differ in their keys or their number of entries. A parameter and its
            gradient have different shapes. clip_norm is negative or NaN. A gradient is distributed, or has too many
            axes for the convention "optax".

    Source: Brock et al., "High-performance large-scale image recognition without normalization", 2021.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> grads = [np.array([[3.0, 4.0], [0.0, 0.1]], np.float32)]
        >>> parameters = [np.array([[6.0, 8.0], [0.0, 2.0]], np.float32)]
        >>> adaptive.clip_by_unit_norm(grads, parameters, adaptive.AGC(clip_factor=0.1))[0].tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.10000000149011612]]
    """
    if not isinstance(adaptive, AGC):
        raise states.wrong_rule(adaptive, "AGC()")
    backend, t_list = resolve(t_list)
    limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
    tree = containers.flatten(backend, t_list)
    tree = tree._replace(leaves=containers.with_parameters(backend, tree.leaves, parameters))
    gradients, writer = from_tree(backend, tree, differentiable=True, measures="total", function="clip_by_unit_norm")
    clip_rule = ClipRule("norm", rule.PADDLE, UnitThresholds(adaptive, limit))
    inputs = [] if isinstance(limit, float) else [limit]
    rule.apply(gradients, clip_rule, rule.measure(gradients, range(len(gradients.values)), clip_rule, inputs))
    return writer.result()


def _clip(
    backend: Backend, gradients: GradientList, convention: ClipConvention, adaptive: Rule, state: Tensor, limit: Any
) -> tuple[Tensor, Tensor]:
    """Clip, and return (the total norm, the new state)."""
    has_values = backend.has_values(state)
    current = states.read_packed(adaptive, backend.to_numpy(state)) if has_values else state
    threshold = states.RuleThreshold(adaptive, current, limit)
    inputs = [tensor for tensor in (limit, *([] if has_values else [state])) if not isinstance(tensor, float)]
    clip_rule = ClipRule("global_norm", convention, threshold)
    if gradients.shards is not None:
        gradients.set_consensus_fields({"adaptive": threshold.describe(), **convention.arguments})
    (norm,) = rule.measure(gradients, range(len(gradients.values)), clip_rule, inputs)
    if gradients.shards is None and not gradients.values:
        return norm.total, state
    rule.apply(gradients, clip_rule, [norm])
    new = norm.state
    return norm.total, backend.from_state(states.flatten(adaptive, new), state) if isinstance(new, dict) else new
