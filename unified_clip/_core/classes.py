"""The public classes, written once. A namespace binds each to its framework by a subclass that sets `_names`."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from . import checks, containers, observer, rule
from .containers import Leaf, Tree
from .entry import public
from .functions import Functions
from .gradients import Gradients, SameObjects, WholeSame, together, wants_clipping
from .ops import Ops, Tensor
from .shards import HERE_OR_TOLD, Across

NeedClip = Callable[[Any], bool]
Pairs = list[tuple[Any, Any]]


class Bound:
    """A class that a namespace binds to its framework by a subclass, which keeps the docstring."""

    _names: ClassVar[Functions]

    recorded_as: ClassVar[str]
    """What a recording calls an instance."""

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or cls.__mro__[1].__doc__
        cls.recorded_as = cls.__name__


class GradientClip(Bound):
    """What the three clips share: which parameters take part, and the two ways to be called."""

    _function: ClassVar[str]
    _instead: ClassVar[str] = "the instance itself, clip(params_grads)"

    def __init__(self, need_clip: NeedClip | None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise TypeError(f"need_clip is {need_clip!r}; pass a function of a parameter that returns True or False")
        self.need_clip = need_clip

    @public
    def __call__(self, params_grads: Iterable[Any]) -> Pairs:
        """Clip the gradients of (parameter, gradient) pairs.

        Args:
            params_grads: Pairs (parameter, gradient); a gradient may be None. On TensorFlow either order.

        Returns:
            The list of pairs with clipped gradients, each in the order given. A gradient that is left alone is the
            object that was given.
        """
        ops, params_grads = self._names.resolve(params_grads)
        whole = self._whole(ops, params_grads)
        if whole is None:
            return clip_pairs(ops, params_grads, lambda parameter: self)
        self._clip(whole)
        pairs: Pairs = whole.result()
        return pairs

    @public
    def clip_(self, parameters: Any) -> Tensor | None:
        """Clip the gradients of `parameters` in place.

        Args:
            parameters: As for `clip_grad_norm_`: parameters, or, where they carry no gradient, the gradients.

        Returns:
            The total norm before clipping (GradientClipByGlobalNorm), or None.
        """
        ops, parameters = self._names.resolve(parameters)
        function, order = f"{type(self).__name__}.clip_", self._needs_order
        plain = self.need_clip is None
        gradients = together(
            ops,
            parameters,
            function,
            self._instead,
            plain=plain,
            keep=self._takes,
            order=order,
            across=self._across,
            measures=self._measures,
        )
        norm = self._clip(gradients)
        gradients.finish()
        return norm

    _needs_order: ClassVar[bool] = False
    _measures: ClassVar[bool] = False
    """Whether a call takes one norm over all gradients."""

    _across = HERE_OR_TOLD

    def _whole(self, ops: Ops, pairs: Any) -> WholeSame | None:
        """Pairs that can be clipped in one go."""
        if self.need_clip is not None or self._across.is_stated or observer.needs_leaves():
            return None
        if type(pairs) not in (list, tuple):
            return None
        path = ops.whole_of_pairs(pairs)
        if path is None:
            return None
        parameters, gradients = zip(*pairs, strict=True)
        return WholeSame(path, gradients, lambda results: list(zip(parameters, results, strict=True)))

    def _takes(self, parameter: Any) -> bool:
        """Whether a parameter's gradient is counted and scaled."""
        return wants_clipping(parameter) and (self.need_clip is None or bool(self.need_clip(parameter)))

    @abstractmethod
    def _clip(self, gradients: Gradients) -> Tensor | None:
        """Clip what takes part; the norm, if it is one over all."""

    def _group(self) -> object:
        """Parameters whose clips have equal groups are clipped in one call by `append_gradient_clip_ops`."""
        return id(self)


class GradientClipByValue(GradientClip):
    """Clip every element of every gradient to [min, max]. NaN stays NaN.

    Source: `paddle.nn.ClipGradByValue`, `paddle.fluid.clip.GradientClipByValue`.

    Args:
        max: The upper bound.
        min: The lower bound; None means -max.
        need_clip: A function of a parameter; where it returns False, the gradient is left alone. So it is where the
            parameter's own attribute `need_clip` is false.

    Raises:
        TypeError: A bound is no number.
        ValueError: A bound is NaN; min is above max; max is negative and min is None.

    Example:
        >>> import numpy as np
        >>> import unified_clip.numpy as uc
        >>> clip = uc.GradientClipByValue(max=1.0)
        >>> clip([("weight", np.array([-3.0, 0.5]))])
        [('weight', array([-1. ,  0.5]))]
    """

    _needs_order = True

    def __init__(self, max: Any, min: Any = None, need_clip: NeedClip | None = None) -> None:
        super().__init__(need_clip)
        self.min, self.max = checks.known_bounds(self._names.resolve(max)[0], max, min)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max={self.max}, min={self.min})"

    def _clip(self, gradients: Gradients) -> None:
        rule.clip_by_value(gradients, self.min, self.max)


class GradientClipByNorm(GradientClip):
    """Clip every gradient by its own 2-norm n: multiply it by min(1, clip_norm / n).

    Source: `paddle.nn.ClipGradByNorm`, `paddle.fluid.clip.GradientClipByNorm`.

    Args:
        clip_norm: The threshold, 0 or more. inf changes nothing.
        need_clip: A function of a parameter; where it returns False, the gradient is left alone. So it is where the
            parameter's own attribute `need_clip` is false.
        process_group: As for `clip_grad_norm_`; the processes that hold parts of each gradient.

    Raises:
        TypeError: clip_norm is no number.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import unified_clip.numpy as uc
        >>> clip = uc.GradientClipByNorm(clip_norm=1.0)
        >>> clip([("weight", np.array([3.0, 4.0])), ("bias", np.array([0.5]))])
        [('weight', array([0.6, 0.8])), ('bias', array([0.5]))]
    """

    def __init__(self, clip_norm: Any, need_clip: NeedClip | None = None, *, process_group: Any = "auto") -> None:
        super().__init__(need_clip)
        self._across = Across(process_group)
        self.clip_norm = checks.known_threshold(self._names.resolve(clip_norm)[0], clip_norm, "clip_norm")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clip_norm={self.clip_norm})"

    def _clip(self, gradients: Gradients) -> None:
        rule.clip_each(gradients, self.clip_norm, rule.PADDLE)


class GradientClipByGlobalNorm(GradientClip):
    """Clip all gradients by one 2-norm n over everything given in a call: multiply each by min(1, clip_norm / n).

    Source: `paddle.nn.ClipGradByGlobalNorm`, `paddle.fluid.clip.GradientClipByGlobalNorm`; Pascanu, Mikolov and
    Bengio, 2013.

    Args:
        clip_norm: The threshold, 0 or more. inf changes nothing.
        group_name: Read by `append_gradient_clip_ops` only: parameters whose clips have the same name and threshold
            share one norm there.
        auto_skip_clip: Accepted for compatibility; it changes no result.
        need_clip: A function of a parameter; where it returns False, the gradient is neither counted nor scaled. So
            it is where the parameter's own attribute `need_clip` is false.
        process_group: As for `clip_grad_norm_`.
        ownership: As for `clip_grad_norm_`.
        check_numel: As for `clip_grad_norm_`.

    Raises:
        TypeError: clip_norm is no number.
        ValueError: clip_norm is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import unified_clip.numpy as uc
        >>> clip = uc.GradientClipByGlobalNorm(clip_norm=1.0)
        >>> clip([("weight", np.array([3.0])), ("bias", np.array([4.0]))])
        [('weight', array([0.6])), ('bias', array([0.8]))]
    """

    _measures = True

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
    ) -> None:
        super().__init__(need_clip)
        if not isinstance(group_name, str):
            raise TypeError(f"group_name is {group_name!r}; pass a string")
        self.clip_norm = checks.known_threshold(self._names.resolve(clip_norm)[0], clip_norm, "clip_norm")
        self.group_name = group_name
        self.auto_skip_clip = auto_skip_clip
        self._across = Across(process_group, ownership, check_numel)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clip_norm={self.clip_norm}, group_name={self.group_name!r})"

    def _clip(self, gradients: Gradients) -> Tensor:
        return rule.clip_together(gradients, self.clip_norm, rule.PADDLE)

    def _group(self) -> object:
        return (self.group_name, self.clip_norm)


class ErrorClipByValue(Bound):
    """A function of one gradient that clips its elements to [min, max]; made for `register_hook` of a tensor.

    Source: `paddle.fluid.clip.ErrorClipByValue`.

    Args:
        max: The upper bound.
        min: The lower bound; None means -max.

    Raises:
        TypeError: A bound is no number.
        ValueError: A bound is NaN; min is above max; max is negative and min is None.

    Example:
        >>> import numpy as np
        >>> import unified_clip.numpy as uc
        >>> uc.ErrorClipByValue(max=0.5)(np.array([-3.0, 0.25]))
        array([-0.5 ,  0.25])
    """

    def __init__(self, max: Any, min: Any = None) -> None:
        self.min, self.max = checks.known_bounds(self._names.resolve(max)[0], max, min)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max={self.max}, min={self.min})"

    @public
    def __call__(self, gradient: Any) -> Any:
        ops, gradient = self._names.resolve(gradient)
        checks.one_tensor(ops, gradient, "ErrorClipByValue")
        ops.check_hook(gradient)
        gradients = SameObjects(ops, containers.flatten(ops, gradient), order=True)
        rule.clip_by_value(gradients, self.min, self.max)
        return gradients.result()


# -- pairs


def read_pairs(ops: Ops, params_grads: Any) -> tuple[list[Leaf], list[int]]:
    """(parameter, gradient) pairs as leaves, and the parameter's place in each pair: Variables tell the two apart."""
    if ops.is_tensor(params_grads) or isinstance(params_grads, dict | str) or not isinstance(params_grads, Iterable):
        raise TypeError(f"params_grads is a {type(params_grads).__name__}; pass a list of (parameter, gradient) pairs")
    leaves, indices = [], []
    pairs = list(params_grads)
    if isinstance(params_grads, Iterator) and not pairs:
        checks.warn("an iterator over params_grads had nothing left in it; pass a list if you need it twice")
    for position, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"position {position} of params_grads is no (parameter, gradient) pair; pass pairs")
        index = _parameter_index(ops, pair, position)
        parameter, gradient = pair[index], pair[1 - index]
        name = parameter if isinstance(parameter, str) else ops.parameter_name(parameter)
        leaf = Leaf(gradient, position, name, parameter)
        if gradient is not None and not ops.is_tensor(gradient):
            raise containers.not_a_tensor(ops, gradient, leaf)
        leaves.append(leaf)
        indices.append(index)
    return leaves, indices


def _parameter_index(ops: Ops, pair: Sequence[Any], position: int) -> int:
    if not ops.has_variables:
        if ops.is_parameter(pair[1]) and not ops.is_parameter(pair[0]):
            raise TypeError(
                f"position {position} of params_grads has its parameter where the gradient belongs; pass (parameter, "
                "gradient) pairs"
            )
        return 0
    variables = [ops.is_variable(item) for item in pair]
    if variables == [True, True] or (variables == [False, False] and not isinstance(pair[0], str)):
        raise TypeError(
            f"position {position} of params_grads has {sum(variables)} Variables; one of the two must be the Variable, "
            "which is the parameter, and the other its gradient"
        )
    return int(variables[1])


def clip_pairs(ops: Ops, params_grads: Any, clip_of: Callable[[Any], GradientClip | None]) -> Pairs:
    """Apply to every gradient the clip of its parameter; clips of one group measure one norm. All or nothing."""
    leaves, indices = read_pairs(ops, params_grads)
    groups: dict[object, tuple[GradientClip, list[Leaf]]] = {}
    for parameter, own in [(leaf.parameter, [leaf]) for leaf in leaves] or [(None, [])]:
        clip = clip_of(parameter)
        if clip is not None:  # also where it has nothing to do here: other processes may have
            members = groups.setdefault(clip._group(), (clip, []))[1]
            members += [leaf for leaf in own if clip._takes(parameter)]
    results = {leaf.position: leaf.tensor for leaf in leaves}
    for clip, members in groups.values():
        gradients = SameObjects(
            ops, Tree(members, list), order=clip._needs_order, across=clip._across, measures=clip._measures
        )
        gradients.function = type(clip).__name__
        if gradients.values or gradients.shards:  # which others may have the values of
            clip._clip(gradients)
        results.update(zip((leaf.position for leaf in members), gradients.result(), strict=True))
    pairs = [(leaf.parameter, results[leaf.position]) for leaf in leaves]
    return [(b, a) if index else (a, b) for index, (a, b) in zip(indices, pairs, strict=True)]


# -- Paddle 1.x: clips that are set first and applied later


class ClipSettings:
    """What `set_gradient_clip` has set: a default, and clips of single parameters, which are held weakly."""

    def __init__(self) -> None:
        self.default: GradientClip | None = None
        self._own: dict[int, tuple[weakref.ref[Any], GradientClip]] = {}

    def set_own(self, parameter: Any, clip: GradientClip | None) -> None:
        key = id(parameter)
        if clip is None:
            self._own.pop(key, None)
            return
        self._own[key] = (weakref.ref(parameter, lambda _: self._own.pop(key, None)), clip)

    def clip_of(self, parameter: Any) -> GradientClip | None:
        own = self._own.get(id(parameter))  # forgotten with the parameter, so the id is its own
        return self.default if own is None else own[1]


SETTINGS = ClipSettings()
"""Of the process, whatever the framework."""


def check_clip(clip: Any) -> None:
    if clip is not None and not isinstance(clip, GradientClip):
        raise TypeError(
            f"clip is {clip!r}; pass GradientClipByValue, GradientClipByNorm, GradientClipByGlobalNorm or None"
        )


class Names(Functions):
    """Every public function: `Functions`, and Paddle 1.x's two."""

    @public
    def set_gradient_clip(
        self, clip: GradientClip | None, param_list: Iterable[Any] | None = None, program: Any = None
    ) -> None:
        """Set the clip that `append_gradient_clip_ops` applies. Source: `paddle.fluid.clip.set_gradient_clip`.

        With Paddle in static mode it belongs to one program and ends with it. The first such call wraps
        `append_regularization_ops` of Paddle's `Optimizer`, for as long as the process lives: that is where `minimize`
        and `apply_gradients` of a static optimizer without `grad_clip=` apply what was set.

        Args:
            clip: A GradientClipBy... instance; None removes what was set.
            param_list: The parameters whose own clip this is, held weakly; it wins over the default, whatever the
                order of the calls. None: the default of all parameters. With Paddle in static mode, a list may hold
                the names of parameters.
            program: For `unified_clip.paddle` alone: the static program whose default to set, or whose parameters
                param_list holds. None: in static mode, the default main program.

        Raises:
            TypeError: clip is no GradientClipBy... instance; param_list is no list of parameters; program is no static
                program, or was given to a framework that has none.
            ValueError: param_list holds what is no parameter of the static program.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.set_gradient_clip(uc.GradientClipByNorm(clip_norm=1.0))
            >>> uc.append_gradient_clip_ops([("weight", np.array([3.0, 4.0]))])
            [('weight', array([0.6, 0.8]))]
            >>> uc.set_gradient_clip(None)
        """
        check_clip(clip)
        if program is not None:
            raise TypeError("program is for static programs of Paddle; use unified_clip.paddle, or leave it out")
        if param_list is None:
            SETTINGS.default = clip
            return
        ops, param_list = self.resolve(param_list)
        for parameter in checks.parameter_list(ops, param_list):
            SETTINGS.set_own(parameter, clip)

    @public
    def append_gradient_clip_ops(self, params_grads: Iterable[Any]) -> Pairs:
        """Apply the clips that `set_gradient_clip` has set. Source: `paddle.fluid.clip.append_gradient_clip_ops`.

        Parameters whose clips are GradientClipByGlobalNorm with the same `group_name` and threshold share one norm.

        Args:
            params_grads: (parameter, gradient) pairs; a gradient may be None.

        Returns:
            The list of pairs with clipped gradients; those without a clip as they were given.

        Raises:
            TypeError: params_grads holds something else than pairs, or a gradient of integers or booleans.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.append_gradient_clip_ops([("weight", np.array([3.0, 4.0]))])
            [('weight', array([3., 4.]))]
        """
        ops, params_grads = self.resolve(params_grads)
        return clip_pairs(ops, params_grads, self._clip_of)

    def _clip_of(self, parameter: Any) -> GradientClip | None:
        """The clip that was set for a parameter."""
        return SETTINGS.clip_of(parameter)
