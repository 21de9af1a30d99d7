"""Optimizers of PyTorch that clip before every step: `ClipConfig.attach_to`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Self

import torch

from .._core.containers import Leaf
from .._core.shards import HERE_OR_TOLD, Across
from .._ops import torch_shards
from ..config.clip_config import ClipConfig
from ..config.clipper import OutcomeProperties
from ..recording.clip_event import make_namer
from . import torch_scaling
from .names import check_names

WRAPPERS = ("accelerate", "lightning", "pytorch_lightning")
"""Whose optimizers hold another that makes the steps."""

HOOKS = "_optimizer_step_pre_hooks"
"""Where `register_step_pre_hook` puts them."""


class Attached(OutcomeProperties):
    """A configuration at work in an optimizer; a context manager that ends with it.

    A copy or a pickle of the optimizer does not clip, and its `state_dict` knows nothing of it: attach again, and set
    `step` where the threshold has a schedule. A copy or a pickle of the handle has the configuration and the step, and
    is attached to nothing.
    """

    def __init__(self, config: ClipConfig, optimizer: torch.optim.Optimizer, names: Any, across: Across) -> None:
        self._begin(config, across)
        check_names(names, lambda parameter: isinstance(parameter, torch.Tensor), "PyTorch")
        self._given = names
        self._look_up_names(optimizer, "Pass the model: clip.attach_to(optimizer, model).")
        self._hooks += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def _begin(self, config: ClipConfig, across: Across = HERE_OR_TOLD) -> None:
        self._config = config
        self._clipper = config.clipper(lambda leaf: self._name_of(leaf), **vars(across))
        self._hooks: list[Any] = []
        self._outermost: FrameType | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self._config, "step": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["config"])
        self.step = state["step"]

    @property
    def is_attached(self) -> bool:
        """Whether the optimizer still clips."""
        return bool(self._hooks)

    @property
    def step(self) -> int:
        """The step of the next clip, counted from 0, on which a schedule's threshold depends; it can be set."""
        return self._clipper.step

    @step.setter
    def step(self, step: int) -> None:
        self._clipper.step = step

    def detach(self) -> None:
        """End it: the optimizer clips no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """What comes before `step(*args, **kwargs)`; `args` begin with the optimizer.

        Gradients that a closure computes are not there yet: the closure is replaced by one that clips them.

        Where the `step` of a subclass calls that of its base, both call the hooks, and the outer one clips. It is known
        by its frame: a mark that a hook after the step takes away would stay where a step fails.
        """
        caller = sys._getframe(1)
        if self._outermost is not None and _is_inside(caller, self._outermost):
            return None
        clip, changed = partial(self._clip, optimizer, self.step), None
        if callable(kwargs.get("closure")):
            changed = args, {**kwargs, "closure": _followed(kwargs["closure"], clip)}
        elif len(args) > 1 and callable(args[1]):
            changed = (args[0], _followed(args[1], clip), *args[2:]), kwargs
        else:
            clip()
        self._outermost = caller
        return changed

    def _after_step(self, *_: object) -> None:
        if sys._getframe(1) is self._outermost:
            self._outermost = None

    def _clip(self, optimizer: Any, step: int) -> None:
        """A closure may be called several times in one step, which stays one."""
        found = getattr(optimizer, "found_inf", None)  # this and grad_scale: GradScaler's, where the step is fused
        if found is not None and torch_scaling.is_left_out([found], self._config):
            return
        parameters = _parameters(optimizer)
        gradients = [each.grad for each in parameters if each.grad is not None]
        with torch_scaling.without_scale(optimizer, gradients):
            if len(parameters) != self._count:
                self._look_up_names(
                    optimizer, "Detach, and attach again with the model: clip.attach_to(optimizer, model)."
                )
            self._clipper.clip_(parameters, step=step)

    def _look_up_names(self, optimizer: torch.optim.Optimizer, instead: str) -> None:
        """What patterns go by; again after `add_param_group`."""
        parameters = _parameters(optimizer)
        name_of = make_namer(_names_of(optimizer) if self._given is None else self._given)
        for index, parameter in enumerate(parameters if self._config.uses_names else []):
            if name_of(Leaf(parameter, index, parameter=parameter)) is None:
                raise ValueError(
                    f"The configuration chooses parameters by name. Parameter {index} of this "
                    f"{type(optimizer).__name__}, of shape {tuple(parameter.shape)}, has no name. {instead} "
                    "Or build the optimizer from model.named_parameters()."
                )
        self._name_of, self._count = name_of, len(parameters)


def attach(config: ClipConfig, optimizer: Any, names: Any = None, across: Across = HERE_OR_TOLD) -> Attached:
    """Have an optimizer clip before every step; `ClipConfig.attach_to` says what the arguments are.

    Raises:
        TypeError: It is no `torch.optim.Optimizer`, or one without hooks, as its `__init__` does not call that.
        ValueError: A configuration is attached to it already, or chooses parameters by name, and one has none.
        RuntimeError: Its parameters are shards that do not tell so, and nothing is stated of them.

    Source: none, it is our own; the place is `torch.optim.Optimizer.register_step_pre_hook`.

    Example:
        >>> import torch
        >>> from unified_clip import ClipConfig
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> handle = ClipConfig(rule="global_norm", threshold=2.5, family="paddle").attach_to(optimizer)
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> optimizer.step()
        >>> weight.tolist(), handle.last.norm
        ([-1.5, -2.0], 5.0)
    """
    optimizer = _inner(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"a {type(optimizer).__qualname__} is no torch.optim.Optimizer; pass the one that makes the steps"
        )
    if not hasattr(optimizer, HOOKS):
        raise TypeError(
            f"this {type(optimizer).__qualname__} has no hooks: its __init__ does not call that of "
            "torch.optim.Optimizer; pass the optimizer inside it, which makes the steps"
        )
    check_not_attached(optimizer)
    if not across.is_stated and any(hasattr(parameter, "_fsdp_flattened") for parameter in _parameters(optimizer)):
        raise torch_shards.flat()
    return Attached(config, optimizer, names, across)


def check_not_attached(optimizer: Any) -> None:
    """Refuse an optimizer, however wrapped, that clips before every step.

    Raises:
        ValueError: A configuration is attached to it.
    """
    optimizer = _inner(optimizer)
    if any(isinstance(getattr(hook, "__self__", None), Attached) for hook in getattr(optimizer, HOOKS, {}).values()):
        raise ValueError(
            f"a configuration is attached to this {type(optimizer).__name__} already, and gradients would be clipped "
            "twice; detach() the other first"
        )


def _inner(optimizer: Any) -> Any:
    while type(optimizer).__module__.partition(".")[0] in WRAPPERS and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _is_inside(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is outer


def _followed(closure: Callable[[], Any], clip: Callable[[], None]) -> Callable[[], Any]:
    def closure_and_clip() -> Any:
        loss = closure()
        clip()
        return loss

    return closure_and_clip


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _names_of(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """What an optimizer that was built from `named_parameters()` calls its parameters."""
    names = [name for group in optimizer.param_groups for name in group.get("param_names", [])]
    return dict(zip(names, _parameters(optimizer), strict=True)) if names else None
