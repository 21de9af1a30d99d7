"""Record TensorFlow's clip functions and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from ..._backends.tensorflow.arithmetic import is_for_xla
from ...recorder import tensorflow1, tensorflow1_graphs
from ...recorder.clips import NativeCall, Row, record_call, rows_of, without_none
from ...recorder.guard import Call
from ...recorder.hooks import HOOKS, OUTPUT, RecordingHook
from ...recorder.lines import caller
from ...recorder.samples import positions
from ...recorder.steps import LOSS_SCALE, LOSSES, RETURNED_CLIPS, UNSCALED, names_of_step, record_step
from ...recorder.tensorflow1_graphs import SOURCE, Gradient, is_sparse, name_of, values_of, variables_of

Describe = Callable[[Sequence[Any]], NativeCall]
"""Takes the values of the thresholds, and returns the settings of the call."""

ARGUMENTS = ("Placeholder", "PlaceholderWithDefault")

REPORT = RecordingHook("a report of a TensorFlow graph", "a part of the training")

SAMPLE = RecordingHook("samples of a tape", "a sample of a gradient")

watch = partial(HOOKS.wrap, convert=tf.autograph.experimental.do_not_convert)

MARKED = "_unified_clip_has_gradients"
"""The attribute of a graph in which gradients are computed."""

ONE_GRADIENT = ("Cast", "Identity", "UnsortedSegmentSum")
"""Operations whose input and output are gradients of the same variable. `tf.convert_to_tensor` uses
UnsortedSegmentSum to convert IndexedSlices."""


class RawGradient(NamedTuple):
    sampled: Any
    graph: Any
    """None in eager mode."""

    clips: int


RAW: dict[int, RawGradient] = {}
"""{`id` of a variable: its last gradient of a tape, sampled}."""

CLIPS = [0]
"""The number of clips that were called, or built into a graph."""


def install() -> None:
    HOOKS.on_switch(lambda: None, _unwatch_operations)
    HOOKS.on_switch(RAW.clear, RAW.clear)
    OUTPUT.on_clipped.append(lambda call, parameters: _count_clip())
    tensorflow1.install(Outside(), watch)


class Outside(tensorflow1_graphs.Outside):
    """Records eager calls, and those in `tf.function`."""

    def __init__(self) -> None:
        self.observers = {"gradient": partial(_mark, 2), "gradients": partial(_mark, 1)}

    def record_clip(self, clip: tensorflow1_graphs.GraphClip) -> Sequence[Any]:
        thresholds, norm = (clip.limits[:1], clip.limits[1]) if clip.returns_norm else (clip.limits, None)

        def describe(values: Sequence[Any]) -> NativeCall:
            return clip.call([None if np.ndim(each) else float(each) for each in values])

        is_gradient = partial(from_tape, clip.before[0]) if clip.rule != "global" else lambda: True
        late = RETURNED_CLIPS.fields_of_clip(fixed(clip.before))
        return report_call(describe, thresholds, clip.before, clip.after, is_gradient=is_gradient, norm=norm, late=late)

    def record_step(self, step: tensorflow1_graphs.GraphStep, update: Any) -> Any:
        tensors = {name: each for name, each in step.settings.items() if isinstance(each, tf.Tensor)}
        names = names_of_step(name_of(each) for _, each in step.pairs)
        kind = tensorflow1_graphs.class_name(step.optimizer)
        passes = {"gradients": len(step.pairs), "place": step.place, **names}

        def receive(*numbers: Any) -> None:
            known = tensorflow1_graphs.with_betas({**step.settings, **dict(zip(tensors, numbers, strict=True))})
            record_step(kind, known, passes, id(step.optimizer))

        report_numbers(receive, list(tensors.values()))
        return update


def report_numbers(receive: Callable[..., None], numbers: Sequence[Any], after: Sequence[Any] = ()) -> Any:
    """Pass the numbers to `receive`. In a graph, return an operation that waits until the variables in `after` are
    written, and then passes the numbers."""
    if tf.executing_eagerly():
        REPORT.run(receive, *(tf.convert_to_tensor(number).numpy() for number in numbers))
    elif not is_for_xla() and tf.compat.v1.get_default_graph().building_function:
        with tf.control_dependencies([tf.convert_to_tensor(variable) for variable in after]):
            return call_on_cpu(receive, [tf.convert_to_tensor(number) for number in numbers])
    return None


def call_on_cpu(receive: Callable[..., object], inputs: Sequence[Any]) -> Any:
    with tf.device("/device:CPU:0"):
        return tf.numpy_function(REPORT.guarded(receive), inputs, [])


def _watch_operations() -> None:
    """Call this only after the script has computed gradients, because it creates TensorFlow's context.

    A script has to call `disable_eager_execution` before the context exists.
    """
    if tf.executing_eagerly() and MARK not in context.context().op_callbacks:
        op_callbacks.add_op_callback(MARK)


def _unwatch_operations() -> None:
    if tf.executing_eagerly() and MARK in context.context().op_callbacks:
        op_callbacks.remove_op_callback(MARK)


def _mark(position: int, call: Call) -> Iterator[None]:
    """Mark the results as gradients. If a gradient tape computes them, also record the loss."""
    report = None
    if isinstance(call.args[0], tf.GradientTape):
        named = dict(zip(("target", "sources", "output_gradients"), call.args[1:], strict=False)) | {**call.kwargs}
        report = _add_loss(**named)
    yield
    _watch_operations()
    if report is not None:
        call.result = _after(report, call.result)
    target, of = list(call.arguments.values())[position - 1 : position + 1]
    sources, scale = _describe_sources(of), getattr(tf.nest.flatten(target)[0], LOSS_SCALE, None)
    if scale is not None:
        scale = tf.convert_to_tensor(scale, tf.float32)  # before the step changes it
    for gradient, source in zip(tf.nest.flatten(call.result), sources, strict=True):
        if gradient is not None:
            values = values_of(gradient)
            setattr(values, SOURCE, source._replace(scale=scale))
            if tf.is_symbolic_tensor(values):
                setattr(values.graph, MARKED, True)
    if isinstance(call.args[0], tf.GradientTape) and OUTPUT.norms:
        SAMPLE.run(_keep_raw, sources, tf.nest.flatten(call.result), scale is not None)


def _count_clip() -> None:
    CLIPS[0] += 1


def _keep_raw(sources: Sequence[Gradient], gradients: Sequence[Any], is_scaled: bool) -> None:
    RAW.clear()
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    for source, gradient in zip(sources, gradients, strict=True):
        if source.variable is not None and isinstance(gradient, tf.Tensor) and not is_scaled:
            RAW[_key(source.variable)] = RawGradient(sampled(gradient), graph, CLIPS[0])


def _key(variable: Any) -> int:
    return id(variable._value if hasattr(variable, "path") else variable)  # a variable of Keras has a path


def is_eager() -> bool:
    return bool(tf.executing_eagerly())


def sampled(tensor: Any) -> Any:
    """Return the elements of the sample and the norm, or in a graph the whole tensor, because further arithmetic in a
    graph could change its rounding."""
    if not tf.executing_eagerly():
        return tf.convert_to_tensor(tensor)  # reads a variable before the step changes it
    flat = tf.reshape(tensor, [-1])
    flat = flat if flat.dtype == tf.float64 else tf.cast(flat, tf.float32)
    return tf.concat([tf.gather(flat, positions(tuple(tensor.shape))), tf.reshape(tf.norm(flat), [1])], 0)


def raw_gradients(variables: Sequence[Any]) -> dict[int, Any]:
    """Return {`id` of a variable: its gradient, sampled}, with None if a clip came after the tape."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    found = {id(each): RAW.get(_key(each)) for each in variables}
    return {
        key: None if raw is None or raw.graph is not graph or raw.clips != CLIPS[0] else raw.sampled
        for key, raw in found.items()
    }


def _add_loss(target: Any = None, output_gradients: Any = None, **_: Any) -> Any:
    """Record the target of a tape if it is a single number. In a graph, return the recording operation."""
    targets = tf.nest.flatten(target)
    is_tensor = len(targets) == 1 and tf.is_tensor(targets[0]) and not isinstance(targets[0], tf.IndexedSlices)
    if is_tensor and output_gradients is None and targets[0].shape.num_elements() == 1:
        return report_numbers(lambda value: LOSSES.add(value.item), [getattr(targets[0], UNSCALED, targets[0])])
    return None


def _after(report: Any, gradients: Any) -> Any:
    """Make the first gradient depend on `report`. A graph then runs `report` before the `tf.cond` in which a
    LossScaleOptimizer makes its step."""
    flat = tf.nest.flatten(gradients)
    present = [index for index, gradient in enumerate(flat) if gradient is not None]
    for index in present[:1]:
        with tf.control_dependencies([report]):
            flat[index] = tf.identity(flat[index])
    return tf.nest.pack_sequence_as(gradients, flat)


def _describe_sources(sources: Any) -> list[Gradient]:
    flat = tf.nest.flatten(sources)
    variables = [each if hasattr(each, "assign") else None for each in flat] if is_eager() else variables_of(flat)
    names = ["" if each is None else getattr(each, "path", None) or name_of(each) for each in variables]
    return [
        Gradient(each, name=name if names.count(name) == 1 else f"{name}#{position}")
        for position, (each, name) in enumerate(zip(variables, names, strict=True))
    ]


def _source_of(tensor: Any) -> Gradient | None:
    """Return None if the variable is unknown."""
    values = values_of(tensor)
    while not hasattr(values, SOURCE) and tf.is_symbolic_tensor(values) and values.op.type in ONE_GRADIENT:
        values = values.op.inputs[0]
    source: Gradient | None = getattr(values, SOURCE, None)
    return None if source is None or source.variable is None else source


def _mark_computed(
    op_type: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[Any], op_name: Any = None, graph: Any = None
) -> None:
    marked = [each for each in inputs if hasattr(each, SOURCE)] if graph is None else []
    source = _source_of(marked[0]) if len(marked) == len(outputs) == 1 else None
    if source is None or outputs[0].shape != source.variable.shape:
        source = Gradient(None)
    for each in outputs if marked else ():
        setattr(each, SOURCE, source if op_type in ONE_GRADIENT else source._replace(scale=None))


MARK = RecordingHook("an operation of TensorFlow", "whether a tensor is a gradient").guarded(_mark_computed)


def from_tape(tensor: Any) -> bool | None:
    """Return whether a tensor is a gradient, or was computed from one. Return None if that is unknown."""
    tensor = values_of(tensor)
    if not tf.is_symbolic_tensor(tensor):
        return hasattr(tensor, SOURCE)
    visited: set[int] = set()
    stack, has_arguments = [tensor], False
    while stack:
        source = stack.pop()
        if hasattr(source, SOURCE):
            return True
        has_arguments |= source.op.type in ARGUMENTS
        stack += [new for new in source.op.inputs if id(new) not in visited]
        visited.update(map(id, source.op.inputs))
    return None if has_arguments and not hasattr(tensor.graph, MARKED) else False


def fixed(tensors: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return the tensors without variables, whose numbers can change, and without what is no tensor."""
    return [("", each) for each in map(values_of, tensors) if tf.is_tensor(each) and not hasattr(each, "assign")]


def repeated_rows(gradients: Sequence[Any]) -> Any:
    indices = [each.indices for each in gradients if is_sparse(each)]
    if not indices or (not tf.executing_eagerly() and is_for_xla()):
        return 0
    return sum(tf.cast(tf.size(tf.unique(each).y) < tf.size(each), tf.int32) for each in indices)


def report_call(
    describe: Describe,
    thresholds: Sequence[Any],
    before: Sequence[Any],
    after: Sequence[Any],
    weights: Sequence[Any] = (),
    names: Sequence[str] = (),
    is_gradient: Callable[[], bool | None] = lambda: True,
    norm: Any = None,
    late: Mapping[str, Any] = MappingProxyType({}),
) -> list[Any]:
    """Record a call, and return `after`. A graph for XLA records nothing.

    Additional operations can change how TensorFlow optimizes the graph, so add as few as possible.
    """
    if tensorflow1_graphs.is_session():
        raise TypeError("a session of TensorFlow 1 does not record the clips of Keras")
    _count_clip()
    sources = [None if gradient is None else _source_of(gradient) for gradient in before]
    if not names and all(source or gradient is None for source, gradient in zip(sources, before, strict=True)):
        names = [source.name if source else "" for source in sources]
        weights = [source.variable if source else None for source in sources]
    present = without_none(before, after if OUTPUT.stores_results else (), weights if OUTPUT.norms else (), names)
    variables, place = without_none(before, weights)[1], caller()
    scales = [source.scale for source in sources if source and source.scale is not None][:1]
    is_measured = norm is None or OUTPUT.norms or OUTPUT.stores_gradients
    sparse = [
        (index, each.values, present[1][index].values if present[1] and is_sparse(present[1][index]) else None)
        for index, each in enumerate(present[0])
        if is_sparse(each)
    ]  # the stored rows before and after the clip

    def receive(*values: Any) -> None:
        call, arrays = describe(values[: len(thresholds)]), map(np.asarray, values[len(thresholds) :])
        returned, results = None if norm is None else float(next(arrays)), list[Any]()
        scaled = {"loss_scale": float(next(arrays))} if scales else {}
        if is_measured:
            gradients, results, of_weights = ([next(arrays) for _ in part] for part in present[:3])
            stored = {index: (next(arrays), None if after is None else next(arrays)) for index, _, after in sparse}
            rows = rows_of(call, gradients, of_weights, present[3])
        else:
            rows, stored = [Row(f"{index}", tensor.dtype.name) for index, tensor in enumerate(present[0])], {}
        known = dict(enumerate(variables))
        rows = [
            each._replace(parameter=known.get(index), sparse_rows=stored.get(index)) for index, each in enumerate(rows)
        ]
        more = {"is_gradient": is_gradient(), **late, **scaled, **({"sparse": len(sparse)} if sparse else {})}
        record_call(call, rows, place, returned, more, [*map(OUTPUT.copy, results)])

    tensors = [tf.convert_to_tensor(tensor) for part in present[:3] for tensor in part if is_measured]
    tensors += [each for _, *both in sparse for each in both if each is not None and is_measured]
    are_tensors = [tf.is_tensor(value) or isinstance(value, tf.Variable) for value in thresholds]
    dtypes = [None if is_tensor else tf.float64 for is_tensor in are_tensors]  # float64 represents all numbers exactly
    inputs = [*map(tf.convert_to_tensor, thresholds, dtypes), *([] if norm is None else [norm]), *scales, *tensors]
    if tf.executing_eagerly():
        receive(*(tensor.numpy() for tensor in inputs))
        return list(after)
    if is_for_xla():
        return list(after)
    report = call_on_cpu(receive, inputs)
    if not OUTPUT.stores_results:
        return list(_after(report, list(after)) if scales else after)
    with tf.control_dependencies([report]):
        return [None if tensor is None else tf.nest.map_structure(tf.identity, tensor) for tensor in after]
