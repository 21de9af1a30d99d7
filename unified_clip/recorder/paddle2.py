"""Record Paddle 2 and 3: their own clipping, backward passes, losses and steps of optimizers."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import paddle
from paddle.amp.grad_scaler import AmpScaler

from .clips import (
    NativeCall,
    ProgramClip,
    Row,
    clip_parameters,
    describe_paddle,
    fetch_also,
    needs_gradients,
    norm_of,
    not_recorded,
    record_around,
    record_call,
    row,
    rows_of,
    weight_in,
)
from .hooks import CLIP_CALLS, HOOKS, OUTPUT, RecordingHook
from .lines import caller, canonical
from .samples import positions, sample
from .steps import (
    BACKWARD,
    LOSSES,
    STEP,
    ClipCounts,
    StepWatcher,
    of_groups,
    paddle_settings,
    rate_factor,
    rates_by_name,
    tensor_at_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .guard import Call

    Pairs = Sequence[tuple[Any, Any]]
    """(parameter, gradient)."""


def _gradient_state(parameter: Any) -> object:
    gradient = parameter.grad
    return gradient if gradient is None else (gradient.data_ptr(), gradient.inplace_version)


def _has_no_gradient(parameter: Any) -> bool:
    return parameter.grad is None or not bool((parameter.grad != 0).any())


def _trained_by(optimizer: Any) -> list[Any]:
    return [each for group in _groups(optimizer) for each in group["params"]]


COUNTS = ClipCounts(_gradient_state, lambda tensor: not tensor.stop_gradient, _has_no_gradient)
WATCHER = StepWatcher(COUNTS, _trained_by)

PROGRAMS: dict[Any, list[ProgramClip]] = {}

STEPPED: WeakKeyDictionary[Any, list[tuple[dict[str, Any], list[Any]]]] = WeakKeyDictionary()
"""{optimizer: (settings, parameters) of each group that the current step has updated}."""

OPTIMIZERS: WeakSet[Any] = WeakSet()

SAMPLE = RecordingHook("samples of Paddle", "a sample of a gradient")


def install() -> None:
    OUTPUT.on_clipped.append(_clipped)
    OUTPUT.on_empty["paddle"] = WATCHER.on_empty_clip
    for kind in (paddle.nn.ClipGradByGlobalNorm, paddle.nn.ClipGradByNorm, paddle.nn.ClipGradByValue):
        HOOKS.wrap([(kind, "__call__")], f"a call of paddle.nn.{kind.__name__}", CLIP_CALLS.observer(_clip))
    parameters = CLIP_CALLS.observer(_clip_parameters)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        HOOKS.wrap([(paddle.nn.utils, name)], f"a call of paddle.nn.utils.{name}", parameters)
    HOOKS.wrap([(paddle.static.Executor, "run")], "a run of a static program", _run)
    HOOKS.wrap([(paddle.static.Executor, "train_from_dataset")], "train_from_dataset", not_recorded)
    HOOKS.wrap([(paddle.Tensor, "backward")], BACKWARD, _backward)
    HOOKS.wrap([(paddle.optimizer.Optimizer, "__init__")], "an optimizer", _created)
    HOOKS.wrap([(paddle.optimizer.Optimizer, "_apply_optimize")], STEP, _step)
    HOOKS.wrap([(paddle.optimizer.Optimizer, "append_regularization_ops")], STEP, _clipped_before_step)
    HOOKS.on_switch(STEPPED.clear, STEPPED.clear)
    HOOKS.wrap([(AmpScaler, "scale")], "a loss scale", _scaled)
    HOOKS.wrap([(AmpScaler, "_unscale")], "a loss scale", _unscaled)


def install_unified_clip() -> None:
    """unified_clip's own classes need hooks only in static programs."""
    own = vars(sys.modules["unified_clip.paddle"])
    for kind in [own[name] for name in own if name.startswith("GradientClipBy")]:
        HOOKS.wrap([(kind, "__call__")], f"a call of {kind.__name__}", CLIP_CALLS.observer(_clip_of_unified_clip))


def _clip_parameters(called: Call) -> Iterator[None]:
    yield from clip_parameters(called, "paddle", _row_of, WATCHER.on_empty_clip)


def _row_of(parameter: Any, position: int, call: NativeCall) -> Row:
    return _row(parameter, parameter.grad, call, returns_norm=call.computes_norm)


def _row(parameter: Any, gradient: Any, call: NativeCall, *, returns_norm: bool = False) -> Row:
    dtype, stored = str(gradient.dtype).rpartition(".")[2], OUTPUT.copy(gradient)
    if not needs_gradients(call, returns_norm=returns_norm):
        return Row(parameter.name, dtype, parameter=parameter, stored=stored)
    measured = row(parameter.name, _array(gradient), _array(parameter), call.order)
    return measured._replace(dtype=dtype, parameter=parameter, stored=stored)


def _array(tensor: Any) -> Any:
    if tensor.is_selected_rows():  # the gradient of a sparse embedding
        selected = tensor.get_selected_rows()
        values = np.array(selected.get_tensor())
        dense = np.zeros([selected.height(), *values.shape[1:]], values.dtype)
        np.add.at(dense, selected.rows(), values)
        return dense
    return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()


# -- clips


def _clip(called: Call) -> Iterator[None]:
    rule, params_grads = called.args
    call = describe_paddle(rule, f"paddle.nn.{type(rule).__name__}")
    if not paddle.in_dynamic_mode():
        yield from _add_to_program(call, called)
        return
    pairs = clipped_pairs(params_grads)
    yield from record_around(called, call, [_row(*pair, call) for pair in pairs], lambda: results(called, pairs))


def _clip_of_unified_clip(called: Call) -> Iterator[None]:
    if not paddle.in_dynamic_mode():
        call = describe_paddle(called.args[0], type(called.args[0]).__name__)
        yield from _add_to_program(call, called)


def _add_to_program(call: NativeCall, called: Call) -> Iterator[None]:
    pairs = clipped_pairs(called.args[1])
    yield
    names, before, after = [p.name for p, _ in pairs], [g for _, g in pairs], results(called, pairs)
    if not paddle.base.framework.in_pir_mode() and any(left.name == right.name for left, right in zip(before, after)):
        raise TypeError("the clip overwrites its gradients in the program. Record a run of Paddle 3 or in dynamic mode")
    PROGRAMS.setdefault(paddle.static.default_main_program(), []).append(
        ProgramClip(call, names, before, after, caller())
    )


def clipped_pairs(params_grads: Any) -> list[tuple[Any, Any]]:
    return [(p, g) for p, g in params_grads if g is not None and getattr(p, "need_clip", True) is not False]


def results(called: Call, pairs: Pairs) -> list[Any]:
    clipped = {p.name: g for p, g in called.result}
    return [clipped[p.name] for p, _ in pairs]


def _run(called: Call) -> Iterator[None]:
    """Also fetch the gradients before and after each clip from `Executor.run`."""
    arguments = called.arguments
    program = arguments.get("program") or paddle.static.default_main_program()
    clips = PROGRAMS.get(getattr(program, "_program", program), [])  # of a CompiledProgram
    if not clips:
        return
    scope = paddle.static.global_scope()
    weights = [[weight_in(scope, name) for name in each.names] for each in clips]
    gradients = [gradient for each in clips for gradient in (*each.before, *each.after)]
    values = iter((yield from fetch_also(called, arguments, gradients)))
    for each, of_clip in zip(clips, weights):
        before, after = ([next(values) for _ in each.names] for _ in range(2))
        rows = rows_of(each.call, before, of_clip, each.names)
        record_call(each.call, rows, each.place, results=[*map(OUTPUT.copy, after)])


# -- backward passes and steps


def _created(call: Call) -> Iterator[None]:
    yield
    OPTIMIZERS.add(call.args[0])


def _backward(call: Call) -> Iterator[None]:
    WATCHER.before_backward()
    _add_loss(*call.args, **call.kwargs)
    yield
    WATCHER.clips.after_backward()
    WATCHER.raw = SAMPLE.run(_raw_gradients) or {}


def _clipped(call: str, parameters: Sequence[Any]) -> None:
    if paddle.in_dynamic_mode():
        WATCHER.clips.add([each for each in parameters if each is None or isinstance(each, paddle.Tensor)])


def _add_loss(tensor: Any, grad_tensor: Any = None, *_: Any, **__: Any) -> None:
    if grad_tensor is None and paddle.in_dynamic_mode() and tensor.size == 1:
        LOSSES.add(tensor.detach().clone().item)  # the script may overwrite the loss before the step


def _raw_gradients() -> dict[int, Any]:
    """Sample the gradients after a backward pass, because the script's own code can change them before the step."""
    return {id(each): _sampled(each.grad) for own in list(OPTIMIZERS) for each in _with_sample(own)}


def _with_sample(optimizer: Any) -> list[Any]:
    parameters = _trained_by(optimizer) if OUTPUT.norms and paddle.in_dynamic_mode() else []
    return [each for each in parameters if _has_sample(each.grad)]


def _has_sample(gradient: Any) -> bool:
    is_known = gradient is not None and (gradient.is_dense() or gradient.is_selected_rows())
    return is_known and bool(gradient.size) and not gradient.is_complex()


def _sampled(tensor: Any) -> Any:
    """Return the elements of the sample, and the norm, without waiting for the device."""
    if tensor.is_selected_rows():
        array = _array(tensor)
        return np.array([*sample(array), norm_of(array, 2.0)])
    with paddle.no_grad():
        flat = tensor.detach().flatten()
        flat = flat if flat.dtype == paddle.float64 else flat.astype("float32")
        places = paddle.to_tensor(positions(tuple(tensor.shape)))
        return paddle.concat([paddle.gather(flat, places), flat.norm().reshape([1])])


def _clipped_before_step(called: Call) -> Iterator[None]:
    """Paddle clips, then adds the weight decay, then steps."""
    if OUTPUT.norms and paddle.in_dynamic_mode():
        pairs = [(p, g) for p, g in called.args[1] if _has_sample(g)]
        SAMPLE.run(_add_tensors, called.args[0], pairs)
    yield


def _add_tensors(optimizer: Any, pairs: Pairs) -> None:
    names = {id(p): canonical(_name_of(optimizer, p)) for p, _ in pairs}
    rows = {id(p): (p, _sampled(g), _sampled(p)) for p, g in pairs}
    tensors = {
        names[key]: tensor_at_step(p.shape, gradient.tolist(), weight.tolist()[:-1])
        for key, (p, gradient, weight) in rows.items()
    }
    WATCHER.tensors = {**(WATCHER.tensors or {}), **tensors}


def _step(call: Call) -> Iterator[None]:
    """Paddle calls `Optimizer._apply_optimize` for each parameter group."""
    optimizer = call.args[0]
    OPTIMIZERS.add(optimizer)
    try:
        yield
    except GeneratorExit:
        STEPPED.pop(optimizer, None)
        WATCHER.tensors = None
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
    name_of = functools.partial(_name_of, optimizer)
    if WATCHER.tensors and not any(map(WATCHER.clips.times, parameters)):  # otherwise, a recorded clip changes them
        raw = {canonical(name_of(each)): WATCHER.raw.get(id(each)) for each in parameters}
        WATCHER.add_raw(WATCHER.tensors, {name: row for name, row in raw.items() if name in WATCHER.tensors})
    WATCHER.after_step(optimizer, name, settings, fields, parameters, name_of)


def _name_of(optimizer: Any, parameter: Any) -> str:
    """Return the name that the clips of `as_paddle(model)` have, or the name that Paddle gave the parameter."""
    names = getattr(optimizer._grad_clip, "by_own_name", None) or {}
    return str(names.get(parameter.name, parameter.name))


def _settings_of(optimizer: Any, group: Any) -> dict[str, Any]:
    rates = {_rate_of(optimizer, each) for each in group["params"]} or {optimizer.get_lr()}
    return {
        "lr": of_groups(sorted(rates)),
        **paddle_settings(optimizer, _weight_decay(optimizer, group)),
    }


def _rate_of(optimizer: Any, parameter: Any) -> float:
    return float(optimizer.get_lr() * rate_factor(parameter))


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
        WATCHER.scaling_begins(lambda: scaler._scale.item())  # of shape [1]


def _unscaled(call: Call) -> Iterator[None]:
    scaler, optimizer = list(call.arguments.values())[:2]
    scale = scaler._scale.item() if scaler.is_enable() else 1.0  # not on a CPU
    yield from WATCHER.around_unscaling(
        _with_sample(optimizer),
        lambda parameter: _sampled(parameter.grad),
        scale,
        lambda is_same, new, old: new if bool(is_same) else old,
    )


def _groups(optimizer: Any) -> list[Any]:
    parameters = list(optimizer._param_groups or [])
    return parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
