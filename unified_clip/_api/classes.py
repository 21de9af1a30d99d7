"""The public classes. Each public module, such as `unified_clip.torch`, has subclasses for its framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from .._core import containers, entry, rule, validation
from .._core.backend import Backend
from .._core.collect import ParamGrads, collect_in_place, from_tree, read_pairs, wants_clipping
from .._core.containers import Tree
from .._core.distributed import INFERRED, DistributedSpec, Measures
from .._core.gradients import GradientList
from .._core.rule import ClipRule
from .._core.types import Leaf, Tensor
from .._core.writers import Functional
from .framework import Framework

NeedClip = Callable[[Any], bool]


class FrameworkBinding:
    _framework: ClassVar[Framework[Any, Any]]

    recorded_as: ClassVar[str]

    def __init_subclass__(cls, framework: Framework[Any, Any] | None = None) -> None:
        if framework is not None:
            cls._framework = framework
        cls.recorded_as = cls.__name__
        cls.__doc__ = cls.__doc__ or cls.__mro__[1].__doc__


class GradientClip(FrameworkBinding):
    _instead: ClassVar[str] = "a ClipConfig, clip(grads)"

    def __init__(self, need_clip: NeedClip | None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise TypeError(
                f"need_clip is {need_clip!r}. Pass None, or a function that gets a parameter and returns True or False"
            )
        self.need_clip = need_clip

    @entry.public
    def __call__(self, params_grads: Iterable[Any]) -> ParamGrads:
        """Return (parameter, gradient) tuples with clipped gradients.

        Args:
            params_grads: An iterable of (parameter, gradient) tuples. On TensorFlow, (gradient, parameter) tuples are
                also allowed. A gradient can be None. A tuple can contain a name in place of a parameter.

        Returns:
            A list of tuples, in the order of params_grads. If a gradient stays unchanged, an eager clip by norm on a
            CPU returns the same tensor, not a copy.

        Raises:
            TypeError: params_grads is not an iterable of (parameter, gradient) tuples. A gradient has an integer or
                boolean dtype. The clip is GradientClipByValue, and a gradient has a complex dtype.
            ValueError: The gradients are distributed, and the norm over all ranks cannot be computed.
        """
        backend, params_grads = self._framework.resolve(params_grads)
        total_clip = self._whole(backend, params_grads)
        if total_clip is None:
            return clip_pairs(backend, params_grads, lambda parameter: self)
        gradients, writer = total_clip
        self._clip(gradients)
        pairs: ParamGrads = writer.result()
        return pairs

    @entry.public
    def clip_(self, parameters: Any) -> Tensor | None:
        """Clip the gradients of `parameters` in place.

        Args:
            parameters: On PyTorch and Paddle, the parameters whose `.grad` is clipped. On NumPy and MLX, the gradients.
                On TensorFlow and JAX, a list or a dict, in which the clipped tensors replace the gradients.

        Returns:
            The total norm before clipping for GradientClipByGlobalNorm, and None for other clips.

        Raises:
            TypeError: A gradient has an integer or boolean dtype. The clip is GradientClipByValue, and a gradient has a
                complex dtype. An entry of `parameters` is not a tensor. On TensorFlow and JAX: `parameters` is not a
                list or a dict.
            ValueError: Two gradients overlap in memory. A gradient is read-only or an expanded view. The gradients are
                distributed, and the norm over all ranks cannot be computed.
        """
        backend, parameters = self._framework.resolve(parameters)
        gradients, writer = collect_in_place(
            backend,
            parameters,
            f"{type(self).__name__}.clip_",
            self._instead,
            keep=wants_clipping if self.need_clip is None else self._takes,
            reject_complex=self._needs_order,
            spec=self._spec,
            measures=self._measures,
        )
        norm = self._clip(gradients)
        writer.finish()
        return norm

    _needs_order: ClassVar[bool] = False
    _measures: ClassVar[Measures | None] = None

    _spec = INFERRED

    def _whole(self, backend: Backend, pairs: Any) -> tuple[GradientList, Functional] | None:
        if self.need_clip is not None or self._spec.is_given:
            return None
        if type(pairs) not in (list, tuple) or backend.parameters is None:
            return None
        path = backend.parameters.collect_param_grads(pairs)
        if path is None:
            return None
        parameters, gradients = zip(*pairs, strict=True)
        writer = Functional(gradients, lambda new: list(zip(parameters, new, strict=True)), reuse_unchanged=True)
        entries, function = (lambda: read_pairs(backend, pairs)[0]), type(self).__name__
        return GradientList(backend, path.tensors, writer, entries, function, collected=path), writer

    def _takes(self, parameter: Any) -> bool:
        return wants_clipping(parameter) and (self.need_clip is None or bool(self.need_clip(parameter)))

    @abstractmethod
    def _clip(self, gradients: GradientList) -> Tensor | None:
        """Return the total norm if the clip has one. The caller writes the clipped tensors back."""

    def _group(self) -> object:
        """Return the key of a group. `append_gradient_clip_ops` clips parameters with equal keys together."""
        return id(self)


class GradientClipByValue(GradientClip):
    """Clip every element of every gradient to [min, max]. NaN stays NaN.

    Call `clip_` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with clipped
    gradients. For `grad_clip=` of Paddle's optimizers, use the class in `unified_clip.paddle`. Source:
    `paddle.nn.ClipGradByValue`, `paddle.fluid.clip.GradientClipByValue`.

    Args:
        max: The upper bound, a number.
        min: The lower bound, a number. None means -max.
        need_clip: A function that gets a parameter, and returns False to leave its gradient unchanged. The attribute
            `need_clip = False` of a parameter has the same effect.

    Raises:
        TypeError: A bound is not a number. A bound is a tensor on a GPU or in a graph. need_clip is not a function.
        ValueError: A bound is NaN. `min` is above `max`. `max` is negative and `min` is None.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> clip = uc.GradientClipByValue(max=5.0)
        >>> grads = [np.array([6.0, 8.0], np.float32)]
        >>> clip.clip_(grads)
        >>> grads[0]
        array([5., 5.], dtype=float32)
    """

    _needs_order = True

    def __init__(self, max: Any, min: Any = None, need_clip: NeedClip | None = None) -> None:
        super().__init__(need_clip)
        self.min, self.max = validation.known_bounds(self._framework.resolve(max)[0], max, min)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max={self.max}, min={self.min})"

    def _clip(self, gradients: GradientList) -> None:
        rule.clip(gradients, ClipRule("value", bounds=(self.min, self.max)))


class GradientClipByNorm(GradientClip):
    """Clip every gradient by its own 2-norm n: multiply it by min(1, clip_norm / n).

    Call `clip_` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with clipped
    gradients. For `grad_clip=` of Paddle's optimizers, use the class in `unified_clip.paddle`. Source:
    `paddle.nn.ClipGradByNorm`, `paddle.fluid.clip.GradientClipByNorm`.

    Args:
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        need_clip: A function that gets a parameter, and returns False to leave its gradient unchanged. The attribute
            `need_clip = False` of a parameter has the same effect.
        process_group: As in `clip_grad_norm_`.

    Raises:
        TypeError: clip_norm is not a number. clip_norm is a tensor on a GPU or in a graph. need_clip is not a function.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> clip = uc.GradientClipByNorm(clip_norm=5.0)
        >>> grads = [np.array([6.0, 8.0], np.float32)]
        >>> clip.clip_(grads)
        >>> grads[0]
        array([3., 4.], dtype=float32)
    """

    _measures = "each"

    def __init__(self, clip_norm: Any, need_clip: NeedClip | None = None, *, process_group: Any = "auto") -> None:
        super().__init__(need_clip)
        self._spec = DistributedSpec(process_group)
        self.clip_norm = validation.known_threshold(self._framework.resolve(clip_norm)[0], clip_norm, "clip_norm")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clip_norm={self.clip_norm})"

    def _clip(self, gradients: GradientList) -> None:
        rule.clip(gradients, ClipRule("norm", rule.PADDLE, self.clip_norm))


class GradientClipByGlobalNorm(GradientClip):
    """Clip all gradients of a call by their total norm n: multiply each gradient by min(1, clip_norm / n).

    Call `clip_` before each step. Or call the instance with (parameter, gradient) tuples to get tuples with clipped
    gradients. For `grad_clip=` of Paddle's optimizers, use the class in `unified_clip.paddle`. Source:
    `paddle.nn.ClipGradByGlobalNorm`, `paddle.fluid.clip.GradientClipByGlobalNorm`; Pascanu, Mikolov and Bengio, "On the
    difficulty of training recurrent neural networks", 2013.

    Args:
        clip_norm: The threshold: a number of at least 0, or a tensor with one element. inf means no limit.
        group_name: A name for `append_gradient_clip_ops`: clips with the same name and threshold share one total norm.
        auto_skip_clip: Accepted for compatibility with Paddle, and ignored.
        need_clip: A function that gets a parameter, and returns False to exclude its gradient from the norm and the
            clip. The attribute `need_clip = False` of a parameter has the same effect.
        process_group: As in `clip_grad_norm_`.
        ownership: As in `clip_grad_norm_`.
        check_numel: As in `clip_grad_norm_`.
        check_replicas: As in `clip_grad_norm_`.

    Raises:
        TypeError: clip_norm is not a number. clip_norm is a tensor on a GPU or in a graph. need_clip is not a function.
            group_name is not a string.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> clip = uc.GradientClipByGlobalNorm(clip_norm=5.0)
        >>> grads = [np.array([6.0, 8.0], np.float32)]
        >>> norm = clip.clip_(grads)
        >>> grads[0]
        array([3., 4.], dtype=float32)
    """

    _measures = "total"

    def __init__(
        self,
        clip_norm: Any,
        group_name: str = "default_group",
        auto_skip_clip: bool = False,
        need_clip: NeedClip | None = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
        check_replicas: bool = False,
    ) -> None:
        super().__init__(need_clip)
        if not isinstance(group_name, str):
            raise TypeError(f"group_name is {group_name!r}. Pass a string")
        self.clip_norm = validation.known_threshold(self._framework.resolve(clip_norm)[0], clip_norm, "clip_norm")
        self.group_name = group_name
        self.auto_skip_clip = auto_skip_clip
        self._spec = DistributedSpec(process_group, ownership, check_numel, check_replicas)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clip_norm={self.clip_norm}, group_name={self.group_name!r})"

    def _clip(self, gradients: GradientList) -> Tensor:
        return rule.clip(gradients, ClipRule("global_norm", rule.PADDLE, self.clip_norm))

    def _group(self) -> object:
        return (self.group_name, self.clip_norm)


class ErrorClipByValue(FrameworkBinding):
    """Clip every element of one gradient to [min, max]. NaN stays NaN.

    Call the instance with the gradient to get the clipped gradient. On PyTorch and Paddle, the instance can be the hook
    of a tensor: `hidden.register_hook(clip)`. Source: `paddle.fluid.clip.ErrorClipByValue`.

    Args:
        max: The upper bound, a number.
        min: The lower bound, a number. None means -max.

    Raises:
        TypeError: A bound is not a number. A bound is a tensor on a GPU or in a graph.
        ValueError: A bound is NaN. `min` is above `max`. `max` is negative and `min` is None.

    Example:
        >>> import numpy as np
        >>> import unified_clip as uc
        >>> clip = uc.ErrorClipByValue(max=2.0)
        >>> clip(np.array([5.0, 1.0], np.float32))
        array([2., 1.], dtype=float32)
    """

    def __init__(self, max: Any, min: Any = None) -> None:
        self.min, self.max = validation.known_bounds(self._framework.resolve(max)[0], max, min)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max={self.max}, min={self.min})"

    @entry.public
    def __call__(self, gradient: Any) -> Any:
        """Return the gradient with every element clipped to the bounds, as a new tensor.

        Raises:
            TypeError: `gradient` is not a tensor, or has an integer, boolean or complex dtype.
        """
        backend, gradient = self._framework.resolve(gradient)
        validation.one_tensor(backend, gradient, "ErrorClipByValue")
        backend.check_hook(gradient)
        tree = containers.flatten(backend, gradient)
        gradients, writer = from_tree(backend, tree, reuse_unchanged=True, reject_complex=True)
        rule.clip(gradients, ClipRule("value", bounds=(self.min, self.max)))
        return writer.result()


# -- (parameter, gradient) tuples


def clip_pairs(backend: Backend, params_grads: Any, clip_of: Callable[[Any], GradientClip | None]) -> ParamGrads:
    """Clip each gradient by `clip_of(parameter)`. If the clip is None, the gradient stays unchanged."""
    leaves, indices = read_pairs(backend, params_grads)
    groups: dict[object, tuple[GradientClip, list[Leaf]]] = {}
    for parameter, own in [(leaf.parameter, [leaf]) for leaf in leaves] or [(None, [])]:
        clip = clip_of(parameter)
        if clip is not None:  # this rank may have no gradient, but other ranks may have some
            members = groups.setdefault(clip._group(), (clip, []))[1]
            members += [leaf for leaf in own if clip._takes(parameter)]
    results = {leaf.position: leaf.tensor for leaf in leaves}
    for clip, members in groups.values():
        gradients, writer = from_tree(
            backend,
            Tree(members, list),
            reuse_unchanged=True,
            reject_complex=clip._needs_order,
            spec=clip._spec,
            measures=clip._measures,
            function=type(clip).__name__,
        )
        if gradients.values or gradients.shards:  # this rank may have no values, but other ranks may have shards
            clip._clip(gradients)
        results.update(zip((leaf.position for leaf in members), writer.result(), strict=True))
    pairs = [(leaf.parameter, results[leaf.position]) for leaf in leaves]
    return [(b, a) if index else (a, b) for index, (a, b) in zip(indices, pairs, strict=True)]
