"""Record Paddle's own clipping, backward passes, losses and steps of optimizers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import paddle
from paddle.amp.grad_scaler import AmpScaler

from ...recorder.clips import NativeCall
from ...recorder.guard import Call
from ...recorder.hooks import HOOKS, OUTPUT
from ...recorder.lines import caller
from ...recorder.steps import (
    BACKWARD,
    LOSSES,
    STEP,
    ClipCounts,
    StepWatcher,
    of_groups,
    paddle_settings,
    rates_by_name,
)
from ...tensors.types import Dense, from_numpy
from .native_call import ObservedTensors
from .observer import OBSERVER, RunningNativeCall, clip_parameters


class InProgram(NamedTuple):
    """`before` and `after` contain variables of a static program."""

    call: NativeCall
    names: Sequence[str]
    before: Sequence[Any]
    after: Sequence[Any]
    place: str | None


def _gradient_state(parameter: Any) -> object:
    gradient = parameter.grad
    return gradient if gradient is None else (gradient.data_ptr(), gradient.inplace_version)


def _has_no_gradient(parameter: Any) -> bool:
    return parameter.grad is None or not bool((parameter.grad != 0).any())


WATCHER = StepWatcher(ClipCounts(_gradient_state, lambda tensor: not tensor.stop_gradient, _has_no_gradient))

PROGRAMS: dict[Any, list[InProgram]] = {}

STEPPED: WeakKeyDictionary[Any, list[tuple[dict[str, Any], list[Any]]]]
STEPPED = WeakKeyDictionary()
"""{optimizer: its parameter groups that the current step has updated}. A group is (settings, parameters). A parameter
is (weight decay, number of elements, name, learning rate, tensor)."""


def install() -> None:
    OUTPUT.on_clipped.append(_clipped)
    for kind in (paddle.nn.ClipGradByGlobalNorm, paddle.nn.ClipGradByNorm, paddle.nn.ClipGradByValue):
        HOOKS.wrap([(kind, "__call__")], f"a call of paddle.nn.{kind.__name__}", OBSERVER.around(_clip))
    clips = OBSERVER.around(functools.partial(clip_parameters, on_empty=WATCHER.on_empty_clip))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        HOOKS.wrap([(paddle.nn.utils, name)], f"a call of paddle.nn.utils.{name}", clips)
    HOOKS.wrap([(paddle.static.Executor, "run")], "a run of a static program", _run)
    HOOKS.wrap([(paddle.Tensor, "backward")], BACKWARD, _backward)
    HOOKS.wrap([(paddle.optimizer.Optimizer, "_apply_optimize")], STEP, _step)
    HOOKS.on_switch(STEPPED.clear, STEPPED.clear)
    HOOKS.wrap([(AmpScaler, "scale")], "a loss scale", _scaled)
    HOOKS.wrap([(AmpScaler, "_unscale")], "a loss scale", _unscaled)


def install_unified_clip() -> None:
    """Only static programs need hooks for unified_clip's classes."""
    from unified_clip.paddle import GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue

    for kind in (GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue):
        HOOKS.wrap([(kind, "__call__")], f"a call of {kind.__name__}", OBSERVER.around(_clip_by_unified_clip))


def _clip(called: Call) -> Iterator[None]:
    clip, params_grads = called.args
    call = _describe_call(clip, f"paddle.nn.{type(clip).__name__}")
    if not paddle.in_dynamic_mode():
        yield from _add_to_program(call, called)
        return
    pairs = _clipped_pairs(params_grads)
    running = RunningNativeCall(call, [g for _, g in pairs], [p for p, _ in pairs], [p.name for p, _ in pairs])
    yield
    running.end(_results(called.result, pairs))


def _clip_by_unified_clip(called: Call) -> Iterator[None]:
    if paddle.in_dynamic_mode():
        return
    yield from _add_to_program(_describe_call(called.args[0], type(called.args[0]).__name__), called)


def _add_to_program(call: NativeCall, called: Call) -> Iterator[None]:
    pairs = _clipped_pairs(called.args[1])
    yield
    names, before, after = [p.name for p, _ in pairs], [g for _, g in pairs], _results(called.result, pairs)
    PROGRAMS.setdefault(paddle.static.default_main_program(), []).append(
        InProgram(call, names, before, after, caller())
    )


def _clipped_pairs(params_grads: Any) -> list[tuple[Any, Any]]:
    return [(p, g) for p, g in params_grads if g is not None and getattr(p, "need_clip", True) is not False]


def _results(result: Any, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    clipped = {p.name: g for p, g in result}
    return [clipped[p.name] for p, _ in pairs]


def _describe_call(clip: Any, name: str) -> NativeCall:
    if hasattr(clip, "max"):
        return NativeCall(name, "paddle", "value", (float(clip.min), float(clip.max)), None, None)
    return NativeCall(name, "paddle", "global" if "GlobalNorm" in name else "each", float(clip.clip_norm))


def _run(called: Call) -> Iterator[None]:
    """Also fetch the gradients before and after each clip from `Executor.run`."""
    arguments = called.arguments
    clips = PROGRAMS.get(arguments.get("program") or paddle.static.default_main_program(), [])
    if not clips:
        return
    own = list(arguments.get("fetch_list") or [])
    weights = [list(map(_weight, clip.names)) for clip in clips]
    gradients = [gradient for clip in clips for gradient in (*clip.before, *clip.after)]
    called.args, called.kwargs = (), {**arguments, "fetch_list": [*own, *gradients]}
    yield
    fetched, called.result = called.result, called.result[: len(own)]
    values = iter([from_numpy(np.array(array)) for array in fetched[len(own) :]])
    for clip, clip_weights in zip(clips, weights, strict=True):
        before, after = ([next(values) for _ in clip.names] for _ in range(2))
        OBSERVER.record(clip.call, ObservedTensors(before, after, clip_weights, clip.names, place=clip.place))


def _weight(name: str) -> Dense | None:
    variable = paddle.static.global_scope().find_var(name)
    return None if variable is None else from_numpy(np.array(variable.get_tensor()))


def _backward(call: Call) -> Iterator[None]:
    WATCHER.before_backward()
    _add_loss(*call.args, **call.kwargs)
    yield
    WATCHER.clips.after_backward()


def _clipped(call: str, parameters: Sequence[Any]) -> None:
    if paddle.in_dynamic_mode():
        WATCHER.clips.add([each for each in parameters if each is None or isinstance(each, paddle.Tensor)])


def _add_loss(tensor: Any, grad_tensor: Any = None, *_: Any, **__: Any) -> None:
    if grad_tensor is None and paddle.in_dynamic_mode() and tensor.size == 1:
        LOSSES.add(tensor.detach().clone().item)  # the script may overwrite the loss before the step


def _step(call: Call) -> Iterator[None]:
    """Paddle calls `Optimizer._apply_optimize` for each parameter group."""
    optimizer = call.args[0]
    try:
        yield
    except GeneratorExit:
        STEPPED.pop(optimizer, None)
        raise
    if paddle.in_dynamic_mode():
        _record_step(optimizer)


def _record_step(optimizer: Any) -> None:
    groups, stepped = _groups(optimizer), STEPPED.setdefault(optimizer, [])
    group = groups[len(stepped)]
    changed = [each for each in group["params"] if each.grad is not None]
    stepped.append((_settings_of(optimizer, group), changed))
    if len(stepped) < len(groups):
        return
    del STEPPED[optimizer]
    settings = {name: of_groups([each[name] for each, _ in stepped]) for name in stepped[0][0]}
    parameters = [each for _, of_group in stepped for each in of_group]
    fields = rates_by_name((each.name, _rate_of(optimizer, each)) for each in parameters)
    name = f"paddle.optimizer.{type(optimizer).__name__}"
    is_cleared = functools.partial(_is_cleared, ref(optimizer))
    name_of = functools.partial(_name_of, optimizer)
    WATCHER.after_step(id(optimizer), name, settings, is_cleared, fields, parameters, name_of)


def _name_of(optimizer: Any, parameter: Any) -> str:
    """Return the name that the clips of `as_paddle(model)` have, or the name that Paddle gave the parameter."""
    names = getattr(optimizer._grad_clip, "by_own_name", None) or {}
    return str(names.get(parameter.name, parameter.name))


def _settings_of(optimizer: Any, group: Any) -> dict[str, Any]:
    rates = {_rate_of(optimizer, each) for each in group["params"]} or {optimizer.get_lr()}
    return {
        "lr": of_groups(sorted(rates)),
        **paddle_settings(optimizer),
        "dampening": 0.0 if isinstance(optimizer, paddle.optimizer.Momentum) else None,
        "weight_decay": _weight_decay(optimizer, group),
    }


def _rate_of(optimizer: Any, parameter: Any) -> float:
    return float(optimizer.get_lr() * (getattr(parameter, "optimize_attr", None) or {}).get("learning_rate", 1.0))


def _weight_decay(optimizer: Any, group: Any) -> Any:
    decays = {_decay_of(optimizer, group, each) for each in group["params"]} or {0.0}
    return None if None in decays else of_groups(sorted(decays))


def _decay_of(optimizer: Any, group: Any, parameter: Any) -> float | None:
    if hasattr(optimizer, "_lamb_weight_decay"):
        excludes = optimizer._exclude_from_weight_decay_fn
        return 0.0 if excludes and excludes(parameter) else optimizer._lamb_weight_decay
    if hasattr(optimizer, "_weight_decay"):  # of AdamW
        decays = getattr(optimizer, "_apply_decay_param_fun", None)
        return 0.0 if decays and not decays(parameter.name) else optimizer._weight_decay
    decay = getattr(parameter, "regularizer", None) or optimizer.regularization
    if decay is None:  # Momentum stores its L2 decay in `regularization_coeff`
        return float(group.get("regularization_coeff", getattr(optimizer, "_regularization_coeff", 0.0)))
    return float(decay._coeff) if isinstance(decay, paddle.regularizer.L2Decay) else None


def _scaled(call: Call) -> Iterator[None]:
    yield
    scaler = call.args[0]
    if scaler.is_enable() and paddle.in_dynamic_mode():
        WATCHER.scaling_begins(lambda: scaler._scale)


def _unscaled(call: Call) -> Iterator[None]:
    yield
    WATCHER.scaling_ends()


def _is_cleared(reference: ref[Any]) -> bool:
    """A deleted optimizer counts as cleared."""
    optimizer = reference()
    tensors = [each for group in _groups(optimizer) for each in group["params"]] if optimizer else []
    return all(map(_has_no_gradient, tensors))


def _groups(optimizer: Any) -> list[Any]:
    parameters = list(optimizer._param_groups or [])
    return parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
