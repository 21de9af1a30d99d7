"""Clip before every step of a PyTorch optimizer. `ClipConfig.attach_to` uses this module."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch

from .._backends.torch import sharded
from .._core import validation
from .._core.distributed import INFERRED, DistributedSpec
from .._core.names import make_namer
from .._core.types import Leaf, with_article
from ..config.clip_config import ClipConfig
from ..config.clipper import Clipper
from ..config.optimizer_integrations import checked_names
from ..config.outcome import OutcomeProperties
from ..config.schema import Settings
from .steps import NO_STATE

WRAPPERS = ("accelerate", "lightning", "pytorch_lightning")

HOOKS = "_optimizer_step_pre_hooks"


CALLERS = 10
"""The number of stack frames in which to look for PyTorch's checkpoint functions."""

SAVED = "unified_clip"
"""The key of the clip's state in an optimizer's `state_dict()`. A clip with a fixed threshold has no state."""

HAS_STATE = (
    "The optimizer has made steps already, but the adaptive threshold starts with its warm-up. To load the threshold's "
    "state from a checkpoint, call attach_to() before load_state_dict() of the optimizer."
)

NO_STEP = (
    "The checkpoint does not contain the step number, which the schedule of the threshold needs. Set handle.step to "
    "this number. attach_to() returns the handle."
)

NOT_ADAPTIVE = (
    "The checkpoint has the state of an adaptive threshold, but the attached configuration has no adaptive threshold. "
    "Only the step number is loaded. To continue from the state, attach the configuration of the checkpoint."
)


class Attached(OutcomeProperties, AbstractContextManager[Any, None]):
    """A configuration that is attached to an optimizer. The end of a `with` block detaches the configuration.

    For an adaptive threshold or a schedule, the optimizer's `state_dict` contains the step and the threshold's state.
    To restore them, attach the configuration before you call the optimizer's `load_state_dict`.

    A copy of an optimizer does not clip: attach the configuration to the copy as well.
    """

    _clipper: Clipper

    def __init__(self, config: ClipConfig, optimizer: torch.optim.Optimizer, names: Any, spec: DistributedSpec) -> None:
        self._begin(config, spec)
        self._names = checked_names(names, lambda parameter: isinstance(parameter, torch.Tensor), "PyTorch")
        self._look_up_names(optimizer, "Pass the model: clip.attach_to(optimizer, model).")
        self._hooks += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if config.is_adaptive or config.has_schedule:
            self._hooks.append(optimizer.register_state_dict_post_hook(self._save))
        self._hooks.append(optimizer.register_load_state_dict_pre_hook(self._load))
        if config.is_adaptive and any(map(_is_after_a_step, optimizer.state.values())):
            validation.warn(HAS_STATE)

    def _begin(self, config: ClipConfig, spec: DistributedSpec = INFERRED) -> None:
        self._config = config
        self._clipper = config.clipper(lambda leaf: self._name_of(leaf), **vars(spec))
        self._hooks: list[Any] = []
        self._outermost: FrameType | None = None

    def __repr__(self) -> str:
        return f"<ClipConfig {self._config.rule}, {'attached' if self._hooks else 'detached'}, step {self.step}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self._config, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["config"])
        self.load_state_dict(state["state"])

    @property
    def is_attached(self) -> bool:
        """Whether the optimizer still clips."""
        return bool(self._hooks)

    @property
    def step(self) -> int:
        """The number of the next step, counted from 0. A schedule computes the threshold of this step.

        You can set `step`.
        """
        return self._clipper.step

    @step.setter
    def step(self, step: int) -> None:
        self._clipper.step = step

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, SAVED: self.state_dict()}

    def _load(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        saved, is_adaptive = state.get(SAVED), self._config.is_adaptive
        if saved is None:
            if is_adaptive or self._config.has_schedule:
                validation.warn(NO_STATE if is_adaptive else NO_STEP)
        elif is_adaptive == bool(saved.get("adaptive")):
            self.load_state_dict(saved)
        else:
            validation.warn(NO_STATE if is_adaptive else NOT_ADAPTIVE)
            self.step = saved["step"]
        return {key: value for key, value in state.items() if key != SAVED}

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Clip before the step, or after each call of a closure. A step inside another step does not clip again."""
        return _without_compiler(self._clip_before_step, optimizer, args, kwargs)

    def _after_step(self, *_: object) -> None:
        _without_compiler(self._end_step)

    def _clip_before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        caller = _caller()
        if _only_creates_state(caller):
            return None
        if caller is not None and any(frame is self._outermost for frame, _ in walk_stack(caller)):
            return None
        clip, changed = partial(self._clip, optimizer, self.step), None
        if callable(kwargs.get("closure")):
            changed = args, {**kwargs, "closure": _then_clip(kwargs["closure"], clip)}
        elif len(args) > 1 and callable(args[1]):
            changed = (args[0], _then_clip(args[1], clip), *args[2:]), kwargs
        else:
            clip()
        self._outermost = caller
        return changed

    def _end_step(self) -> None:
        if _caller() is self._outermost:
            self._outermost = None

    def _clip(self, optimizer: Any, step: int) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # GradScaler sets this and grad_scale on fused optimizers
        if found_inf is not None and is_skipped([found_inf], self._config):
            return
        parameters = parameters_of(optimizer)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with without_scale(optimizer, gradients):
            if len(parameters) != self._count:
                remedy = "Detach the clip, and attach it again with the model: clip.attach_to(optimizer, model)."
                self._look_up_names(optimizer, remedy)
            self._clipper.clip_(parameters, step=step)

    def _look_up_names(self, optimizer: torch.optim.Optimizer, remedy: str) -> None:
        parameters = parameters_of(optimizer)
        name_of = make_namer(_names_of(optimizer) if self._names is None else self._names)
        for index, parameter in enumerate(parameters if self._config.uses_names else []):
            if name_of(Leaf(parameter, index, parameter=parameter)) is None:
                problem = "is missing in `names`"
                if self._names is None:
                    problem, remedy = "has no name", f"{remedy} Or build the optimizer from model.named_parameters()."
                raise ValueError(
                    f"The configuration selects parameters by name. In this {type(optimizer).__name__}, parameter "
                    f"{index} of shape {tuple(parameter.shape)} {problem}. {remedy}"
                )
        self._name_of, self._count = name_of, len(parameters)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _without_compiler(hook: Callable[..., Any], *args: Any) -> Any:
    """In a compiled step, end the graph before a hook. `torch.compile` cannot trace code that reads stack frames."""
    return hook(*args)


def _caller() -> FrameType | None:
    """Return the stack frame of the optimizer's step."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith((__name__, "torch._dynamo")):
        frame = frame.f_back
    return frame


def attach(config: ClipConfig, optimizer: Any, names: Any = None, spec: DistributedSpec = INFERRED) -> Attached:
    optimizer = _inner(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = with_article(type(optimizer).__qualname__)
        raise TypeError(f"optimizer is {kind}. Pass a torch.optim.Optimizer.")
    if not hasattr(optimizer, HOOKS):
        raise TypeError(
            f"This {type(optimizer).__qualname__} has no hooks: its __init__ does not call "
            "torch.optim.Optimizer.__init__. If this optimizer only wraps another optimizer, pass the wrapped "
            "optimizer. Otherwise, call super().__init__(params, defaults) in its __init__."
        )
    check_not_attached(optimizer)
    if not spec.is_given and any(hasattr(parameter, "_fsdp_flattened") for parameter in parameters_of(optimizer)):
        raise sharded.undeclared_flat()
    return Attached(config, optimizer, names, spec)


def _is_after_a_step(state: Any) -> bool:
    """Read the key `step`, because Adagrad has a state even before the first step."""
    return not isinstance(state, Mapping) or float(state.get("step", 1)) > 0


def check_not_attached(optimizer: Any) -> None:
    hooks = getattr(_inner(optimizer), HOOKS, {}).values()
    if any(isinstance(getattr(hook, "__self__", None), Attached) for hook in hooks):
        raise ValueError(
            f"A configuration is attached to this {type(_inner(optimizer)).__name__} already. Gradients would be "
            "clipped twice. Remove the second clip, or call detach() on the handle that attach_to() returned."
        )


def _inner(optimizer: Any) -> Any:
    while type(optimizer).__module__.partition(".")[0] in WRAPPERS and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _only_creates_state(frame: FrameType | None) -> bool:
    """`torch.distributed.checkpoint` makes a step with gradients of 0 to create the optimizer's state."""
    checkpoints = sys.modules.get("torch.distributed.checkpoint.state_dict")
    create = getattr(getattr(checkpoints, "_init_optim_state", None), "__code__", None)
    frames = itertools.islice(walk_stack(frame), CALLERS) if create is not None and frame is not None else ()
    return any(caller.f_code is create for caller, _ in frames)


def _then_clip(closure: Callable[[], Any], clip: Callable[[], None]) -> Callable[[], Any]:
    def closure_and_clip() -> Any:
        loss = closure()
        clip()
        return loss

    return closure_and_clip


def _names_of(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    names = [name for group in optimizer.param_groups for name in group.get("param_names", [])]
    return dict(zip(names, parameters_of(optimizer), strict=True)) if names else None


# -- gradients of a `torch.amp.GradScaler`


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def unscale(scaler: Any, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    if not scaler._found_inf_per_device(optimizer):
        scaler.unscale_(optimizer)
    return list(scaler._found_inf_per_device(optimizer).values())


def skips_step(scaler: Any, optimizer: torch.optim.Optimizer, settings: Settings) -> bool:
    """Unscale the gradients, and return whether the scaler skips the step."""
    waits = not getattr(optimizer, "_step_supports_amp_scaling", False)
    return is_skipped(unscale(scaler, optimizer), settings, waits=waits)


def is_skipped(flags: Iterable[torch.Tensor], settings: Settings, *, waits: bool = False) -> bool:
    """Return whether the scaler skips the step. Ignore flags on a GPU if the call must not wait for the GPU."""
    waits = waits or settings.nonfinite in ("raise", "skip")
    return any(bool(flag) for flag in flags if waits or flag.device.type == "cpu")


@contextmanager
def without_scale(optimizer: Any, gradients: Sequence[torch.Tensor]) -> Iterator[None]:
    """Unscale gradients before the `with` block. A fused optimizer would unscale them after the clip."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        _multiply(gradients, scale.double().reciprocal().float())  # as GradScaler.unscale_ does
        optimizer.grad_scale = None
    try:
        yield
    except BaseException:
        if scale is not None:
            _multiply(gradients, scale)
        if hasattr(optimizer, "found_inf"):
            del optimizer.grad_scale, optimizer.found_inf
        raise


def _multiply(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    by_device = defaultdict(list)
    for tensor in tensors:
        by_device[tensor.device].append(tensor)
    with torch.no_grad():
        for device, group in by_device.items():
            torch._foreach_mul_(group, factor.to(device, non_blocking=True))


# -- trainers

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's configuration",
    "DeepSpeedStrategy": "gradient_clip_val of the Trainer",
    "MEGATRON_LM": "gradient_clipping of Accelerate's MegatronLMPlugin",
    "XLA": "max_grad_norm of TrainingArguments, or accelerator.clip_grad_norm_ in a training loop of your own",
    "XLAStrategy": "gradient_clip_val of the Trainer",
}
"""{engine of Accelerate or Lightning: the setting that makes the engine clip}."""

TWO_CALLBACKS = (
    "The Trainer has two ClipCallbacks, which would clip gradients twice. Remove one. For separate thresholds, set "
    "`groups` in one configuration: see docs/config.md."
)


def check_engine(kinds: Iterable[str]) -> None:
    """Raise RuntimeError if a training engine does not expose the gradients of a step."""
    for kind in kinds:
        if kind in INSTEAD:
            advice = f"Remove the clip of unified_clip. To clip, use {INSTEAD[kind]}."
            raise RuntimeError(f"{kind} does not expose the gradients of a step. {advice}")
