"""Find the clips, losses and optimizers' steps in a graph of TensorFlow 1, without adding an operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import tensorflow as tf
from tensorflow.python.ops import clip_ops, gradients_util

from .clips import Outermost
from .hooks import HOOKS
from .lines import caller
from .steps import BACKWARD, STEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .guard import Call

ONE_GRADIENT = (
    "AddN", "Cast", "ClipByValue", "Identity", "Maximum", "Minimum", "Mul", "RealDiv", "Reshape", "Select",
    "UnsortedSegmentSum",
)  # fmt: skip
"""Operations through which a gradient is followed to its variable."""

OWN_STEPS: WeakSet[type] = WeakSet()
"""Classes outside TensorFlow that override `apply_gradients`."""

CANDIDATE = "_unified_clip_candidate"
"""The attribute of a result of a clip that may be no gradient, as of averaged gradients."""

SOURCE = "_unified_clip_gradient"
"""The attribute of a gradient of `tf.gradients` that has its `Gradient`."""


class Gradient(NamedTuple):
    variable: Any
    loss: Any


class GraphClip(NamedTuple):
    function: str
    rule: str
    limits: Sequence[Any]
    """The threshold and the norm that the clip uses, or the two bounds."""

    before: Sequence[Any]
    after: Any
    variables: Sequence[Any]
    returns_norm: bool
    place: str | None


class GraphStep:
    """A call of `apply_gradients`. The innermost call gets the gradients that the update uses."""

    def __init__(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.optimizer, self.pairs, self.place = optimizer, pairs, caller()
        self.update: Any = None
        self.is_innermost = True


BUILT = "_unified_clip_built"
"""The attribute of a graph with the `Built`."""


class Built:
    """What a graph contains, in the order in which it was built, and what its runs reach."""

    def __init__(self) -> None:
        self.parts: list[GraphClip | GraphStep] = []
        self.reached: dict[Any, Any] = {}
        """{fetches and feeds of a run: what it reaches}."""


RUNNING: list[GraphStep] = []
"""The calls of `apply_gradients` that run."""

CLIPS, LOSS_CALLS = Outermost(), Outermost()


def install() -> None:
    optimizer = tf.compat.v1.train.Optimizer
    HOOKS.wrap([(gradients_util, "_GradientsHelper")], BACKWARD, _mark)
    HOOKS.wrap([(optimizer, "compute_gradients")], "a loss", LOSS_CALLS.observer(_mark_loss))
    for observe in (clip_by_global_norm, clip_by_norm, clip_by_value):
        name = observe.__name__
        homes = [(module, name) for module in (clip_ops, tf, tf.compat.v1, tf.compat.v2)]
        HOOKS.wrap(homes, f"a call of tf.{name}", CLIPS.observer(observe))
    HOOKS.wrap([(optimizer, "apply_gradients")], STEP, _step)
    HOOKS.wrap([(optimizer, "__init__")], "an optimizer", _created)


# -- which tensors are gradients


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, tf.IndexedSlices)


def values_of(tensor: Any) -> Any:
    return tensor.values if is_sparse(tensor) else tensor


def _mark(call: Call) -> Iterator[None]:
    yield
    ys, xs = (tf.nest.flatten(each) for each in list(call.arguments.values())[:2])
    loss = ys[0] if len(ys) == 1 and ys[0].shape.num_elements() == 1 else None
    known = {id(_tensor_of(each)): each for each in tf.compat.v1.global_variables()}
    for gradient, x in zip(call.result, xs):
        if gradient is not None:
            variable = known.get(id(x), x if hasattr(x, "assign") else None)
            setattr(values_of(gradient), SOURCE, Gradient(variable, loss))


def _tensor_of(variable: Any) -> Any:
    return variable.handle if hasattr(variable, "handle") else variable._ref()


def _mark_loss(call: Call) -> Iterator[None]:
    """An optimizer for a loss scale computes the gradients of the scaled loss."""
    yield
    loss = call.arguments["loss"]
    for gradient, _ in call.result:
        if gradient is not None and hasattr(values_of(gradient), SOURCE) and not callable(loss):
            setattr(values_of(gradient), SOURCE, getattr(values_of(gradient), SOURCE)._replace(loss=loss))


def source_of(tensor: Any) -> Gradient | None:
    """Follow a tensor of a graph to the gradient from which it was computed."""
    return next((getattr(each, SOURCE) for each in _origins(tensor) if hasattr(each, SOURCE)), None)


def _origins(tensor: Any) -> Iterator[Any]:
    """Yield a tensor, and those from which it was computed, up to the gradient."""
    waiting, seen = [values_of(tensor)], set()
    while waiting:
        found = waiting.pop(0)
        yield found
        is_computed = isinstance(found, tf.Tensor) and not hasattr(found, SOURCE) and found.op.type in ONE_GRADIENT
        if is_computed and id(found) not in seen:
            seen.add(id(found))
            waiting += list(found.op.inputs)


def name_of(variable: Any) -> str:
    name: str = variable.name
    return name[:-2] if name.endswith(":0") else name


# -- what graphs contain


def _needs_graph() -> None:
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        raise TypeError("Only sessions are recorded in this environment, not the eager mode and tf.function")


def _add(tensor: Any, built: GraphClip | GraphStep) -> None:
    if not hasattr(tensor.graph, BUILT):
        setattr(tensor.graph, BUILT, Built())
    getattr(tensor.graph, BUILT).parts.append(built)


def clip_by_global_norm(call: Call) -> Iterator[None]:
    yield
    _needs_graph()
    arguments, (clipped, norm) = call.arguments, call.result
    use_norm, tensors = arguments.get("use_norm"), list(arguments["t_list"])
    kept = [place for place, each in enumerate(tensors) if each is not None]
    limits = [arguments["clip_norm"], norm if use_norm is None else use_norm]
    _add_clip("clip_by_global_norm", "global", limits, [tensors[p] for p in kept], [clipped[p] for p in kept], use_norm)


def clip_by_norm(call: Call) -> Iterator[None]:
    yield
    _needs_graph()
    arguments = call.arguments
    if arguments.get("axes") is None:
        _add_if_gradient("clip_by_norm", "each", [arguments["clip_norm"]], arguments["t"], call.result)


def clip_by_value(call: Call) -> Iterator[None]:
    yield
    _needs_graph()
    arguments = call.arguments
    limits = [arguments["clip_value_min"], arguments["clip_value_max"]]
    _add_if_gradient("clip_by_value", "value", limits, arguments["t"], call.result)


def _add_if_gradient(function: str, rule: str, limits: Sequence[Any], before: Any, after: Any) -> None:
    """If the tensor is not known to be a gradient, a step that gets the result will show it."""
    if source_of(before) is not None:
        _add_clip(function, rule, limits, [before], [after])
    elif values_of(after).dtype.is_floating:
        clip = GraphClip(function, rule, limits, [before], [after], [None], False, caller())
        setattr(values_of(after), CANDIDATE, clip)


def _add_clip(function: str, rule: str, limits: Any, before: Any, after: Any, use_norm: Any = None) -> None:
    sources = [source_of(each) for each in before]
    variables = [None if source is None else source.variable for source in sources]
    if after:
        is_global = rule == "global" and use_norm is None
        _add(values_of(after[0]), GraphClip(function, rule, limits, before, after, variables, is_global, caller()))


def _created(call: Call) -> Iterator[None]:
    """A subclass can have its own `apply_gradients`, as in BERT."""
    for kind in type(call.args[0]).__mro__:
        if "apply_gradients" in vars(kind) and not is_tensorflows(kind) and kind not in OWN_STEPS:
            OWN_STEPS.add(kind)
            HOOKS.wrap([(kind, "apply_gradients")], STEP, _step)
    yield


def is_tensorflows(kind: type) -> bool:
    return kind.__module__.startswith(("tensorflow.", "tensorflow_core."))


def _step(call: Call) -> Iterator[None]:
    optimizer, *rest = call.args
    pairs = rest[0] if rest else call.kwargs["grads_and_vars"]
    step = GraphStep(optimizer, [(gradient, variable) for gradient, variable in pairs if gradient is not None])
    for outer in RUNNING:
        outer.is_innermost = False
    RUNNING.append(step)
    try:
        yield
    finally:
        RUNNING.remove(step)
    _needs_graph()
    if step.is_innermost and step.pairs:
        step.update = call.result
        if getattr(call.result, "op", call.result)._get_control_flow_context() is not None:
            raise TypeError("a step inside of tf.cond or tf.while_loop")
        for gradient, variable in step.pairs:
            for each in filter(lambda origin: hasattr(origin, CANDIDATE), _origins(gradient)):
                _add(each, getattr(each, CANDIDATE)._replace(variables=[variable]))
                delattr(each, CANDIDATE)
        _add(call.result, step)
