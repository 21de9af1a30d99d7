"""Clip functions as optax gradient transformations: `unified_clip.jax.transforms`.

Each function returns a stateless `optax.GradientTransformation`. Updates keep their structure, shapes and dtypes. None
and `optax.MaskedNode` stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.sparse import BCOO

from ..._api import tensorflow_functions
from ..._api.framework import Framework, to_backend
from ..._core import entry, rule, validation
from ..._core.collect import collect
from ..._core.distributed import DistributedSpec
from .backend import BACKEND, path_name

__all__ = ["clip_by_global_norm", "clip_by_norm", "clip_by_value", "clip_grad_norm", "gradient_clip_by_global_norm"]

NeedClip = Callable[[str], bool]

FRAMEWORK = Framework[Any, Any](__name__, to_backend(BACKEND))

_STATIC = "With optax.inject_hyperparams, also pass static_args='{}'"


def __dir__() -> list[str]:
    return __all__


def clip_grad_norm(max_norm: Any, norm_type: float | str = 2.0, *, process_group: Any = "auto") -> Any:
    """Clip all updates by their total norm n, as PyTorch does. Multiply each update by min(1, max_norm / (n + 1e-6)).

    Source: `torch.nn.utils.clip_grad_norm_`; Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent
    neural networks", 2013.

    Args:
        max_norm: The threshold: a number of 0 or more, or an array with one element. The array can be traced. If the
            threshold is inf, updates stay unchanged.
        norm_type: The order p of the norm: any p > 0, inf or 'inf'. A traced norm_type is not supported. With
            `optax.inject_hyperparams`, also pass `static_args='norm_type'`.
        process_group: Set this argument only inside `pmap`, or inside `shard_map` with `check_vma=False`. Pass the name
            of the axis over which updates are sharded, or a tuple of names. Pass None if each device has complete
            updates, as after `pmean`.

    Raises:
        ModuleNotFoundError: optax is not installed.
        TypeError: max_norm or norm_type is not a number. An update has an integer or boolean dtype.
        ValueError: max_norm is negative or NaN (unless it is traced), or has several elements. norm_type is not above
            0.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import unified_clip.jax as uc
        >>> optimizer = optax.chain(uc.transforms.clip_grad_norm(max_norm=1.0), optax.sgd(0.5))
        >>> params = {"w": jnp.zeros(2), "b": None}
        >>> updates, state = optimizer.update({"w": jnp.array([30.0, 40.0]), "b": None}, optimizer.init(params))
        >>> updates
        {'b': None, 'w': Array([-0.29999998, -0.39999998], dtype=float32)}
    """
    if isinstance(norm_type, jax.Array):
        raise TypeError(f"norm_type is an array. Pass a number, or 'inf'. {_STATIC.format('norm_type')}")
    return _by_one_norm(
        "clip_grad_norm", max_norm, "max_norm", rule.PYTORCH, process_group, validation.norm_type(norm_type)
    )


def clip_by_global_norm(clip_norm: Any, *, process_group: Any = "auto") -> Any:
    """Clip all updates by their total norm n, as TensorFlow does. Multiply each update by min(1, clip_norm / n).

    If n is NaN or inf, every element becomes NaN. `optax.clip_by_global_norm` rounds differently, and returns other
    results for NaN and inf. Source: `tf.clip_by_global_norm`; Pascanu, Mikolov and Bengio, "On the difficulty of
    training recurrent neural networks", 2013.

    Args:
        clip_norm: The threshold, as `max_norm` in `clip_grad_norm`.
        process_group: As in `clip_grad_norm`.

    Raises:
        ModuleNotFoundError: optax is not installed.
        TypeError: clip_norm is not a number. An update has an integer or boolean dtype.
        ValueError: clip_norm is negative or NaN, or has several elements. The value of a traced clip_norm is not
            checked.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import unified_clip.jax as uc
        >>> clip = uc.transforms.clip_by_global_norm(clip_norm=1.0)
        >>> updates, state = clip.update((jnp.array([3.0]), jnp.array([4.0])), clip.init(None))
        >>> updates
        (Array([0.6], dtype=float32), Array([0.8], dtype=float32))
    """
    return _by_one_norm("clip_by_global_norm", clip_norm, "clip_norm", rule.TENSORFLOW_GLOBAL, process_group)


def gradient_clip_by_global_norm(
    clip_norm: Any, need_clip: NeedClip | None = None, *, process_group: Any = "auto"
) -> Any:
    """Clip selected updates by their total norm n, as Paddle does. Multiply each update by min(1, clip_norm / n).

    If n is inf, finite updates become 0. Source: `paddle.nn.ClipGradByGlobalNorm`.

    Args:
        clip_norm: The threshold, as `max_norm` in `clip_grad_norm`.
        need_clip: A function that takes the path of an update, such as "encoder.0.bias", and returns whether to clip
            the update. The path joins keys, indices and field names by dots. If the function
            returns False, the update stays unchanged and is not part of the norm. With `optax.inject_hyperparams`, also
            pass `static_args='need_clip'`. To exclude updates by a mask, use `optax.masked`.
        process_group: As in `clip_grad_norm`.

    Raises:
        ModuleNotFoundError: optax is not installed.
        TypeError: clip_norm is not a number. need_clip is not a function. An update has an integer or boolean dtype.
        ValueError: clip_norm is negative or NaN, or has several elements. The value of a traced clip_norm is not
            checked.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import unified_clip.jax as uc
        >>> clip = uc.transforms.gradient_clip_by_global_norm(1.0, need_clip=lambda path: not path.endswith("bias"))
        >>> updates, state = clip.update({"w": jnp.array([3.0, 4.0]), "bias": jnp.array([2.0])}, clip.init(None))
        >>> updates
        {'bias': Array([2.], dtype=float32), 'w': Array([0.6, 0.8], dtype=float32)}
    """
    if need_clip is not None and not callable(need_clip):
        raise TypeError(
            f"need_clip is {need_clip!r}. Pass a function that takes the path of an update, and returns whether to "
            "clip the update. Or wrap the transformation in optax.masked. " + _STATIC.format("need_clip")
        )
    name = "gradient_clip_by_global_norm"
    return _by_one_norm(name, clip_norm, "clip_norm", rule.PADDLE, process_group, need_clip=need_clip)


def clip_by_norm(clip_norm: Any, *, process_group: Any = "auto") -> Any:
    """Clip each update by its own 2-norm n, as TensorFlow and Paddle do. Multiply the update by min(1, clip_norm / n).

    Source: `tf.clip_by_norm`, `paddle.nn.ClipGradByNorm`.

    Args:
        clip_norm: The threshold, as `max_norm` in `clip_grad_norm`.
        process_group: As in `clip_grad_norm`.

    Raises:
        ModuleNotFoundError: optax is not installed.
        TypeError: clip_norm is not a number. An update has an integer or boolean dtype.
        ValueError: clip_norm is negative or NaN, or has several elements. The value of a traced clip_norm is not
            checked.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import unified_clip.jax as uc
        >>> clip = uc.transforms.clip_by_norm(clip_norm=1.0)
        >>> updates, state = clip.update([jnp.array([3.0, 4.0]), jnp.array([0.5])], clip.init(None))
        >>> updates
        [Array([0.6, 0.8], dtype=float32), Array([0.5], dtype=float32)]
    """
    validation.threshold(BACKEND, clip_norm, "clip_norm", differentiable=True)
    return _transformation(
        "clip_by_norm",
        lambda updates: [
            tensorflow_functions.clip_by_norm(FRAMEWORK, update, clip_norm, process_group=process_group)
            for update in updates
        ],
    )


def clip_by_value(clip_value_min: Any, clip_value_max: Any) -> Any:
    """Clip every element of every update to [clip_value_min, clip_value_max]. NaN stays NaN.

    Source: `tf.clip_by_value`, `paddle.nn.ClipGradByValue`, `torch.nn.utils.clip_grad_value_`. PyTorch's `clip_value=c`
    means the bounds -c and c.

    Args:
        clip_value_min: The lower bound: a number, or an array with one element. The array can be traced. The bound is
            rounded to the dtype of each update.
        clip_value_max: The upper bound: a number, or an array with one element. The array can be traced. The bound is
            rounded to the dtype of each update.

    Raises:
        ModuleNotFoundError: optax is not installed.
        TypeError: A bound is not a number. An update has an integer dtype, and a bound is a fraction such as 0.5. An
            update has a complex or boolean dtype.
        ValueError: A bound is NaN, or the lower bound is above the upper bound. Traced bounds are not checked.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import unified_clip.jax as uc
        >>> clip = uc.transforms.clip_by_value(-1.0, 1.0)
        >>> updates, state = clip.update([jnp.array([-3.0, 0.5])], clip.init(None))
        >>> updates
        [Array([-1. ,  0.5], dtype=float32)]
    """
    low = validation.bound(BACKEND, clip_value_min, "clip_value_min")
    high = validation.bound(BACKEND, clip_value_max, "clip_value_max")
    if isinstance(low, int | float) and isinstance(high, int | float):
        validation.ordered(low > high, low, high)
    return _transformation(
        "clip_by_value",
        lambda updates: [tensorflow_functions.clip_by_value(FRAMEWORK, update, low, high) for update in updates],
    )


def _by_one_norm(
    name: str,
    threshold: Any,
    argument: str,
    family: rule.ClipConvention,
    process_group: Any,
    p: float = 2.0,
    need_clip: NeedClip | None = None,
) -> Any:
    spec = DistributedSpec(process_group)
    limit = validation.threshold(BACKEND, threshold, argument, differentiable=True)

    def clip(updates: Sequence[Any]) -> Any:
        gradients, writer = collect(BACKEND, list(updates), name, spec=spec)
        rule.clip(gradients, rule.ClipRule("global_norm", family, limit, p=p))
        return writer.result()

    return _transformation(name, clip, need_clip)


def _transformation(
    name: str, clip: Callable[[Sequence[Any]], Sequence[Any]], need_clip: NeedClip | None = None
) -> Any:
    try:
        import optax
    except ModuleNotFoundError as error:
        if error.name != "optax":
            raise
        message = "unified_clip.jax.transforms needs optax, which is not installed. Install it: pip install optax"
        raise ModuleNotFoundError(message, name="optax") from None

    clip.__name__ = f"transforms.{name}"  # for a recording

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        leaves, structure = jax.tree_util.tree_flatten_with_path(updates, is_leaf=lambda x: isinstance(x, BCOO))
        clipped = [leaf for _, leaf in leaves]
        taken = [index for index, (path, _) in enumerate(leaves) if need_clip is None or need_clip(path_name(path))]
        for index, result in zip(taken, entry.run(clip, [clipped[index] for index in taken]), strict=True):
            clipped[index] = result
        return jax.tree_util.tree_unflatten(structure, clipped), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
