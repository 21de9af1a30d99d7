"""Record PyTorch's own clipping, backward passes, losses and steps of optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..clip_event import FINDERS
from ..dispatcher import DISPATCHER
from ..optimizers.names import SETTINGS
from .hooks import HOOKS
from .observer import OBSERVER, clip_parameters
from .optimizer_steps import LOSSES, UNSCALED, StepWatcher, decayed_elements, of_groups, rates_by_name, warn_on_error
from .torch_parameters import GradientVersions, ModelNames
from .torch_sharded import ShardedNorm

NAMES = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
"""`clip_grad_norm_` calls `_clip_grads_with_norm_`, a copy of `clip_grads_with_norm_`."""


WATCHER = StepWatcher()
VERSIONS = GradientVersions()
MODELS = ModelNames()
SHARDED = ShardedNorm()


def install() -> None:
    FINDERS.append(MODELS.name_of)
    HOOKS.wrap([(torch.autograd, "backward")], _counted)
    HOOKS.wrap([(torch.optim.Optimizer, "__init__")], _made)
    HOOKS.wrap([(torch.amp.GradScaler, "scale")], _scaled)
    HOOKS.wrap([(torch.amp.GradScaler, "unscale_")], _unscaled)
    HOOKS.on_switch(_add_step_hook, _remove_step_hook)
    DISPATCHER.on_clipped = _clipped
    HOOKS.wrap([(torch.nn.utils.clip_grad, "_get_total_norm")], SHARDED.around_total_norm)
    for name in NAMES:
        HOOKS.wrap([(torch.nn.utils.clip_grad, name), (torch.nn.utils, name)], _watched)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    clip = partial(clip_parameters, value_of=SHARDED.value_of, on_empty=WATCHER.on_empty_clip)
    recorded = OBSERVER.around(clip)(SHARDED.around_clip(function))

    def watched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if _is_capturing():
            DISPATCHER.on_unrecordable_graph("CUDA")
            return function(*args, **kwargs)
        return recorded(*args, **kwargs)

    return watched


def _is_capturing() -> bool:
    """Numbers cannot be read while a CUDA graph is captured."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def _is_hidden() -> bool:
    return torch.compiler.is_compiling() or _is_capturing()


_step_hooks: list[Any] = []


def _add_step_hook() -> None:
    _step_hooks.append(register_optimizer_step_pre_hook(_before_step))
    _step_hooks.append(register_optimizer_step_post_hook(_after_step))


def _remove_step_hook() -> None:
    while _step_hooks:
        _step_hooks.pop().remove()


def _made(function: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            VERSIONS.add(self)

    return init


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if _is_hidden() or torch._C._current_graph_task_id() != -1:  # in another backward pass, as of a checkpoint
            return function(*args, **kwargs)
        with warn_on_error("a backward pass"):
            WATCHER.before_backward()
            _add_loss(*args, **kwargs)
        result = function(*args, **kwargs)
        with warn_on_error("a backward pass"):
            VERSIONS.store()
        return result

    return backward


def _add_loss(tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
    losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    if not isinstance(losses, list | tuple) or len(losses) != 1 or grad_tensors is not None:
        return
    if isinstance(losses[0], torch.Tensor) and losses[0].numel() == 1:
        loss = getattr(losses[0], UNSCALED, losses[0])
        LOSSES.add(loss.detach().clone().item)  # the script may overwrite the loss before the step


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_enabled():
            WATCHER.scaling_begins(self.get_scale)
        return function(self, *args, **kwargs)

    return scale


def _unscaled(function: Callable[..., Any]) -> Callable[..., Any]:
    def unscale(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        WATCHER.scaling_ends()
        with warn_on_error("a loss scale"):
            VERSIONS.store()
        return result

    return unscale


def _clipped(call: str) -> None:
    if not _is_hidden():
        with warn_on_error("the gradients after a clip"):
            VERSIONS.store_clipped(call)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not _is_hidden():
        with warn_on_error("a step of an optimizer"):
            WATCHER.changed = VERSIONS.count_changed(optimizer)
            WATCHER.changed_after_clip = VERSIONS.count_changed_after_clip(optimizer)
            if WATCHER.changed_after_clip and DISPATCHER.norms:
                WATCHER.norm_at_step = _total_norm(optimizer)
            VERSIONS.add(optimizer)


def _total_norm(optimizer: Any) -> float | None:
    gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    if any(each.is_sparse or hasattr(each, "_local_tensor") for each in gradients):
        return None
    return math.hypot(*(each.detach().float().norm().item() for each in gradients))


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not _is_hidden():
        with warn_on_error("a step of an optimizer"):
            _record_step(optimizer)


def _record_step(optimizer: Any) -> None:
    groups, weak = optimizer.param_groups, ref(optimizer)
    groups = [group for group in groups if group["params"]] or groups
    settings = {
        name: of_groups([group[name] for group in groups])
        for name in SETTINGS
        if all(name in group for group in groups)
    }
    if all("rho" in group for group in groups):
        settings["alpha"] = of_groups([group["rho"] for group in groups])
    kind = type(optimizer)
    is_users = not kind.__module__.startswith("torch.optim")
    module = kind.__module__ if is_users else "torch.optim"
    changed = [(group, each) for group in groups for each in group["params"] if each.grad is not None]
    sizes = ((group.get("weight_decay"), each.numel()) for group, each in changed)
    fields: dict[str, Any] = {**decayed_elements(sizes, (MODELS.name_of(each) for _, each in changed))}
    fields |= rates_by_name((MODELS.name_of(each), group.get("lr")) for group, each in changed)
    if hooks := sum(bool(each._backward_hooks or each._post_accumulate_grad_hooks) for _, each in changed):
        fields["hooks"] = hooks
    is_adamw = kind.__name__ == "Adam" and any(group.get("decoupled_weight_decay") for group in groups)
    name = f"{module}.{'AdamW' if is_adamw and not is_users else kind.__name__}"
    is_cleared, has_gradients = partial(_is_cleared, weak), bool(changed)
    WATCHER.after_step(id(optimizer), name, settings, is_cleared, fields, has_gradients=has_gradients)


def _is_cleared(reference: ref[Any]) -> bool:
    """A deleted optimizer counts as cleared."""
    optimizer = reference()
    parameters = [each for group in optimizer.param_groups for each in group["params"]] if optimizer else []
    gradients = [getattr(each.grad, "_local_tensor", each.grad) for each in parameters]  # without a collective
    return all(gradient is None or not gradient.any() for gradient in gradients)
