"""Make optimizers of Keras 3 clip before every update, for `ClipConfig.attach_to`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from .._kit.keras_releases import IS_KERAS_2

if IS_KERAS_2:  # `ClipConfig.attach_to` imports this module
    raise TypeError(
        f"ClipConfig.attach_to for optimizers of Keras needs Keras 3, which TensorFlow installs since 2.16, but Keras "
        f"{keras.__version__} is installed. Clip the gradients before you call apply_gradients."
    )

# Keras 2 lacks the names that follow
from keras import ops

from .._core import validation
from .._core.names import make_namer
from .._core.types import Leaf, with_article
from ..config.clipper import WINDOW
from ..config.optimizer_integrations import checked_names
from ..config.schema import Settings
from . import steps
from .steps import UNKNOWN, LastStep, OutcomeArrays

WRAPPED = (
    "_clip_gradients",
    "_backend_apply_gradients",
    "save_own_variables",
    "load_own_variables",
    "finalize_variable_values",
)
"""`Attached` replaces these methods. Keras averages and unscales gradients before it calls `_clip_gradients`."""

ALL_REDUCE = "_all_reduce_sum_gradients"

NO_STATE = (
    "Keras files do not contain the state of the adaptive threshold. attach_to() returned a handle: "
    "also save the result of handle.state_dict(). After you load a Keras file, pass the result to "
    "handle.load_state_dict()."
)

USED = ("add_variable", "_iterations", "_get_variable_index", "_untrack_variable")

Variable = Any


def _wrapped() -> tuple[str, ...]:
    return (*WRAPPED, ALL_REDUCE) if keras.backend.backend() == "tensorflow" else WRAPPED


def attach(settings: Settings, optimizer: Any, names: Any = None) -> Attached:
    """Make an optimizer clip before every update. A step that Keras compiled before this call does not clip."""
    _check(optimizer)
    if isinstance(names, keras.layers.Layer):
        names = None  # no names are needed: a variable's path is its name
    names = checked_names(names, lambda variable: callable(getattr(variable, "assign", None)), "Keras")
    if not isinstance(names, Mapping | list | tuple | None):
        remedy = "Pass the model, a dict of name to variable, or a list of names in the order of the variables"
        raise TypeError(f"names is {with_article(type(names).__name__)}. {remedy}.")
    return Attached(settings, optimizer, names)


def _check(optimizer: Any) -> None:
    kind = with_article(type(optimizer).__name__)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"optimizer is {kind}. Pass a keras.optimizers.Optimizer.")
    if hasattr(optimizer, "inner_optimizer"):
        raise TypeError(
            f"optimizer is {kind}, which gets scaled gradients. Attach to its inner_optimizer, which gets unscaled "
            "gradients."
        )
    if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
        raise TypeError(
            f"optimizer is {kind}, which passes all gradients on to other optimizers. Attach to each optimizer in its "
            "list `optimizers`: each optimizer clips by the norm of its own gradients. If you passed a function "
            "to MultiOptimizer, first call optimizer.build(variables) to create this list."
        )
    missing = [name for name in (*_wrapped(), *USED) if not hasattr(optimizer, name)]
    if missing:
        raise TypeError(
            f"Keras {keras.__version__} is not supported: its optimizers have no {missing[0]}. Install Keras 3.5 to "
            "3.15, or clip before you apply gradients."
        )
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        if getattr(optimizer, name) is not None:
            raise ValueError(f"The optimizer clips by itself: {name} is {getattr(optimizer, name)}. Remove {name}.")
    if WRAPPED[0] in vars(optimizer):
        raise ValueError(
            "A configuration is attached to this optimizer already. First call detach() on the handle that attach_to() "
            "returned."
        )


class Attached(AbstractContextManager[Any, None]):
    """A configuration that is attached to an optimizer. The end of a `with` block detaches the configuration."""

    def __init__(self, settings: Settings, optimizer: Any, names: Any) -> None:
        self._settings, self._optimizer = settings, optimizer
        self._first_step = self._last_step = self.step
        self._skips = settings.nonfinite == "skip"
        self._name_of = make_namer(names)
        self._backend = importlib.import_module(f"unified_clip._backends.{keras.backend.backend()}").BACKEND
        self._clipper = steps.clipper(settings, self._backend)
        self._variables: Sequence[Variable] = []
        self._updates = 0  # the number of calls from `Optimizer.apply`, including calls that trace a graph
        wide = "float64" if keras.config.floatx() == "float64" else "float32"
        add = functools.partial(optimizer.add_variable, aggregation="only_first_replica")
        self._steps = add(shape=(), dtype="int32", name="clip_steps")
        self._step = add(shape=(), dtype="int32", name="clip_at")
        self._kept = add(shape=(len(OutcomeArrays._fields),), dtype=wide, name="clip_last")
        unknown = keras.initializers.Constant(UNKNOWN)
        self._recent = add(shape=(WINDOW,), dtype="int32", initializer=unknown, name="clip_recent")
        self._adaptive = [
            add(shape=first.shape, dtype=str(np.asarray(first).dtype), name=f"clip_adaptive_{index}")
            for index, first in enumerate(self._clipper.current_states(self._backend))
        ]
        self._own = [self._steps, self._step, self._kept, self._recent, *self._adaptive]
        if keras.backend.backend() == "jax":
            for variable in (*self._own, optimizer._iterations):
                variable.__class__ = RememberedVariable
        self._originals = {name: getattr(optimizer, name) for name in _wrapped()}
        optimizer._clip_gradients = self._clip
        optimizer._backend_apply_gradients = self._apply_or_skip if self._skips else self._apply
        optimizer.save_own_variables, optimizer.load_own_variables = self._save, self._load
        optimizer.finalize_variable_values = self._finalize
        if type(optimizer).apply is not keras.optimizers.Optimizer.apply:
            self._originals["apply"], optimizer.apply = optimizer.apply, self._apply_subclass
        if ALL_REDUCE in self._originals:
            vars(optimizer)[ALL_REDUCE] = list  # do nothing: `_clip` has called the original before

    def __repr__(self) -> str:
        return f"<ClipConfig {self._settings.rule}, {'attached' if self.is_attached else 'detached'}, step {self.step}>"

    @property
    def last(self) -> LastStep:
        """The outcome of the last step. During `fit` on JAX, this is the last step of the previous epoch."""
        return steps.last_step(int(_read(self._steps)), int(_read(self._step)), _read(self._kept))

    @property
    def rate(self) -> float | None:
        """The share of the last 100 steps in which a gradient changed, or None if it is unknown."""
        return steps.rate_of(_read(self._recent).tolist())

    @property
    def step(self) -> int:
        """The step number of the next clip, computed from the optimizer's `iterations`."""
        if self._optimizer is None:
            return self._last_step
        return int(_read(self._optimizer._iterations)) // (self._optimizer.gradient_accumulation_steps or 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the step number and the states of adaptive rules as plain data. Save the result with the model."""
        return self._clipper.data(self.step, list(map(_read, self._adaptive)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`, which can come from another framework.

        The step number does not change, because it comes from the optimizer's `iterations`.

        Raises:
            ValueError: `state` is not from `state_dict`. The adaptive rules of `state` and the configuration differ.
            RuntimeError: `fit` on JAX is running, and would overwrite the states at the end of the epoch.
        """
        if any(variable._value is None for variable in self._adaptive):
            raise RuntimeError(
                "On JAX, `fit` overwrites the state at the end of the epoch. Before load_state_dict(), call "
                "model.jax_state_sync()."
            )
        self._clipper.load_state_dict(state)
        for variable, loaded in zip(self._adaptive, self._clipper.current_states(self._backend), strict=True):
            variable.assign(loaded)

    @property
    def is_attached(self) -> bool:
        """Whether the optimizer still clips."""
        return self._optimizer is not None

    def detach(self) -> None:
        """Stop clipping, and restore the optimizer's methods. Steps that are already compiled still clip."""
        if self._optimizer is None:
            return
        self._last_step = self.step
        for name in self._originals:
            vars(self._optimizer).pop(name, None)
        for variable in self._own:
            self._optimizer._untrack_variable(variable)
        self._optimizer._iterations.__class__ = keras.Variable
        self._optimizer = None  # so that the optimizer can be freed
        self._originals, self._variables, self._name_of = {}, [], make_namer(None)

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- what Keras calls

    def _apply_subclass(self, grads: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        updates = self._updates
        result = self._originals["apply"](grads, *args, **kwargs)
        if len(grads) and self._updates == updates:
            raise RuntimeError(
                f"{type(self._optimizer).__name__}.apply did not call keras.optimizers.Optimizer.apply, so nothing was "
                "clipped. Call super().apply(...) each time, or attach to the optimizer that makes the update. If "
                "apply accumulates gradients, pass gradient_accumulation_steps to the optimizer instead."
            )
        return result

    def _apply(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        self._updates += 1
        self._variables = variables
        self._originals["_backend_apply_gradients"](grads, variables)

    def _apply_or_skip(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        optimizer = self._optimizer
        sums = [total for total in getattr(optimizer, "_accumulated_gradients", ()) if total is not None]
        kept = [
            variable
            for variable in (*variables, *self._others())
            if not _holds([optimizer._iterations, *sums], variable)
        ]
        before, steps_before = list(map(ops.copy, kept)), ops.copy(self._steps)
        self._apply(grads, variables)
        is_step = ops.not_equal(self._steps, steps_before)  # if equal, this batch only accumulates gradients
        skipped = ops.logical_and(is_step, self._kept[OutcomeArrays._fields.index("skipped")] > 0)
        for variable, value in zip(kept, before, strict=True):
            variable.assign(ops.where(skipped, value, ops.copy(variable)))
        for variable in sums:  # set sums to 0: on PyTorch, Keras multiplies them by 0, and NaN would stay
            variable.assign(ops.where(skipped, ops.zeros(variable.shape, variable.dtype), ops.copy(variable)))

    def _clip(self, grads: Sequence[Any]) -> list[Any]:
        if self._is_discarded():
            return list(grads)
        # sum over replicas before the clip, not after it as Keras does: the sum could exceed the threshold
        if ALL_REDUCE in self._originals:
            grads = [grad for grad, _ in self._originals[ALL_REDUCE](zip(grads, self._variables, strict=True))]
        named = list(zip(map(self._name, self._variables), grads, strict=True))
        step = ops.copy(self._optimizer.iterations)
        states = [ops.copy(variable) for variable in self._adaptive]
        parameters = list(map(ops.copy, self._variables)) if self._settings.needs_parameters else None
        traced = self._clipper.traced(named, step=step, states=states, parameters=parameters)
        for variable, state in zip(self._adaptive, traced.states, strict=True):
            variable.assign(state)
        clipped = [result for _, result in traced.gradients]
        changes = [(old, new) for old, new in zip(grads, clipped, strict=True) if old is not None]
        kept = steps.outcome_arrays(self._settings, ops, traced, changes)
        now = ops.equal(ops.arange(WINDOW), ops.mod(self._steps, WINDOW))
        self._kept.assign(ops.stack([ops.cast(number, self._kept.dtype) for number in kept]))
        self._recent.assign(ops.where(now, ops.cast(kept.clipped, "int32"), ops.copy(self._recent)))
        self._step.assign(ops.cast(step, "int32"))
        self._steps.assign_add(1)
        return clipped

    def _is_discarded(self) -> bool:
        """Return whether Keras on JAX only accumulates the gradients of this batch. Keras then ignores the clip."""
        every = self._optimizer.gradient_accumulation_steps
        if not every or keras.backend.backend() != "jax":
            return False
        steps = self._backend.read(ops.copy(self._optimizer._iterations))
        return steps is not None and (int(steps) + 1) % every != 0  # inside a graph, steps is None

    def _name(self, variable: Variable) -> str:
        path = str(getattr(variable, "path", variable.name)).replace("/", ".")
        return self._name_of(Leaf(None, self._optimizer._get_variable_index(variable), path, variable)) or path

    def _finalize(self, variables: Sequence[Variable]) -> None:
        self._originals["finalize_variable_values"](variables)
        if self.step > self._first_step and not _read(self._steps):
            validation.warn_at_call(
                f"The optimizer went from step {self._first_step} to {self.step} and nothing was clipped, because "
                "Keras compiled the step before you attached the configuration. Compile the model again: "
                "model.compile(...)."
            )

    # -- saved files: they contain only the variables of Keras, so that they can be loaded without a configuration

    def _save(self, store: Any) -> None:
        values: dict[str, Any] = {}
        self._originals["save_own_variables"](values)
        for index, variable in enumerate(self._others()):
            store[str(index)] = values[str(self._index(variable))]

    def _load(self, store: Any) -> None:
        if self._adaptive:
            validation.warn_at_call(NO_STATE)
        other_variables = self._others()
        if len(store.keys()) == len(other_variables):
            values = {self._index(variable): store[str(index)] for index, variable in enumerate(other_variables)}
            values.update((self._index(variable), np.asarray(variable)) for variable in self._own)
            store = {str(index): value for index, value in values.items()}
        self._originals["load_own_variables"](store)

    def _others(self) -> list[Variable]:
        return [variable for variable in self._optimizer.variables if not _holds(self._own, variable)]

    def _index(self, variable: Variable) -> int:
        return next(index for index, candidate in enumerate(self._optimizer.variables) if candidate is variable)


class RememberedVariable(keras.Variable):  # type: ignore[misc]  # mypy skips Keras
    """A variable that remembers its last value, because Keras removes the value during `fit` on JAX."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_value" and value is None and self._value is not None:
            self._remembered = np.asarray(self._value)
        super().__setattr__(name, value)


def _read(variable: Variable) -> np.ndarray[Any, Any]:
    """Return the value of a variable. During `fit` on JAX, return its value at the start of the epoch."""
    value = getattr(variable, "_value", None)
    if isinstance(variable, RememberedVariable) and (value is None or value.is_deleted()):
        remembered: np.ndarray[Any, Any] = variable._remembered
        return remembered
    return np.asarray(variable)


def _holds(variables: Sequence[Variable], variable: Variable) -> bool:
    return any(candidate is variable for candidate in variables)  # not `in`: == compares the values of variables
