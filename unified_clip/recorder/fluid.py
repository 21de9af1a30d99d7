"""Record `paddle.fluid`, in dynamic mode and in static programs. Tested with Paddle 1.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import clip, core, framework, optimizer, regularizer
from paddle.fluid.contrib.mixed_precision import decorator

from .clips import (
    NativeCall,
    ProgramClip,
    describe_paddle,
    fetch_also,
    not_recorded,
    record_around,
    record_call,
    row,
    weight_in,
)
from .hooks import CLIP_CALLS, HOOKS, OUTPUT, Outermost
from .lines import caller, canonical
from .steps import (
    BACKWARD,
    LOSSES,
    STEP,
    ClipCounts,
    StepWatcher,
    of_groups,
    paddle_settings,
    plain,
    rate_factor,
    rates_by_name,
    record_step,
    tensor_at_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .guard import Call

    Pairs = Sequence[tuple[Any, Any]]
    """(parameter, gradient)."""


class ProgramStep(NamedTuple):
    """A step of an optimizer in a static program. All names are those of variables."""

    optimizer: str
    settings: Mapping[str, Any]
    factors: Mapping[str, float]
    """{parameter: factor of its learning rate}."""

    gradients: Mapping[str, str]
    """{parameter: its gradient}, as the step gets it, plus the decay. Sparse gradients are missing."""

    decays: Mapping[str, Any]
    """{parameter: rule of its weight decay, or None}. Paddle adds the decay to the gradient in place."""

    rate: str | None
    loss: str | None
    updated: str
    """A variable that the step writes."""

    place: str | None


BUILT: WeakKeyDictionary[Any, list[ProgramClip | ProgramStep]] = WeakKeyDictionary()
"""What each program contains."""

FOUND: WeakKeyDictionary[Any, tuple[Any, list[ProgramClip | ProgramStep]]] = WeakKeyDictionary()
"""{program: (numbers of operations and clips, what runs)}."""

ORIGINS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""{program: the program whose clone it is}."""

LOSS_NAMES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""{optimizer: the loss that it minimizes in a static program}."""

AT_STEP: list[Any] = []
"""The gradients that the next step of an optimizer gets: Paddle clips, then adds the weight decay, then steps."""

PASSES = [0]
"""The number of backward passes, which identifies gradients: clips of `fluid` return new gradients."""


def _has_no_gradient(parameter: Any) -> bool:
    gradient = parameter._grad_ivar()
    return gradient is None or (not _is_sparse(gradient) and not np.any(_array(gradient)))


COUNTS = ClipCounts(lambda parameter: PASSES[0], lambda parameter: not parameter.stop_gradient, _has_no_gradient)
WATCHER = StepWatcher(COUNTS, lambda own: own._parameter_list)


def install() -> None:
    OUTPUT.on_clipped.append(lambda call, parameters: WATCHER.clips.add(parameters))
    HOOKS.wrap([(clip.GradientClipBase, "__call__")], "a clip of Paddle", CLIP_CALLS.observer(_clip))
    appended = [(clip, "append_gradient_clip_ops"), (optimizer, "append_gradient_clip_ops")]
    HOOKS.wrap(appended, "a clip of set_gradient_clip", CLIP_CALLS.observer(_set_clip))
    HOOKS.wrap([(fluid.Program, "clone")], "a clone of a program", _clone)
    HOOKS.wrap([(fluid.Executor, "run")], "a run of a static program", _run)
    HOOKS.wrap([(fluid.Executor, "train_from_dataset")], "train_from_dataset", not_recorded)
    HOOKS.wrap([(core.VarBase, "backward")], BACKWARD, _backward)
    losses = Outermost()
    for kind in (optimizer.Optimizer, decorator.OptimizerWithMixedPrecision):  # which scales the loss
        HOOKS.wrap([(kind, "backward")], "a loss", losses.observer(_static_backward))
    decays = [(regularizer, "append_regularization_ops"), (optimizer, "append_regularization_ops")]
    HOOKS.wrap(decays, STEP, _decayed)
    HOOKS.wrap([(optimizer.Optimizer, "_create_optimization_pass")], STEP, _step)


def _is_sparse(gradient: Any) -> bool:
    return bool(gradient.type == core.VarDesc.VarType.SELECTED_ROWS)


def _array(variable: Any) -> Any:
    if _is_sparse(variable):
        raise TypeError("a sparse gradient cannot be recorded")
    return np.array(variable.value().get_tensor())


# -- clips


def _describe(rule: Any) -> NativeCall:
    return describe_paddle(rule, f"paddle.fluid.clip.{type(rule).__name__}")


def _clip(called: Call) -> Iterator[None]:
    rule, pairs = called.args
    needs_clip = getattr(rule, "_need_clip_func", None) or (lambda parameter: True)
    clipped = [(p, g) for p, g in pairs if g is not None and needs_clip(p)]
    if not framework.in_dygraph_mode():
        yield from _add_clip(_describe(rule), clipped, called)
        return
    call = _describe(rule)
    rows = [row(p.name, _array(g), _array(p), call.order)._replace(parameter=p) for p, g in clipped]
    yield from record_around(called, call, rows, lambda: ())


def _set_clip(called: Call) -> Iterator[None]:
    """Record the clip of `set_gradient_clip`. If parameters have several clips, Paddle uses the last one for all."""
    (pairs,) = called.args
    rules = [getattr(p, "gradient_clip_attr", None) for p, g in pairs if g is not None]
    if not rules or None in rules:  # Paddle does not clip then
        return
    yield from _add_clip(_describe(rules[-1]), [(p, g) for p, g in pairs if g is not None], called)


def _add_clip(call: NativeCall, pairs: Pairs, called: Call) -> Iterator[None]:
    if any(_is_sparse(g) for _, g in pairs):
        raise TypeError("a sparse gradient cannot be recorded")
    place = caller()
    yield
    after = {p.name: g.name for p, g in called.result if g is not None}
    kept = [(p.name, g.name, after[p.name]) for p, g in pairs]
    if kept:
        names, before, clipped = zip(*kept)
        program = called.result[0][1].block.program
        BUILT.setdefault(program, []).append(ProgramClip(call, names, before, clipped, place))


# -- backward passes and steps


def _backward(called: Call) -> Iterator[None]:
    loss = called.args[0]
    WATCHER.before_backward()
    if loss.numpy().size == 1:
        value = float(loss.numpy())
        LOSSES.add(lambda: value)
    yield
    PASSES[0] += 1
    WATCHER.clips.after_backward()


def _static_backward(called: Call) -> Iterator[None]:
    yield
    if not framework.in_dygraph_mode():
        own = called.args[0]
        LOSS_NAMES[getattr(own, "_optimizer", own)] = called.arguments["loss"].name


def _decayed(called: Call) -> Iterator[None]:
    AT_STEP[:] = [(p, g) for p, g in called.args[0] if g is not None]
    yield


def _step(called: Call) -> Iterator[None]:
    own, pairs = called.args[0], list(AT_STEP)
    AT_STEP.clear()
    place = caller()
    if framework.in_dygraph_mode():
        try:
            WATCHER.tensors = _tensors(pairs) if OUTPUT.norms else None
        except Exception:
            WATCHER.skip_step()
            raise
        yield
        _record_step(own, [p for p, _ in pairs])
        return
    yield
    factors = {p.name: rate_factor(p) for p, _ in pairs}
    rate = own._global_learning_rate(framework.default_main_program())
    gradients = {p.name: g.name for p, g in pairs if not _is_sparse(g)}
    if pairs:
        updated, loss, program = pairs[0][0].name, LOSS_NAMES.get(own), framework.default_main_program()
        settings, decays = _settings(own, [p for p, _ in pairs]), {p.name: _decay_rule(own, p) for p, _ in pairs}
        step = (settings, factors, gradients, decays, rate and rate.name, loss, updated, place)
        BUILT.setdefault(program, []).append(ProgramStep(_name(own), *step))


def _tensors(pairs: Pairs) -> dict[str, Any]:
    return {canonical(p.name): _at_step(_array(g), _array(p)) for p, g in pairs if not _is_sparse(g)}


def _at_step(gradient: Any, weight: Any) -> dict[str, Any]:
    return tensor_at_step(*row("", gradient, weight, 2.0).at_step())


def _record_step(own: Any, parameters: Sequence[Any]) -> None:
    rate = own._global_learning_rate()
    number = float(rate.numpy()[0]) if isinstance(rate, core.VarBase) else plain(own._learning_rate)
    rates = {p.name: None if number is None else number * rate_factor(p) for p in parameters}
    settings = {**_settings(own, parameters), "lr": None if number is None else of_groups(sorted(set(rates.values())))}
    fields = rates_by_name(rates.items())
    WATCHER.after_step(own, _name(own), settings, fields, parameters, lambda p: p.name)


def _name(own: Any) -> str:
    kind = type(own)
    is_paddles = kind.__module__.startswith("paddle.")
    name = kind.__name__[: -len("Optimizer")] if kind.__name__.endswith("Optimizer") else kind.__name__
    return f"paddle.fluid.optimizer.{name}" if is_paddles else f"{kind.__module__}.{kind.__name__}"


def _settings(own: Any, parameters: Sequence[Any]) -> dict[str, Any]:
    decays = [_decay(own, parameter) for parameter in parameters]
    return paddle_settings(own, None if None in decays else of_groups(sorted(set(decays))))


def _decay(own: Any, parameter: Any) -> float | None:
    if hasattr(own, "_weight_decay"):  # of LAMB
        excludes = getattr(own, "_exclude_from_weight_decay_fn", None)
        return 0.0 if excludes and excludes(parameter) else float(own._weight_decay)
    rule = _decay_rule(own, parameter)
    if rule is None:
        return 0.0
    return float(rule._regularization_coeff) if isinstance(rule, regularizer.L2DecayRegularizer) else None


def _decay_rule(own: Any, parameter: Any) -> Any:
    return getattr(parameter, "regularizer", None) or own.regularization


def _without_decay(gradient: Any, weight: Any, rule: Any) -> Any:
    if rule is None:
        return gradient
    decay = weight if isinstance(rule, regularizer.L2DecayRegularizer) else np.sign(weight)
    return (gradient - rule._regularization_coeff * decay.astype(np.float64)).astype(gradient.dtype)


# -- static programs


def _clone(called: Call) -> Iterator[None]:
    yield
    ORIGINS[called.result] = called.args[0]


def _run(called: Call) -> Iterator[None]:
    """Also fetch the gradients, losses and learning rates from `Executor.run`."""
    arguments = called.arguments
    executor = arguments["self"]
    program = arguments.get("program") or framework.default_main_program()
    built = _built_in(getattr(program, "_program", None) or program)
    if not built:
        return
    if getattr(program, "_is_data_parallel", False) and len(program._get_places(executor.place, program._places)) > 1:
        raise TypeError("a program on several devices cannot be recorded")
    scope = arguments.get("scope") or fluid.global_scope()
    fetches = list(dict.fromkeys(name for each in built for name in _fetched(each)))
    names = [name for each in built for name in _parameters(each)] if OUTPUT.norms else []
    weights = {name: weight_in(scope, name) for name in names}
    arrays = dict(zip(fetches, (yield from fetch_also(called, arguments, fetches))))
    for each in built:
        if isinstance(each, ProgramClip):
            rows = [
                row(name, arrays[gradient], weights.get(name), each.call.order)
                for name, gradient in zip(each.names, each.before)
            ]
            record_call(each.call, rows, each.place)
        else:
            _record_program_step(each, arrays, weights)


def _record_program_step(step: ProgramStep, arrays: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    rate = float(np.reshape(arrays[step.rate], -1)[0]) if step.rate else None
    rates = {name: None if rate is None else rate * factor for name, factor in step.factors.items()}
    settings = {**step.settings, "lr": None if rate is None else of_groups(sorted(set(rates.values())))}
    fields: dict[str, Any] = {"gradients": len(step.factors), **rates_by_name(rates.items())}
    if OUTPUT.norms:
        fields["parameters"] = list(map(canonical, step.factors))
        fields["tensors"] = {
            canonical(name): _at_step(_without_decay(arrays[gradient], weights[name], step.decays[name]), weights[name])
            for name, gradient in step.gradients.items()
        }
    if step.loss:
        loss = float(np.reshape(arrays[step.loss], -1)[0])
        LOSSES.add(lambda: loss)
    # the script often keeps no reference to the optimizer, so another one can have its `id`
    record_step(step.optimizer, settings, {**fields, "place": step.place}, id(step))


def _built_in(program: Any) -> list[ProgramClip | ProgramStep]:
    """Return what a program contains. The operations of a clone can be fewer."""
    origin = program
    built: list[ProgramClip | ProgramStep] = []
    while origin is not None:
        built = [*BUILT.get(origin, ()), *built]
        origin = ORIGINS.get(origin)
    if not built:
        return []
    block = program.global_block()
    key = (len(block.ops), len(built))
    if program in FOUND and FOUND[program][0] == key:
        return FOUND[program][1]
    written = {name for op in block.ops for name in op.output_arg_names}
    found = []
    for each in built:
        if isinstance(each, ProgramClip):
            is_here = written.issuperset(each.after)
        else:
            is_here = written.issuperset([each.updated, *each.gradients.values()])
        if is_here:
            found.append(each)
    FOUND[program] = (key, found)
    return found


def _fetched(built: ProgramClip | ProgramStep) -> Sequence[str]:
    if isinstance(built, ProgramClip):
        return built.before
    numbers = [name for name in (built.rate, built.loss) if name]
    return [*numbers, *(built.gradients.values() if OUTPUT.norms else ())]


def _parameters(built: ProgramClip | ProgramStep) -> Sequence[str]:
    return built.names if isinstance(built, ProgramClip) else list(built.gradients)
