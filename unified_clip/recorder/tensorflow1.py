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
from .clips import Row, record_call, row
from .hooks import HOOKS, OUTPUT, Outermost, RecordingHook
from .lines import canonical
from .steps import LOSSES, STEP, names_of_step, record_step, tensor_at_step
from .tensorflow1_graphs import (
    BUILT,
    GraphClip,
    GraphStep,
    class_name,
    is_sparse,
    name_of,
    source_of,
    values_of,
    with_betas,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .guard import Call

RUNS = Outermost()
CLIP, STEPPED = RecordingHook("a clip in a session", "a clip"), RecordingHook("a step in a session", STEP)


class Reached(NamedTuple):
    """What a run of a session with certain fetches reaches."""

    parts: Sequence[GraphClip | GraphStep]
    tensors: Sequence[Any]
    """Those that the recording also fetches."""

    variables: Sequence[Any]


def install(outside: graphs.Outside | None = None, watch: Callable[..., None] = HOOKS.wrap) -> None:
    if outside is None:
        HOOKS.wrap([(tf.keras.optimizers.Optimizer, "apply_gradients")], "a step of tf.keras", _unrecorded)
    graphs.install(outside or graphs.Outside(), watch)
    HOOKS.wrap([(sessions.BaseSession, "run")], "a run of a session", RUNS.observer(_run))
    for name in ("make_callable", "partial_run_setup"):
        HOOKS.wrap([(sessions.BaseSession, name)], f"a run of a session by {name}", _unrecorded)


def _unrecorded(call: Call) -> Iterator[None]:
    yield
    if call.arguments.get("feed_list") is not None:
        return  # make_callable then calls Session.run
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
        is_clip = isinstance(each, GraphClip)
        (CLIP if is_clip else STEPPED).run(_record_clip if is_clip else _record_step, each, values, weights)


def _reached(graph: Any, fetches: Any, feed_dict: Any) -> Reached:
    built = getattr(graph, BUILT, None)
    if built is None:
        return Reached((), (), ())
    elements = (graph.as_graph_element(key) if isinstance(key, str) else key for key in feed_dict)
    feeds = {id(each) for key in elements for each in tf.nest.flatten(values_of(key), expand_composites=True)}
    try:
        handler = sessions._FetchHandler(graph, fetches, {})
    except (TypeError, ValueError):  # the run itself will raise this error
        return Reached((), (), ())
    operations = [each.op for each in handler.fetches() if id(each) not in feeds] + list(handler.targets())
    wants = OUTPUT.norms, OUTPUT.stores_gradients, OUTPUT.stores_results
    key = (frozenset(map(id, operations)), frozenset(feeds), wants)
    if built.size != (graph.version, len(built.parts)):
        built.size, built.reached = (graph.version, len(built.parts)), {}
    if key not in built.reached:
        built.reached[key] = _find_reached(built.parts, operations, feeds)
    found: Reached = built.reached[key]
    return found


def _find_reached(parts: Sequence[GraphClip | GraphStep], operations: Sequence[Any], feeds: set[int]) -> Reached:
    reached = _ancestors(operations, feeds)
    parts = [each for each in parts if _is_reached(each, reached)]
    computed = [each for part in parts for each in _tensors(part) if each.op in reached or id(each) in feeds]
    losses = [loss for loss in map(_loss, parts) if loss is not None and _adds_nothing(loss, reached, feeds)]
    wanted = {id(each): each for each in [*computed, *losses] if _is_fetchable(each, reached)}
    variables = {id(each): each for part in parts for each in _variables(part)}
    return Reached(parts, list(wanted.values()), list(variables.values()))


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
        return any(values_of(each).op in reached for each in built.after)
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
        gradients = list(built.before) if _needs_gradients(built) else []
        gradients += built.after if OUTPUT.stores_results else []
        numbers = [each for each in built.limits if isinstance(each, tf.Tensor)]
    else:
        gradients = [gradient for gradient, _ in built.pairs] if OUTPUT.norms else []
        numbers = [each for each in built.settings.values() if isinstance(each, tf.Tensor)]
    return [*numbers, *(part for each in gradients for part in _parts(each))]


def _needs_gradients(clip: GraphClip) -> bool:
    return OUTPUT.norms or OUTPUT.stores_gradients or clip.rule == "each"


def _parts(gradient: Any) -> list[Any]:
    if is_sparse(gradient):
        return [gradient.values, gradient.indices]
    return [gradient._as_graph_element() if hasattr(gradient, "_as_graph_element") else gradient]


def _variables(built: GraphClip | GraphStep) -> list[Any]:
    """Return the variables to read before the run: the weights, and thresholds."""
    limits = [each for each in built.limits if hasattr(each, "assign")] if isinstance(built, GraphClip) else []
    both = built.variables if isinstance(built, GraphClip) else [variable for _, variable in built.pairs]
    return limits + [each for each in both if each is not None and OUTPUT.norms]


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
    numbers = [_number(each, {**weights, **values}) for each in clip.limits]
    rows = []
    for place, (gradient, after, variable) in enumerate(zip(clip.before, clip.after, clip.variables)):
        name = f"{place}" if variable is None else name_of(variable)
        array = _array(gradient, variable, values)
        if array is None and clip.rule == "each":
            raise TypeError(f"the gradient {values_of(gradient).name} cannot be fetched")
        if array is None:
            rows.append(Row(name, gradient.dtype.base_dtype.name, parameter=variable))
        else:
            weight = weights.get(id(variable))
            is_whole = weight is not None and weight.shape == array.shape  # not the rows of a sparse gradient
            measured = row(name, array, weight if is_whole else None, 2.0)
            stored = (values[id(gradient.values)], values.get(id(values_of(after)))) if is_sparse(gradient) else None
            rows.append(measured._replace(parameter=variable, stored=OUTPUT.copy(array), sparse_rows=stored))
    sparse = sum(map(is_sparse, clip.before))
    returned, more_fields = numbers[1] if clip.returns_norm else None, {"sparse": sparse} if sparse else {}
    results = [_array(*each, values) for each in zip(clip.after, clip.variables)] if OUTPUT.stores_results else []
    record_call(clip.call(numbers), rows, clip.place, returned, more_fields, [OUTPUT.copy(each) for each in results])


def _number(value: Any, values: Mapping[int, Any]) -> float | None:
    found = values.get(id(value)) if isinstance(value, tf.Tensor) or hasattr(value, "assign") else value
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
    numbers = {name: values.get(id(each), each) for name, each in step.settings.items()}
    record_step(class_name(step.optimizer), with_betas(numbers), fields, id(step.optimizer))
