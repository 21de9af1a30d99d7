"""Record sessions of TensorFlow 1: clips, losses, and steps of `tf.train`'s optimizers. Tested with TensorFlow 1.15.

A graph stays as it is: further operations would change the seeds of the script's random operations. Each run of a
session also fetches the gradients of the clips and steps that it reaches, and reads the weights before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as sessions

from . import tensorflow1_graphs as graphs
from .clips import NativeCall, Outermost, Row, record_call, row
from .hooks import HOOKS, OUTPUT
from .lines import canonical
from .steps import LOSSES, names_of_step, plain, record_step, tensor_at_step
from .tensorflow1_graphs import BUILT, GraphClip, GraphStep, is_sparse, is_tensorflows, name_of, source_of, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .guard import Call

SETTINGS = {
    "_momentum": "momentum",
    "_use_nesterov": "nesterov",
    "_centered": "centered",
    "_epsilon": "eps",
    "epsilon": "eps",
    "_initial_accumulator_value": "initial_accumulator_value",
}
"""{attribute: setting}. The attributes without "_" are those of BERT's AdamWeightDecayOptimizer."""

RATES = ("_lr_t", "_learning_rate_tensor", "_lr", "_learning_rate", "learning_rate")
BETAS = (("_beta1", "beta_1"), ("_beta2", "beta_2"))

UPDATES = {"apply_gradients", "_apply_dense", "_resource_apply_dense"}
"""Methods in which a subclass implements its own update."""

RUNS = Outermost()


class Reached(NamedTuple):
    """What a run of a session with certain fetches reaches."""

    parts: Sequence[GraphClip | GraphStep]
    tensors: Sequence[Any]
    """Those that the recording also fetches."""

    variables: Sequence[Any]


def install_alone() -> None:
    graphs.install()
    HOOKS.wrap([(tf.keras.optimizers.Optimizer, "apply_gradients")], "a step of tf.keras", _unrecorded)
    HOOKS.wrap([(sessions.BaseSession, "run")], "a run of a session", RUNS.observer(_run))
    for name in ("make_callable", "partial_run_setup"):
        HOOKS.wrap([(sessions.BaseSession, name)], f"a run of a session by {name}", _unrecorded)


def _unrecorded(call: Call) -> Iterator[None]:
    yield
    raise TypeError("Use Session.run, and an optimizer of tf.train, in the recorded run")


def _run(call: Call) -> Iterator[None]:
    arguments = dict(call.arguments)
    session = arguments["self"]
    reached = _reached(session.graph, arguments["fetches"], arguments.get("feed_dict") or {})
    if not reached.parts:
        return
    read = session.run(list(reached.variables)) if reached.variables else []
    weights = dict(zip(map(id, reached.variables), read))
    call.args, call.kwargs = (), {**arguments, "fetches": [arguments["fetches"], list(reached.tensors)]}
    yield
    call.result, found = call.result
    values = {id(tensor): np.asarray(value) for tensor, value in zip(reached.tensors, found)}
    for each in reached.parts:
        if isinstance(each, GraphClip):
            _record_clip(each, values, weights)
        else:
            _record_step(each, values, weights)


def _reached(graph: Any, fetches: Any, feed_dict: Any) -> Reached:
    built = getattr(graph, BUILT, None)
    if built is None:
        return Reached((), (), ())
    elements = (graph.as_graph_element(key) if isinstance(key, str) else key for key in feed_dict)
    feeds = {id(each) for key in elements for each in tf.nest.flatten(values_of(key), expand_composites=True)}
    handler = sessions._FetchHandler(graph, fetches, {})
    operations = [each.op for each in handler.fetches() if id(each) not in feeds] + list(handler.targets())
    key = (frozenset(map(id, operations)), frozenset(feeds), graph.version, len(built.parts), OUTPUT.norms)
    if key not in built.reached:
        built.reached[key] = _find_reached(built.parts, operations, feeds)
    found: Reached = built.reached[key]
    return found


def _find_reached(parts: Sequence[GraphClip | GraphStep], operations: Sequence[Any], feeds: set[int]) -> Reached:
    reached = _ancestors(operations, feeds)
    parts = [each for each in parts if _is_reached(each, reached)]
    losses = [loss for loss in map(_loss, parts) if loss is not None and _adds_nothing(loss, reached, feeds)]
    tensors = [*(each for part in parts for each in _tensors(part)), *losses]
    wanted = {id(each): each for each in tensors if isinstance(each, tf.Tensor)}
    variables = {id(each): each for part in parts for each in _variables(part)} if OUTPUT.norms else {}
    return Reached(parts, [each for each in wanted.values() if _is_fetchable(each, reached)], list(variables.values()))


def _ancestors(operations: Sequence[Any], feeds: set[int]) -> set[Any]:
    found, waiting = set(operations), list(operations)
    while waiting:
        op = waiting.pop()
        new = [each.op for each in op.inputs if id(each) not in feeds]
        new = [each for each in [*new, *op.control_inputs] if each not in found]
        found.update(new)
        waiting += new
    return found


def _is_reached(built: GraphClip | GraphStep, reached: set[Any]) -> bool:
    if isinstance(built, GraphClip):
        return all(values_of(each).op in reached for each in built.after)
    return getattr(built.update, "op", built.update) in reached


def _adds_nothing(tensor: Any, reached: set[Any], feeds: set[int]) -> bool:
    """Return whether the run can also fetch the tensor: this must need no further feed, and change no state."""
    more = _ancestors([tensor.op], feeds) - reached
    return not any(op.type.startswith("Placeholder") or op.op_def.is_stateful for op in more)


def _is_fetchable(tensor: Any, reached: set[Any]) -> bool:
    op, variable = tensor.op, _variable_of(tensor)
    users = [] if variable is None else [each for each in variable.consumers() if each in reached]
    is_written = any(argument.is_ref for each in users for argument in each.op_def.input_arg)
    return op.graph.is_fetchable(tensor) and op._get_control_flow_context() is None and not is_written


def _variable_of(tensor: Any) -> Any:
    """Return the variable whose memory a tensor has, and so its value at the end of the run, or None."""
    while tensor.op.type in ("Identity", "Reshape") and not tensor.dtype._is_ref_dtype:
        tensor = tensor.op.inputs[0]
    return tensor if tensor.dtype._is_ref_dtype else None


def _tensors(built: GraphClip | GraphStep) -> list[Any]:
    if isinstance(built, GraphClip):
        needs_gradients = OUTPUT.norms or not built.returns_norm
        gradients = built.before if needs_gradients else []
        numbers = [each for each in built.limits if isinstance(each, tf.Tensor)]
    else:
        gradients = [gradient for gradient, _ in built.pairs] if OUTPUT.norms else []
        numbers = [each for each in _settings(built.optimizer).values() if isinstance(each, tf.Tensor)]
    return [*numbers, *(part for each in gradients for part in _parts(each))]


def _parts(gradient: Any) -> list[Any]:
    if is_sparse(gradient):
        return [gradient.values, gradient.indices]
    return [gradient._as_graph_element() if hasattr(gradient, "_as_graph_element") else gradient]


def _variables(built: GraphClip | GraphStep) -> list[Any]:
    both = built.variables if isinstance(built, GraphClip) else [variable for _, variable in built.pairs]
    return [each for each in both if each is not None]


def _array(gradient: Any, variable: Any, values: Mapping[int, Any]) -> Any:
    """Return a gradient as a dense array, or None if the run could not fetch it."""
    parts = [values.get(id(each)) for each in _parts(gradient)]
    if len(parts) == 1 or parts[0] is None or parts[1] is None:
        return parts[0]
    if variable is None:
        return None
    dense = np.zeros(variable.shape.as_list(), parts[0].dtype)
    np.add.at(dense, parts[1], parts[0])
    return dense


def _record_clip(clip: GraphClip, values: Mapping[int, Any], weights: Mapping[int, Any]) -> None:
    numbers = [_number(each, values) for each in clip.limits]
    rows = []
    for place, (gradient, variable) in enumerate(zip(clip.before, clip.variables)):
        name = f"{place}" if variable is None else name_of(variable)
        array = _array(gradient, variable, values)
        if array is None and (OUTPUT.norms or not clip.returns_norm):
            raise TypeError(f"the gradient {values_of(gradient).name} cannot be fetched")
        if array is None:
            rows.append(Row(name, gradient.dtype.base_dtype.name, {}))
        else:
            weight = weights.get(id(variable))
            is_whole = weight is not None and weight.shape == array.shape  # not the rows of a sparse gradient
            rows.append(row(name, array, weight if is_whole else None, 2.0))
    low, *more = numbers
    passed = more[0] if more and not clip.returns_norm else None
    if clip.rule == "value":
        bounds = None if low is None or more[0] is None else (low, more[0])
        call = NativeCall(f"tf.{clip.function}", "tensorflow", "value", bounds, None, None)
    else:
        call = NativeCall(f"tf.{clip.function}", "tensorflow", clip.rule, low, passed_norm=passed)
    sparse = sum(map(is_sparse, clip.before))
    record_call(call, rows, clip.place, more[0] if clip.returns_norm else None, {"sparse": sparse} if sparse else {})


def _number(value: Any, values: Mapping[int, Any]) -> float | None:
    found = values.get(id(value)) if isinstance(value, tf.Tensor) else value
    return None if found is None or np.ndim(found) else float(found)


def _loss(built: GraphClip | GraphStep) -> Any:
    if isinstance(built, GraphClip):
        return None
    sources = [source for source in map(source_of, (gradient for gradient, _ in built.pairs)) if source is not None]
    return sources[0].loss if sources else None


def _record_step(step: GraphStep, values: Mapping[int, Any], weights: Mapping[int, Any]) -> None:
    names = [canonical(name_of(variable)) for _, variable in step.pairs]
    fields: dict[str, Any] = {"gradients": len(names), "place": step.place, **names_of_step(names)}
    arrays = [_array(gradient, variable, values) for gradient, variable in step.pairs]
    if OUTPUT.norms:
        fields["tensors"] = {
            name: tensor_at_step(*row("", array, weights[id(variable)], 2.0).at_step())
            for name, array, (_, variable) in zip(names, arrays, step.pairs)
            if array is not None
        }
    loss = _loss(step)
    if loss is not None and id(loss) in values:
        number = float(np.reshape(values[id(loss)], -1)[0])
        LOSSES.add(lambda: number)
    settings = {name: values.get(id(each), each) for name, each in _settings(step.optimizer).items()}
    settings["betas"] = [settings.pop("beta1"), settings.pop("beta2")]
    record_step(class_name(step.optimizer), settings, fields, id(step.optimizer))


def _settings(optimizer: Any) -> dict[str, Any]:
    """Return numbers and tensors."""
    settings = {name: getattr(optimizer, each) for each, name in SETTINGS.items() if hasattr(optimizer, each)}
    settings.update({f"beta{place}": attribute_of(optimizer, names) for place, names in enumerate(BETAS, start=1)})
    settings["alpha"] = getattr(optimizer, "_decay", getattr(optimizer, "_rho", None))
    settings["lr"] = attribute_of(optimizer, RATES)
    if isinstance(optimizer, tf.compat.v1.train.RMSPropOptimizer):
        settings["initial_accumulator_value"] = 1.0
    return {name: each if isinstance(each, tf.Tensor) else plain(each) for name, each in settings.items()}


def attribute_of(optimizer: Any, names: Sequence[str]) -> Any:
    found = (getattr(optimizer, name, None) for name in names)
    return next((each for each in found if each is not None), None)


def class_name(optimizer: Any) -> str:
    """Return a name such as "tf.compat.v1.train.Adam". Skip subclasses without their own update."""
    kind = next(each for each in type(optimizer).__mro__ if is_tensorflows(each) or UPDATES & vars(each).keys())
    if not is_tensorflows(kind):
        return f"{kind.__module__}.{kind.__name__}"
    name = kind.__name__
    return f"tf.compat.v1.train.{name[: -len('Optimizer')] if name.endswith('Optimizer') else name}"
