"""Record numbers of TensorFlow's graphs, and the optimizer steps of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from ..._backends.tensorflow.arithmetic import is_for_xla
from ...recorder.guard import Call
from ...recorder.hooks import HOOKS, RecordingHook
from ...recorder.lines import caller
from ...recorder.steps import STEP, names_of_step, record_step
from ...recorder.tensorflow1 import BETAS, SETTINGS, attribute_of, class_name
from ...recorder.tensorflow1_graphs import is_tensorflows

RATES = ("_lr", "_learning_rate", "learning_rate")

OWN_STEPS: WeakSet[type] = WeakSet()
"""Classes outside TensorFlow that override `apply_gradients`."""

RECORDED_STEPS: list[type] = []
"""The classes of the steps that `apply_gradients` has recorded since its last call began."""


REPORT = RecordingHook("a report of a TensorFlow graph", "a part of the training")

watch = partial(HOOKS.wrap, convert=tf.autograph.experimental.do_not_convert)


def report_numbers(receive: Callable[..., None], numbers: Sequence[Any], after: Sequence[Any] = ()) -> Any:
    """Pass the numbers to `receive`. In a graph, return an operation that waits until the variables in `after` are
    written, and then passes the numbers."""
    if tf.executing_eagerly():
        REPORT.run(receive, *(tf.convert_to_tensor(number).numpy() for number in numbers))
    elif not is_for_xla() and tf.compat.v1.get_default_graph().building_function:
        with tf.control_dependencies([tf.convert_to_tensor(variable) for variable in after]):
            return call_on_cpu(receive, [tf.convert_to_tensor(number) for number in numbers])
    return None


def runs_all_effects() -> bool:
    """Return whether the graph runs operations that no result needs. True in tf.function, and False in a session."""
    graph = tf.compat.v1.get_default_graph()
    # a session's tf.cond builds a function, too
    return bool(graph.building_function and graph._add_control_dependencies)


def call_on_cpu(receive: Callable[..., object], inputs: Sequence[Any]) -> Any:
    with tf.device("/device:CPU:0"):  # a session does not move the operation from a GPU by itself
        return tf.numpy_function(REPORT.guarded(receive), inputs, [])


# -- steps of TensorFlow 1's optimizers


def install_optimizers() -> None:
    optimizer = tf.compat.v1.train.Optimizer
    watch([(optimizer, "apply_gradients")], STEP, _step)
    HOOKS.wrap([(optimizer, "__init__")], "an optimizer", _created)
    HOOKS.on_switch(partial(_watch_subclasses, optimizer), lambda: None)


def _watch_subclasses(kind: type) -> None:
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        _watch_own_steps(subclass)
        _watch_subclasses(subclass)


def _created(call: Call) -> Iterator[None]:
    for kind in type(call.args[0]).__mro__:
        _watch_own_steps(kind)
    yield


def _watch_own_steps(kind: type) -> None:
    if "apply_gradients" in vars(kind) and not is_tensorflows(kind) and kind not in OWN_STEPS:
        OWN_STEPS.add(kind)
        watch([(kind, "apply_gradients")], STEP, _step)


def _step(call: Call) -> Iterator[None]:
    """Record each step once: `apply_gradients` of a subclass can call another `apply_gradients`."""
    RECORDED_STEPS.clear()
    yield
    if not RECORDED_STEPS:
        RECORDED_STEPS.append(type(call.args[0]))
        pairs = list(call.arguments.values())[1]
        variables = [variable for gradient, variable in pairs if gradient is not None]
        call.result = _record_step(call.args[0], call.result, variables)


def _record_step(optimizer: Any, update: Any, variables: Sequence[Any]) -> Any:
    """Record the step, and return `update`. In a graph for a session, return an operation that does both."""
    rate = optimizer._call_if_callable(attribute_of(optimizer, RATES))
    betas = [attribute_of(optimizer, names) for names in BETAS]
    settings = {
        name: getattr(optimizer, attribute) for attribute, name in SETTINGS.items() if hasattr(optimizer, attribute)
    }
    settings["betas"] = betas
    settings["alpha"] = getattr(optimizer, "_decay", getattr(optimizer, "_rho", None))
    if isinstance(optimizer, tf.compat.v1.train.RMSPropOptimizer):
        settings["initial_accumulator_value"] = 1.0
    names = names_of_step(getattr(each, "path", None) or each.name.removesuffix(":0") for each in variables)
    kind, passes = class_name(optimizer), {"gradients": len(variables), "place": caller(), **names}

    def receive(*rates: Any) -> None:
        record_step(kind, {"lr": rates[0] if rates else None, **settings}, passes, id(optimizer))

    rates = [] if rate is None or isinstance(rate, dict) else [tf.convert_to_tensor(rate)]
    if tf.executing_eagerly() or runs_all_effects() or is_for_xla():
        report_numbers(receive, rates)
        return update
    with tf.control_dependencies([update]):
        report = call_on_cpu(receive, rates)
    return tf.group(update, report)
