"""Find the clips, losses and optimizers' steps in a graph of TensorFlow 1, without adding an operation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import clip_ops, gradients_util

from .clips import NativeCall
from .hooks import CLIP_CALLS, HOOKS, Outermost, ran
from .lines import caller
from .steps import BACKWARD, STEP, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .guard import Call, Observer

ONE_GRADIENT = (
    "AddN", "Cast", "ClipByValue", "Identity", "Maximum", "Minimum", "Mul", "RealDiv", "Reshape", "Select",
    "UnsortedSegmentSum",
)  # fmt: skip
"""Operations through which a gradient is followed to its variable."""

OWN_STEPS: WeakSet[type] = WeakSet()
"""Classes outside TensorFlow that override `apply_gradients`."""

OWN_GRADIENTS: WeakSet[type] = WeakSet()
"""Classes that override `compute_gradients`, as those for a loss scale."""

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

CANDIDATE = "_unified_clip_candidate"
"""The attribute of a result of a clip that may be no gradient, as of averaged gradients."""

SOURCE = "_unified_clip_gradient"
"""The attribute of a gradient of `tf.gradients` that has its `Gradient`."""


class Gradient(NamedTuple):
    variable: Any
    """None if it is unknown."""

    loss: Any = None
    name: str = ""
    scale: Any = None
    """Outside of sessions, the loss scale of the gradient, or None if it has none, or if further operations may have
    removed it."""


class GraphClip(NamedTuple):
    function: str
    rule: str
    limits: Sequence[Any]
    """The threshold and the norm that the clip uses, or the two bounds."""

    before: Sequence[Any]
    after: Sequence[Any]
    """Both with None where `clip_by_global_norm` gets None, but not in a session."""

    returns_norm: bool = False
    variables: Sequence[Any] = ()
    """In a session, those of the gradients, as far as they are known."""

    place: str | None = None

    def call(self, numbers: Sequence[float | None]) -> NativeCall:
        """numbers: The values of the limits, with None for an array."""
        name, (first, *rest) = f"tf.{self.function}", numbers
        if self.rule == "value":
            bounds = None if first is None or rest[0] is None else (first, rest[0])
            return NativeCall(name, "tensorflow", "value", bounds, None, None)
        passed_norm = rest[0] if rest and not self.returns_norm else None
        return NativeCall(name, "tensorflow", self.rule, first, passed_norm=passed_norm)


class GraphStep:
    """A call of `apply_gradients`. The innermost call gets the gradients that the update uses."""

    def __init__(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.optimizer, self.pairs, self.place = optimizer, pairs, caller()
        self.settings: dict[str, Any] = {}
        """Numbers and tensors, as they were when the step was built."""

        self.update: Any = None
        self.is_innermost = True


BUILT = "_unified_clip_built"
"""The attribute of a graph with the `Built`."""


class Built:
    """What a graph contains, in the order in which it was built, and what its runs reach."""

    def __init__(self) -> None:
        self.parts: list[GraphClip | GraphStep] = []
        self.size = (0, 0)
        """The version of the graph, and the number of parts."""

        self.reached: dict[Any, Any] = {}
        """{fetches and feeds of a run: what it reaches}, in a graph of this size."""


RUNNING: list[GraphStep] = []
"""The calls of `apply_gradients` that run."""

LOSS_CALLS = Outermost()


def is_session() -> bool:
    """Return whether a session will run what the script builds now, also in tf.cond, which builds a function."""
    return not (tf.executing_eagerly() or ops.executing_eagerly_outside_functions())


class Outside:
    """Records what belongs to no session. In an old environment, this is nothing."""

    observers: Mapping[str, Observer] = {"gradient": ran, "gradients": ran}

    def record_clip(self, clip: GraphClip) -> Sequence[Any]:
        """Return the results, which also record the clip."""
        raise TypeError(ONLY_SESSIONS)

    def record_step(self, step: GraphStep, update: Any) -> Any:
        """Return `update`, or an operation that also records the step."""
        raise TypeError(ONLY_SESSIONS)


ONLY_SESSIONS = "Only sessions are recorded in this environment, not the eager mode and tf.function"


def install(outside: Outside, watch: Callable[..., None] = HOOKS.wrap) -> None:
    def either(name: str, observe: Observer) -> Observer:
        other = outside.observers[name]

        def by_graph(call: Call) -> Iterator[None]:
            yield from (observe if is_session() else other)(call)

        return by_graph

    optimizer = tf.compat.v1.train.Optimizer
    watch([(gradients_util, "_GradientsHelper")], BACKWARD, either("gradients", partial(_mark, 0)))
    watch([(tf.GradientTape, "gradient")], BACKWARD, either("gradient", partial(_mark, 1)))
    _watch_own_loss(optimizer)
    for parse in (clip_by_global_norm, clip_by_norm, clip_by_value):
        name = parse.__name__
        homes = [(module, name) for module in (clip_ops, tf, tf.compat.v1, tf.compat.v2)]
        watch(homes, f"a call of tf.{name}", CLIP_CALLS.observer(partial(_clip, outside, parse)))
    step = partial(_step, outside)
    watch([(optimizer, "apply_gradients")], STEP, step)
    watch_class = partial(_watch_own_step, watch, step)
    HOOKS.wrap([(optimizer, "__init__")], "an optimizer", partial(_created, watch_class))
    HOOKS.on_switch(partial(_watch_subclasses, watch_class, optimizer), lambda: None)


# -- which tensors are gradients


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, tf.IndexedSlices)


def values_of(tensor: Any) -> Any:
    return tensor.values if is_sparse(tensor) else tensor


def _mark(position: int, call: Call) -> Iterator[None]:
    """position: That of the targets in the arguments."""
    yield
    ys, xs = (tf.nest.flatten(each) for each in list(call.arguments.values())[position : position + 2])
    loss = ys[0] if len(ys) == 1 and ys[0].shape.num_elements() == 1 else None
    for gradient, variable in zip(tf.nest.flatten(call.result), variables_of(xs)):
        if gradient is not None:
            setattr(values_of(gradient), SOURCE, Gradient(variable, loss))


def variables_of(sources: Sequence[Any]) -> list[Any]:
    """Return the variables of a graph, or None for what is no variable. TensorFlow 1's optimizers pass tensors."""
    known = {id(_tensor_of(each)): each for each in tf.compat.v1.global_variables()}
    return [known.get(id(each), each if hasattr(each, "assign") else None) for each in sources]


def _tensor_of(variable: Any) -> Any:
    return variable.handle if hasattr(variable, "handle") else variable._ref()


def _mark_loss(call: Call) -> Iterator[None]:
    """An optimizer for a loss scale computes the gradients of the scaled loss."""
    yield
    loss = call.arguments["loss"]
    gradients = [gradient for gradient, _ in call.result if gradient is not None and not callable(loss)]
    for each in (origin for gradient in gradients for origin in _origins(gradient)):
        if hasattr(each, SOURCE):
            setattr(each, SOURCE, getattr(each, SOURCE)._replace(loss=loss))


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


def _add(tensor: Any, built: GraphClip | GraphStep) -> None:
    if _is_conditional(getattr(tensor, "op", tensor)):
        raise TypeError("tf.cond, tf.while_loop and tf.function hide it from the session")
    if not hasattr(tensor.graph, BUILT):
        setattr(tensor.graph, BUILT, Built())
    getattr(tensor.graph, BUILT).parts.append(built)


def clip_by_global_norm(arguments: Mapping[str, Any], result: Any) -> GraphClip:
    use_norm, (clipped, norm) = arguments.get("use_norm"), result
    limits, tensors = [arguments["clip_norm"], norm if use_norm is None else use_norm], list(arguments["t_list"])
    return GraphClip("clip_by_global_norm", "global", limits, tensors, clipped, use_norm is None)


def clip_by_norm(arguments: Mapping[str, Any], result: Any) -> GraphClip | None:
    is_whole = arguments.get("axes") is None
    return GraphClip("clip_by_norm", "each", [arguments["clip_norm"]], [arguments["t"]], [result]) if is_whole else None


def clip_by_value(arguments: Mapping[str, Any], result: Any) -> GraphClip | None:
    limits = [arguments["clip_value_min"], arguments["clip_value_max"]]
    is_floating = getattr(result, "dtype", tf.int32).is_floating
    return GraphClip("clip_by_value", "value", limits, [arguments["t"]], [result]) if is_floating else None


def _clip(outside: Outside, parse: Callable[[Mapping[str, Any], Any], GraphClip | None], call: Call) -> Iterator[None]:
    yield
    clip = parse(call.arguments, call.result)
    if clip is not None and is_session():
        _add_clip(clip)
    elif clip is not None:
        after = outside.record_clip(clip)
        call.result = (after, *call.result[1:]) if clip.rule == "global" else after[0]


def _add_clip(clip: GraphClip) -> None:
    """If the tensor is not known to be a gradient, a step that gets the result will show it."""
    pairs = [(before, after) for before, after in zip(clip.before, clip.after) if before is not None]
    if not pairs:
        return
    before, after = zip(*pairs)
    sources = [source_of(each) for each in before]
    variables = [None if source is None else source.variable for source in sources]
    clip = clip._replace(before=before, after=after, variables=variables, place=caller())
    if clip.rule == "global" or sources[0] is not None:
        _add(values_of(after[0]), clip)
    elif values_of(after[0]).dtype.is_floating:
        setattr(values_of(after[0]), CANDIDATE, clip)


def _watch_own_loss(kind: type) -> None:
    if "compute_gradients" in vars(kind) and kind not in OWN_GRADIENTS:
        OWN_GRADIENTS.add(kind)
        HOOKS.wrap([(kind, "compute_gradients")], "a loss", LOSS_CALLS.observer(_mark_loss))


def _watch_own_step(watch: Callable[..., None], step: Observer, kind: type) -> None:
    """A subclass can have its own `apply_gradients`, as in BERT."""
    _watch_own_loss(kind)
    if "apply_gradients" in vars(kind) and not is_tensorflows(kind) and kind not in OWN_STEPS:
        OWN_STEPS.add(kind)
        watch([(kind, "apply_gradients")], STEP, step)


def _watch_subclasses(watch_class: Callable[[type], None], kind: type) -> None:
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        watch_class(subclass)
        _watch_subclasses(watch_class, subclass)


def _created(watch_class: Callable[[type], None], call: Call) -> Iterator[None]:
    for kind in type(call.args[0]).__mro__:
        watch_class(kind)
    yield


def _is_conditional(op: Any) -> bool:
    return op._get_control_flow_context() is not None or op.graph.building_function


def is_tensorflows(kind: type) -> bool:
    return kind.__module__.startswith(("tensorflow.", "tensorflow_core."))


def _step(outside: Outside, call: Call) -> Iterator[None]:
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
    if step.is_innermost and step.pairs:
        step.settings = settings_of(optimizer)
        if not is_session():
            call.result = outside.record_step(step, call.result)
            return
        step.update = call.result
        for gradient, variable in step.pairs:
            for each in filter(lambda origin: hasattr(origin, CANDIDATE), _origins(gradient)):
                _add(each, getattr(each, CANDIDATE)._replace(variables=[variable]))
                delattr(each, CANDIDATE)
        _add(call.result, step)


# -- settings of optimizers


def settings_of(optimizer: Any) -> dict[str, Any]:
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


def with_betas(settings: dict[str, Any]) -> dict[str, Any]:
    settings["betas"] = [settings.pop("beta1"), settings.pop("beta2")]
    return settings
