"""Clip each tensor, or each row or channel of a tensor, by an adaptive threshold."""

from __future__ import annotations

import math
from typing import Any

from .._core import containers, entry, rule, validation
from .._core.backend import Backend
from .._core.collect import from_tree, in_place
from .._core.gradients import GradientList
from .._core.rule import ClipRule, OwnThresholds
from .._core.types import Tensor
from .._core.writers import Functional
from .._dispatch import resolve
from . import state as states
from . import tensor_thresholds, unit_thresholds
from .rules import AGC, AdaGC

IN_PLACE = "clip_by_unit_norm"


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
    return entry.run(_clip_by_unit_norm, t_list, parameters, adaptive, clip_norm)


def clip_unit_norm_(parameters: Any, adaptive: AGC = AGC(), max_norm: Any = math.inf) -> None:  # noqa: B008
    """Clip each row or channel of each gradient in place, on PyTorch or Paddle. See `clip_by_unit_norm`.

    Args:
        parameters: The parameters whose `.grad` is clipped: one parameter, an iterable or a dict.
        adaptive: The settings, such as `AGC(clip_factor=0.02)`.
        max_norm: An upper limit for the threshold: a number, or a tensor with one element. inf means no limit.

    Raises:
        TypeError: The framework is not PyTorch or Paddle. A gradient is sparse. max_norm is not a number. adaptive is
            not AGC.
        ValueError: max_norm is negative or NaN. Two gradients overlap in memory. A gradient is read-only or an expanded
            view. A gradient is distributed, or has too many axes for the convention "optax".

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> adaptive.clip_unit_norm_([np.ones(2, np.float32)])
        Traceback (most recent call last):
        TypeError: parameters of numpy have no gradients. Use clip_by_unit_norm(gradients, parameters)
    """
    entry.run(_clip_unit_norm_, parameters, adaptive, max_norm)


def clip_by_tensor_norm(
    t_list: Any, adaptive: AdaGC, state: Tensor, clip_norm: Any = math.inf
) -> tuple[Any, Tensor, Tensor]:
    """Clip each gradient by its own adaptive threshold, which a rule computes from the gradient's earlier norms.

    Args:
        t_list: The gradients: one tensor, or any container of tensors and None. The number of entries must be the same
            in each step.
        adaptive: The rule, such as `AdaGC()`.
        state: The state that `initial_state(adaptive, t_list)` or the last call returned.
        clip_norm: An upper limit for the threshold: a number, or a tensor with one element. inf means no limit.

    Returns:
        (the clipped gradients, the total norm before clipping, the new state).

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is not a tensor. clip_norm is not a number.
            `adaptive` is not an `AdaGC` rule. `state` is not a tensor that `initial_state` or a clip returned.
        ValueError: clip_norm is negative or NaN. `t_list` has more or fewer tensors than `state` was created for.

    Source: Wang et al., "AdaGC: Improving training stability for large language model pretraining", 2025.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> rule, grads = adaptive.AdaGC(ratio=1.0, warmup_steps=1), [np.array([0.6, 0.8]), np.array([0.0])]
        >>> state = adaptive.initial_state(rule, grads)
        >>> _, norm, state = adaptive.clip_by_tensor_norm(grads, rule, state)
        >>> clipped, norm, state = adaptive.clip_by_tensor_norm([4 * grads[0], np.array([3.0])], rule, state)
        >>> float(norm), clipped[0].round(3), clipped[1]
        (5.0, array([0.6, 0.8]), array([3.]))
    """
    return entry.run(_clip_by_tensor_norm, t_list, adaptive, state, clip_norm)


def clip_tensor_norm_(
    parameters: Any, adaptive: AdaGC, state: Tensor, max_norm: Any = math.inf
) -> tuple[Tensor, Tensor]:
    """Clip each gradient in place by its own adaptive threshold. See `clip_by_tensor_norm`.

    Args:
        parameters: On PyTorch and Paddle, the parameters whose `.grad` is clipped. On NumPy and MLX, the gradients. On
            TensorFlow and JAX, a list or a dict, in which the clipped tensors replace the gradients. The number of
            entries must be the same in each step.
        adaptive: The rule, such as `AdaGC()`.
        state: The state that `initial_state(adaptive, parameters)` or the last call returned.
        max_norm: An upper limit for the threshold: a number, or a tensor with one element. inf means no limit.

    Returns:
        (the total norm before clipping, the new state).

    Raises:
        TypeError: A gradient has an integer or boolean dtype. An entry is not a tensor. max_norm is not a number.
            `adaptive` is not an `AdaGC` rule. `state` is not a tensor that `initial_state` or a clip returned.
        ValueError: max_norm is negative or NaN. Two gradients overlap in memory. A gradient is read-only or an expanded
            view. `parameters` has more or fewer tensors than `state` was created for.

    Example:
        >>> import numpy as np
        >>> from unified_clip import adaptive
        >>> rule, grads = adaptive.AdaGC(), [np.array([3.0, 4.0], np.float32)]
        >>> norm, state = adaptive.clip_tensor_norm_(grads, rule, adaptive.initial_state(rule, grads))
        >>> float(norm), grads[0].round(3)
        (5.0, array([0.6, 0.8], dtype=float32))
    """
    return entry.run(_clip_tensor_norm_, parameters, adaptive, state, max_norm)


def _clip_by_unit_norm(t_list: Any, parameters: Any, adaptive: AGC, clip_norm: Any) -> Any:
    states.check_rule(adaptive, AGC)
    backend, t_list = resolve(t_list)
    limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
    tree = containers.flatten(backend, t_list)
    leaves = containers.with_parameters(backend, tree.leaves, parameters)
    gradients, writer = _checked(backend, tree._replace(leaves=leaves), "clip_by_unit_norm")
    _clip(gradients, unit_thresholds.UnitThresholds(adaptive, limit), limit)
    return writer.result()


def _clip_unit_norm_(parameters: Any, adaptive: AGC, max_norm: Any) -> None:
    states.check_rule(adaptive, AGC)
    backend, parameters = resolve(parameters)
    if backend.parameters is None:
        raise TypeError(f"parameters of {backend.name} have no gradients. Use clip_by_unit_norm(gradients, parameters)")
    limit = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    gradients, writer = in_place(backend, parameters, "clip_unit_norm_", IN_PLACE)
    _clip(gradients, unit_thresholds.UnitThresholds(adaptive, limit), limit)
    writer.finish()


def _clip_by_tensor_norm(t_list: Any, adaptive: AdaGC, state: Tensor, clip_norm: Any) -> tuple[Any, Tensor, Tensor]:
    backend = states.backend_for(adaptive, state, AdaGC)
    limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
    tree = containers.flatten(backend, t_list)
    gradients, writer = _checked(backend, tree, "clip_by_tensor_norm")
    norm, new = _advance(backend, gradients, adaptive, state, len(tree.leaves), limit)
    return writer.result(), norm, new


def _clip_tensor_norm_(parameters: Any, adaptive: AdaGC, state: Tensor, max_norm: Any) -> tuple[Tensor, Tensor]:
    backend = states.backend_for(adaptive, state, AdaGC)
    limit = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    gradients, writer = in_place(backend, parameters, "clip_tensor_norm_", "clip_by_tensor_norm")
    norm, new = _advance(backend, gradients, adaptive, state, writer.entries, limit)
    writer.finish()
    return norm, new


def _checked(backend: Backend, tree: containers.Tree, function: str) -> tuple[GradientList, Functional]:
    return from_tree(backend, tree, differentiable=True, measures="total", function=function)


def _advance(
    backend: Backend, gradients: GradientList, adaptive: AdaGC, state: Tensor, count: int, limit: Any
) -> tuple[Tensor, Tensor]:
    has_values = backend.has_values(state)
    current = states.read_packed(adaptive, backend.to_numpy(state)) if has_values else state
    norms = _clip(
        gradients,
        tensor_thresholds.TensorThresholds(adaptive, current, count, limit),
        *([] if has_values else [state]),
        limit,
    )
    if not norms:
        return rule.total_norm(gradients, 2.0), state
    new, total = norms[0].state, norms[0].total
    if isinstance(new, dict):
        new = backend.from_state(states.flatten(adaptive, new), state)
    return rule.total_norm(gradients, 2.0) if total is None else total, new


def _clip(gradients: GradientList, thresholds: OwnThresholds, *inputs: Any) -> list[rule.Norm]:
    clip_rule = ClipRule("norm", rule.PADDLE, thresholds)
    if gradients.shards is not None:
        gradients.set_consensus_fields({"adaptive": thresholds.describe(), **clip_rule.convention.arguments})
    tensor_inputs = [tensor for tensor in inputs if not isinstance(tensor, float)]
    norms = rule.measure(gradients, range(len(gradients.values)), clip_rule, tensor_inputs)
    rule.apply(gradients, clip_rule, norms)
    return norms
