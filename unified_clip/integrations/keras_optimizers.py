"""A configuration at work in an optimizer of Keras 3, on TensorFlow, JAX and PyTorch: `ClipConfig.attach_to()`."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from .._core.containers import Leaf
from ..config.clipper import WINDOW
from ..config.schema import Settings
from ..errors import ClipWarning
from ..recording.clip_event import make_namer
from . import steps
from .steps import UNKNOWN, Kept, LastStep

WRAPPED = (
    "_clip_gradients",
    "_backend_apply_gradients",
    "save_own_variables",
    "load_own_variables",
    "finalize_variable_values",
)
"""Methods of an optimizer that are replaced on the instance. Keras calls the first once for each update: after it has
averaged what accumulates and taken out the scale of the loss, before it applies weight decay. (On JAX it does so for
every batch that accumulates, and discards what comes of it.) `fit` calls the last, when it ends."""

ADD_UP = "_all_reduce_sum_gradients"
"""One more on TensorFlow: it adds the gradients of all replicas up, which Keras does after it has clipped them."""

USED = ("add_variable", "_iterations", "_get_variable_index", "_untrack_variable")

Variable = Any


def _wrapped() -> tuple[str, ...]:
    return (*WRAPPED, ADD_UP) if keras.backend.backend() == "tensorflow" else WRAPPED


def attach(settings: Settings, optimizer: Any, names: Any = None) -> Attached:
    """Have an optimizer of Keras clip before every update that it makes.

    Args:
        settings: How.
        optimizer: A `keras.optimizers.Optimizer` that does not clip by itself. Attach before the first `fit`, or
            whatever else compiles a step: what is compiled already goes on as it is.
        names: What to call the variables, for patterns: a dict of name to variable, or a list of names in the order of
            the variables that the optimizer was built with. A model, or None: their `path`, with dots.

    Raises:
        TypeError: It is no such optimizer, or a version of Keras that is not known, or names are neither.
        ValueError: A configuration is attached already, or the optimizer clips by itself.

    Example:
        >>> import keras
        >>> from unified_clip import ClipConfig
        >>> optimizer = keras.optimizers.SGD(1.0)
        >>> handle = ClipConfig(rule="global_norm", threshold=1.0, family="tensorflow").attach_to(optimizer)
        >>> weight = keras.Variable([0.0, 0.0])
        >>> optimizer.apply([keras.ops.convert_to_tensor([3.0, 4.0])], [weight])
        >>> [float(number) for number in -weight.numpy() * 10]
        [6.0, 8.0]
        >>> handle.last.norm, handle.last.clipped
        (5.0, True)
    """
    _check(optimizer)
    if isinstance(names, keras.layers.Layer):
        names = None  # whose variables have paths
    _check_names(names)
    return Attached(settings, optimizer, names)


def _check(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"a {type(optimizer).__name__} is no keras.optimizers.Optimizer")
    if hasattr(optimizer, "inner_optimizer"):
        raise TypeError(
            f"a {type(optimizer).__name__} sees gradients times the scale of the loss; attach to its inner_optimizer, "
            "which gets them without"
        )
    missing = [name for name in (*_wrapped(), *USED) if not hasattr(optimizer, name)]
    if missing:
        raise TypeError(
            f"the optimizers of Keras {keras.__version__} have no {missing[0]}, by which a configuration is attached; "
            "use 3.15, or clip the gradients before you apply them"
        )
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        if getattr(optimizer, name) is not None:
            raise ValueError(f"the optimizer clips by itself ({name} is {getattr(optimizer, name)}); leave {name} out")
    if WRAPPED[0] in vars(optimizer):
        raise ValueError("something is attached to this optimizer already; detach it first")


def _check_names(names: Any) -> None:
    if not isinstance(names, Mapping | list | tuple | None):
        raise TypeError(
            f"names is a {type(names).__name__}; pass a dict of name to variable, or a list of names in the order of "
            "the optimizer's variables, or the model: then each is called by its path, with dots"
        )
    for name, variable in names.items() if isinstance(names, Mapping) else ():
        if not callable(getattr(variable, "assign", None)):
            raise TypeError(
                f"names has {name!r} for a {type(variable).__name__}, which is no variable of Keras; pass a dict of "
                "name to variable"
            )


class Attached:
    """A configuration at work in an optimizer, until `detach`; a context manager that ends with it."""

    def __init__(self, settings: Settings, optimizer: Any, names: Any) -> None:
        self._settings, self._optimizer = settings, optimizer
        self._began_at = self._ended_at = self.step
        self._skips = settings.nonfinite == "skip"
        self._name_of = make_namer(names)
        self._ops = importlib.import_module(f"unified_clip._ops.{keras.backend.backend()}_ops").OPS
        self._clipper = steps.clipper(settings, self._ops)
        self._clipped: Sequence[Variable] = []
        wide = "float64" if keras.config.floatx() == "float64" else "float32"
        add = functools.partial(optimizer.add_variable, aggregation="only_first_replica")
        self._made = add(shape=(), dtype="int32", name="clip_steps")
        self._at = add(shape=(), dtype="int32", name="clip_at")
        self._kept = add(shape=(len(Kept._fields),), dtype=wide, name="clip_last")
        unknown = keras.initializers.Constant(UNKNOWN)
        self._recent = add(shape=(WINDOW,), dtype="int32", initializer=unknown, name="clip_recent")
        self._own = [self._made, self._at, self._kept, self._recent]
        self._originals = {name: getattr(optimizer, name) for name in _wrapped()}
        optimizer._clip_gradients = self._clip
        optimizer._backend_apply_gradients = self._apply_or_skip if self._skips else self._apply
        optimizer.save_own_variables, optimizer.load_own_variables = self._save, self._load
        optimizer.finalize_variable_values = self._finalize
        if ADD_UP in self._originals:
            vars(optimizer)[ADD_UP] = list  # as `_clip` has done it already

    @property
    def last(self) -> LastStep:
        """What happened at the last step; reading it waits for the device. Inside `fit`, JAX's variables are those of
        the last epoch."""
        return steps.last_step(int(np.asarray(self._made)), int(np.asarray(self._at)), np.asarray(self._kept))

    @property
    def rate(self) -> float | None:
        """The share of the last 100 steps (or fewer) that changed a gradient; None where that is known of none."""
        return steps.rate_of(np.asarray(self._recent).tolist())

    @property
    def step(self) -> int:
        """The step of the next clip, on which a schedule's threshold depends: the optimizer's `iterations`."""
        return self._ended_at if self._optimizer is None else int(np.asarray(self._optimizer.iterations))

    @property
    def is_attached(self) -> bool:
        """Whether the optimizer still clips."""
        return self._optimizer is not None

    def detach(self) -> None:
        """Let the optimizer be as it was. What is compiled already goes on as it is."""
        if self._optimizer is None:
            return
        self._ended_at = self.step
        for name in self._originals:
            vars(self._optimizer).pop(name, None)
        for variable in self._own:
            self._optimizer._untrack_variable(variable)
        self._optimizer = None  # and what else holds it or its variables
        self._originals, self._clipped, self._name_of = {}, [], make_namer(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- what Keras calls

    def _apply(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        self._clipped = variables
        self._originals["_backend_apply_gradients"](grads, variables)

    def _apply_or_skip(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        """The same, and then what it changed as it was, where the step is skipped.

        But for what accumulates gradients, which begins anew, and the optimizer's count of steps, which goes on.
        """
        optimizer = self._optimizer
        sums = [each for each in getattr(optimizer, "_accumulated_gradients", ()) if each is not None]
        held = [each for each in (*variables, *self._others()) if not _holds([optimizer._iterations, *sums], each)]
        before, made = list(map(ops.copy, held)), ops.copy(self._made)
        self._apply(grads, variables)
        was_made = ops.not_equal(self._made, made)  # while gradients accumulate, none is
        skipped = ops.logical_and(was_made, self._kept[Kept._fields.index("skipped")] > 0)
        for variable, value in zip(held, before, strict=True):
            variable.assign(ops.where(skipped, value, ops.copy(variable)))
        for variable in sums:  # on PyTorch, Keras multiplies them by 0, which leaves NaN
            variable.assign(ops.where(skipped, ops.zeros(variable.shape, variable.dtype), ops.copy(variable)))

    def _clip(self, grads: Sequence[Any]) -> list[Any]:
        if self._is_discarded():
            return list(grads)
        grads = self._added_up(grads)
        named = [(self._name(variable), grad) for variable, grad in zip(self._clipped, grads, strict=True)]
        step = ops.copy(self._optimizer.iterations)
        found = self._clipper.traced(named, step=step)
        clipped = [grad for _, grad in found.gradients]
        present = [(old, new) for old, new in zip(grads, clipped, strict=True) if old is not None]
        kept = steps.kept(self._settings, ops, found, present)
        now = ops.equal(ops.arange(WINDOW), ops.mod(self._made, WINDOW))
        self._kept.assign(ops.stack([ops.cast(number, self._kept.dtype) for number in kept]))
        self._recent.assign(ops.where(now, ops.cast(kept.clipped, "int32"), ops.copy(self._recent)))
        self._at.assign(ops.cast(step, "int32"))
        self._made.assign_add(1)
        return clipped

    def _added_up(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Over the replicas of a strategy; Keras would do that after the clip, and so exceed the limit."""
        if ADD_UP not in self._originals:
            return grads
        return [grad for grad, _ in self._originals[ADD_UP](zip(grads, self._clipped, strict=True))]

    def _is_discarded(self) -> bool:
        """Whether gradients accumulate only: on JAX, Keras makes an update all the same, and takes none of it."""
        every = self._optimizer.gradient_accumulation_steps
        if not every or keras.backend.backend() != "jax":
            return False
        made = self._ops.read(ops.copy(self._optimizer._iterations))
        return made is not None and (int(made) + 1) % every != 0  # a graph does not know; it discards what is kept too

    def _name(self, variable: Variable) -> str:
        path = str(getattr(variable, "path", variable.name)).replace("/", ".")
        return self._name_of(Leaf(None, self._optimizer._get_variable_index(variable), path, variable)) or path

    def _finalize(self, variables: Sequence[Variable]) -> None:
        self._originals["finalize_variable_values"](variables)
        if self.step > self._began_at and not np.asarray(self._made):
            warnings.warn(
                f"the optimizer has gone from step {self._began_at} to {self.step} and nothing was clipped: the step "
                "was compiled before the configuration was attached; compile the model again",
                ClipWarning,
                stacklevel=3,
            )

    # -- files, which hold what Keras knows, so that they can be read where nothing is attached

    def _save(self, store: Any) -> None:
        found: dict[str, Any] = {}
        self._originals["save_own_variables"](found)
        for index, variable in enumerate(self._others()):
            store[str(index)] = found[str(self._index(variable))]

    def _load(self, store: Any) -> None:
        others = self._others()
        if len(store.keys()) == len(others):
            values = {self._index(variable): store[str(index)] for index, variable in enumerate(others)}
            values.update((self._index(variable), np.asarray(variable)) for variable in self._own)
            store = {str(index): value for index, value in values.items()}
        self._originals["load_own_variables"](store)

    def _others(self) -> list[Variable]:
        return [variable for variable in self._optimizer.variables if not _holds(self._own, variable)]

    def _index(self, variable: Variable) -> int:
        return next(index for index, each in enumerate(self._optimizer.variables) if each is variable)


def _holds(variables: Sequence[Variable], variable: Variable) -> bool:
    return any(each is variable for each in variables)  # == would compare their values
