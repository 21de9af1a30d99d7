"""Record PyTorch's own clipping, backward passes, losses and steps of optimizers."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optimizers

from .clips import NativeCall, Row, clip_parameters, needs_gradients, needs_sums
from .hooks import CLIP_CALLS, HOOKS, OUTPUT, RecordingHook, ran
from .lines import canonical
from .pytorch_names import GradientVersions, ModelNames, gradient_state, trained_by
from .samples import positions
from .steps import (
    BACKWARD,
    LOSSES,
    SETTINGS,
    STEP,
    UNSCALED,
    ClipCounts,
    StepWatcher,
    of_groups,
    rates_by_name,
    tensor_at_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .guard import Call, Observer

CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
"""`clip_grad_norm_` calls `_clip_grads_with_norm_`, a copy of `clip_grads_with_norm_`."""

# names that old releases lack
SCALER = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
IS_COMPILING = getattr(getattr(torch, "compiler", None), "is_compiling", None)
GRAPH_TASK = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""The backward pass that runs, or -1."""


def _gradient_state(parameter: Any) -> object:
    gradient = parameter.grad
    return None if gradient is None else gradient_state(gradient)


def _has_no_gradient(parameter: Any) -> bool:
    gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)  # without a collective
    return gradient is None or not gradient.any()


COUNTS = ClipCounts(_gradient_state, lambda tensor: tensor.requires_grad, _has_no_gradient)
WATCHER = StepWatcher(COUNTS, trained_by)
VERSIONS = GradientVersions()
MODELS = ModelNames()

observe = partial(HOOKS.wrap, unless=IS_COMPILING)
"""The compiler must trace none of unified_clip's code."""


def install(inner: Observer = ran, value_of: Callable[[Any], Any] = float) -> None:
    """inner: Observes the recorded calls of PyTorch's own clipping functions. value_of: Reads their norms."""
    OUTPUT.on_clipped.append(_clipped)
    OUTPUT.on_empty["torch"] = WATCHER.on_empty_clip
    observe([(torch.autograd, "backward")], BACKWARD, _backward)
    for name in ("__init__", "__setstate__"):  # the second for copies
        observe([(torch.optim.Optimizer, name)], "an optimizer", _created)
    observe([(SCALER, "scale")], "a loss scale", _scaled)
    observe([(SCALER, "unscale_")], "a loss scale", _unscaled)
    clip = CLIP_CALLS.observer(partial(_clip, inner, value_of))
    for name in CLIPS:
        observe([(torch.nn.utils.clip_grad, name), (torch.nn.utils, name)], f"a call of torch.nn.utils.{name}", clip)
    if hasattr(optimizers, "register_optimizer_step_pre_hook"):
        HOOKS.on_switch(_add_step_hook, _remove_step_hook)


def _clip(inner: Observer, value_of: Callable[[Any], Any], call: Call) -> Iterator[None]:
    if is_capturing():
        yield
        raise TypeError("a CUDA graph cannot report values. Record a run without it")
    yield from clip_parameters(call, "torch", _row_of, WATCHER.on_empty_clip, value_of, inner)


def _row_of(parameter: Any, position: int, call: NativeCall) -> Row:
    name = MODELS.name_of(parameter)
    found = row(name or f"{position}", parameter.grad, parameter, call, returns_norm=call.computes_norm)
    return found._replace(is_named=bool(name))


def row(name: str, gradient: Any, weight: Any, call: NativeCall, *, returns_norm: bool) -> Row:
    """weight: A tensor, or None."""
    dtype = str(gradient.dtype).replace("torch.", "")
    if hasattr(gradient, "placements"):  # other ranks have other shards
        return Row(name, dtype, parameter=weight)
    bare = Row(name, dtype, parameter=weight, stored=OUTPUT.copy(gradient))
    if not needs_gradients(call, returns_norm=returns_norm):
        return bare
    dense = gradient.detach().coalesce().values() if gradient.is_sparse else gradient.detach()
    parts = {"norm": _norm(dense, call.order), "extremes": torch.stack(_extremes(dense, call.rule))}
    if not gradient.is_sparse and not dense.is_complex():
        parts["sample"] = _sample(dense)
    if weight is not None:
        parts["weight"] = _norm(weight.detach(), call.order)
        if not weight.is_complex():
            parts["weight_sample"] = _sample(weight.detach())
            if weight.dim() == 2 and needs_sums(name):
                exact = _wide(weight.detach()).double()
                parts["sums"] = torch.stack([exact.sum(), (exact**3).sum()])
    numbers = iter(torch.cat([each.reshape(-1) for each in parts.values()]).tolist())  # waits for the device once
    fields: dict[str, Any] = {key: [next(numbers) for _ in range(each.numel())] for key, each in parts.items()}
    fields.update({key: fields[key][0] for key in ("norm", "weight") if key in fields})
    extremes, nonfinite = fields.pop("extremes"), (0, 0)
    if not math.isfinite(fields["norm"]):
        nonfinite = int(torch.isnan(dense).sum()), int(torch.isinf(dense).sum())
    return bare._replace(fields={"shape": list(gradient.shape), **fields}, extremes=extremes, nonfinite=nonfinite)


def _wide(tensor: Any) -> Any:
    tensor = tensor.cpu() if tensor.device.type == "mps" else tensor  # which has no float64
    return (tensor.abs() if tensor.is_complex() else tensor).reshape(-1)


def _norm(tensor: Any, p: float) -> Any:
    flat = _wide(tensor)
    if not flat.numel():
        return torch.zeros((), dtype=torch.float64, device=flat.device)
    if flat.dtype != torch.float64:
        return torch.norm(flat, p, dtype=torch.float64)
    greatest = flat.abs().max().item()  # the powers of large numbers would overflow
    scale = 2.0 ** (math.frexp(greatest)[1] - 1) if 0 < greatest < math.inf else 1.0
    return torch.norm(flat / scale, p) * scale


def _extremes(tensor: Any, rule: str) -> list[Any]:
    flat = _wide(tensor)
    zero = torch.zeros((), dtype=torch.float64, device=flat.device)
    return [flat.min().double(), flat.max().double()] if rule == "value" and flat.numel() else [zero, zero]


def _sample(tensor: Any) -> Any:
    flat = _wide(tensor)
    return flat[torch.from_numpy(positions(tuple(tensor.shape))).to(flat.device)].double()


def is_capturing() -> bool:
    """Numbers cannot be read while a CUDA graph is captured."""
    return torch.cuda.is_initialized() and bool(getattr(torch.cuda, "is_current_stream_capturing", bool)())


def _is_hidden() -> bool:
    return (IS_COMPILING is not None and IS_COMPILING()) or is_capturing()


_step_hooks: list[Any] = []
_stepping: set[type] = set()
_running: list[Any] = []
_last_hooks: list[Any] = []
"""The optimizer's own hooks can clip, as those of `attach_to` do, so its gradients are sampled after all of them."""
BEFORE_STEP, AFTER_STEP = RecordingHook("before a step", STEP), RecordingHook("after a step", STEP)


def _add_step_hook() -> None:
    _step_hooks.append(optimizers.register_optimizer_step_pre_hook(BEFORE_STEP.guarded(_before_step)))
    _step_hooks.append(optimizers.register_optimizer_step_post_hook(AFTER_STEP.guarded(_after_step)))


def _remove_step_hook() -> None:
    while _step_hooks:
        _step_hooks.pop().remove()


def _created(call: Call) -> Iterator[None]:
    yield
    VERSIONS.add(call.args[0])
    if not hasattr(optimizers, "register_optimizer_step_pre_hook"):
        _watch_steps(type(call.args[0]))


def _watch_steps(kind: type) -> None:
    """Before PyTorch 2.0, only the class of an optimizer can tell its steps."""
    owner = next(each for each in kind.__mro__ if "step" in vars(each))
    if owner not in _stepping:
        _stepping.add(owner)
        HOOKS.wrap([(owner, "step")], STEP, _step)


def _step(call: Call) -> Iterator[None]:
    optimizer = call.args[0]
    if any(each is optimizer for each in _running):  # the step of a base class
        yield
        return
    _running.append(optimizer)
    try:
        _before_step(optimizer, (), {})
        yield
        _after_step(optimizer, (), {})
    finally:
        _running.pop()


def _backward(call: Call) -> Iterator[None]:
    if is_capturing() or GRAPH_TASK() != -1:  # in another backward pass, as of a checkpoint
        return
    WATCHER.before_backward()
    _add_loss(*call.args, **call.kwargs)
    yield
    VERSIONS.store()
    WATCHER.raw = _raw_gradients()
    WATCHER.clips.after_backward()


def _add_loss(tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
    losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    if not isinstance(losses, (list, tuple)) or len(losses) != 1 or grad_tensors is not None:
        return
    if isinstance(losses[0], torch.Tensor) and losses[0].numel() == 1:
        loss = getattr(losses[0], UNSCALED, losses[0])
        LOSSES.add(loss.detach().clone().item)  # the script may overwrite the loss before the step


def _scaled(call: Call) -> Iterator[None]:
    scaler = call.args[0]
    if scaler.is_enabled():
        WATCHER.scaling_begins(scaler.get_scale)
    yield


def _unscaled(call: Call) -> Iterator[None]:
    scaler, optimizer = list(call.arguments.values())[:2]
    parameters = _sampled(optimizer) if OUTPUT.norms and not _is_hidden() else []
    scale = scaler.get_scale() if parameters else 1.0
    yield from WATCHER.around_unscaling(parameters, _gradient_row, scale, torch.where)
    VERSIONS.store()


def _clipped(call: str, parameters: Sequence[Any]) -> None:
    if not _is_hidden():
        VERSIONS.store_clipped(call)
        WATCHER.clips.add([each for each in parameters if each is None or isinstance(each, torch.Tensor)])


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not _is_hidden():
        WATCHER.changed = VERSIONS.count_changed(optimizer)
        WATCHER.changed_after_clip = VERSIONS.count_changed_after_clip(optimizer)
        WATCHER.tensors = None
        if OUTPUT.norms and hasattr(optimizer, "register_step_pre_hook"):
            _remove_last_hooks()  # an earlier step may have failed
            _last_hooks.append(optimizer.register_step_pre_hook(BEFORE_STEP.guarded(_sample_step)))
        elif OUTPUT.norms:
            WATCHER.tensors = _tensors_at(optimizer)
        VERSIONS.add(optimizer)


def _sample_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    WATCHER.tensors = _tensors_at(optimizer)


def _remove_last_hooks() -> None:
    while _last_hooks:
        _last_hooks.pop().remove()


def _sampled(optimizer: Any) -> list[Any]:
    dense = [each for each in trained_by(optimizer) if type(each.grad) is torch.Tensor and not each.grad.is_sparse]
    return [each for each in dense if not each.is_complex()]


def _raw_gradients() -> dict[int, Any]:
    """Sample the gradients after a backward pass, because the script's own code can change them before the step."""
    optimizers = VERSIONS.optimizers() if OUTPUT.norms else ()
    return {id(each): _gradient_row(each) for optimizer in optimizers for each in _sampled(optimizer)}


def _gradient_row(parameter: Any) -> Any:
    """Return the elements of the sample, and the norm."""
    gradient, places = parameter.grad.detach(), torch.from_numpy(positions(tuple(parameter.shape))).to(parameter.device)
    return torch.cat([gradient.reshape(-1)[places], gradient.norm().reshape(1)])


def _tensors_at(optimizer: Any) -> dict[str, Any] | None:
    all_named = [(MODELS.name_of(each), each) for each in _sampled(optimizer)]
    named = {name: each for name, each in all_named if name}
    rows = []
    for each in named.values():
        gradient, places = each.grad.detach(), torch.from_numpy(positions(tuple(each.shape))).to(each.device)
        both = (gradient.reshape(-1)[places], gradient.norm().reshape(1), each.detach().reshape(-1)[places])
        rows.append(torch.cat([part.to("cpu", torch.float64, non_blocking=True) for part in both]))
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    numbers = [row.tolist() for row in rows]
    tensors = {
        canonical(name): tensor_at_step(each.shape, row[: len(row) // 2 + 1], row[len(row) // 2 + 1 :])
        for (name, each), row in zip(named.items(), numbers)
    }
    if WATCHER.changed is not None:  # otherwise, a recorded clip changes them
        # also if `.data` hides a change
        WATCHER.add_raw(tensors, {canonical(name): WATCHER.raw.get(id(each)) for name, each in named.items()})
    return tensors or None


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    _remove_last_hooks()
    if not _is_hidden():
        _record_step(optimizer)


def _record_step(optimizer: Any) -> None:
    groups = optimizer.param_groups
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
    fields = rates_by_name((MODELS.name_of(each), group.get("lr")) for group, each in changed)
    hooks = sum(bool(each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None)) for _, each in changed)
    fields.update({"hooks": hooks} if hooks else {})
    is_adamw = kind.__name__ == "Adam" and any(group.get("decoupled_weight_decay") for group in groups)
    name = f"{module}.{'AdamW' if is_adamw and not is_users else kind.__name__}"
    WATCHER.after_step(optimizer, name, settings, fields, [each for _, each in changed], MODELS.name_of)
