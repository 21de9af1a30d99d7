from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...adaptive.rules import AGC
from ...tensors.frameworks import TensorConverter
from ...tensors.types import Gradient
from ..suite.call_form import CallForm, leaves
from ..suite.public_calls import PublicCall


class FunctionsMissingError(Exception):
    """The package with the framework's own functions cannot be imported."""


class Unimportable:
    """Stands in for a package that cannot be imported. Reading any attribute raises FunctionsMissingError."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        raise FunctionsMissingError(self._message)


class Returned(NamedTuple):
    """The values that a framework's function returned. A field is None if the function does not return the value."""

    norm: Any = None
    tensors: Sequence[Any] | None = None


class Adapter(TensorConverter, Protocol):
    """Each framework's module defines a subclass named `FrameworkAdapter`."""

    packages: Sequence[str] = ()
    families: Sequence[str] = ()
    writes: bool = False
    """Whether in-place functions overwrite the caller's tensors. If False, the functions replace the tensors in the
    container."""

    writes_from_graphs: bool = True
    marks_parameters: bool = False

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Return the parameters after one SGD step with LEARNING_RATE.

        Before the step, all parameters are 1. For each gradient, the result contains a tensor, or None if the gradient
        is None.
        """

    def in_place_arguments(self, invocation: Invocation) -> list[Any]:
        return list(invocation.gradients)

    def read_in_place(self, arguments: Sequence[Any]) -> Sequence[Any]:
        return arguments

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        return [np.zeros(1) for _ in tensors]

    def transposed(self, tensor: Any) -> Any:
        """Return a copy in column-major order, or `tensor` itself if the framework has no strides."""
        return tensor

    def expanded(self, tensor: Any) -> Any:
        """Return a tensor with stride 0, whose elements all have the value of the first element of `tensor`.

        If the framework has no strides, return `tensor` itself.
        """
        return tensor

    def overlapping(self, tensors: list[Any]) -> list[Any]:
        """Concatenate 1-d tensors, and return an overlapping view for each tensor: each view starts one element
        after the start of the previous view.
        """
        return tensors

    def shares_memory(self, a: Any, b: Any) -> bool:
        return False

    def scope(self, dtypes: set[str]) -> AbstractContextManager[Any]:
        """Return a context manager for calls on gradients with these dtypes. JAX needs 64-bit mode for float64."""
        return nullcontext()

    def make_all(self, gradients: Sequence[Gradient]) -> list[Any]:
        return [self.make(gradient) for gradient in gradients]

    def all_gather_text(self, text: str) -> Sequence[str]:
        """Return the texts of all ranks, ordered by rank. Raise SystemExit if a rank has ended or does not answer."""
        return [text]

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        """Some of the tensors can be None."""

    # -- The framework's own functions. Each method first sets `invocation.native` to the name of the function that it
    # calls: the report needs it, even if the call raises an error. A method returns None if there is no such function.

    def native_norm(self, invocation: Invocation, p: float) -> Returned | None:
        return None

    def native_global(self, invocation: Invocation, threshold: float, p: float, norm: float | None) -> Returned | None:
        """norm: The total norm to use. If None, the framework's function measures the norm."""
        return None

    def native_by_norm(self, invocation: Invocation, threshold: float, axes: Sequence[int] | None) -> Returned | None:
        """axes: The axes over which norms are computed, as in `tf.clip_by_norm`."""
        return None

    def native_by_value(self, invocation: Invocation, low: float, high: float) -> Returned | None:
        return None

    def native_settings(self, invocation: Invocation, threshold: float) -> Returned | None:
        return None

    def native_units(self, invocation: Invocation, rule: AGC) -> Returned | None:
        """Apply adaptive gradient clipping.

        The first half of `invocation.gradients` contains the gradients, and the second half contains the parameters.
        """
        return None

    def has_native(self, invocation: Invocation) -> bool:
        if invocation.call.style == "measure":
            return "torch" in self.families or "error_if_nonfinite" not in invocation.arguments
        return invocation.call.family in self.families and invocation.call.style not in ("hook", "class in place")

    def native(self, invocation: Invocation) -> Returned | None:
        call, arguments = invocation.call, invocation.arguments
        if call.style == "units":
            return self.native_units(invocation, invocation.rule) if "clip_norm" not in arguments else None
        p = arguments.get("norm_type", 2)
        if call.style == "measure":
            return self.native_norm(invocation, p)
        if call.by_value:
            return self.native_by_value(invocation, *call.bounds(arguments))
        threshold = call.threshold(arguments)
        if call.style == "settings":
            return self.native_settings(invocation, threshold)
        if call.by_total_norm:
            return self.native_global(invocation, threshold, p, call.passed_norm(arguments))
        return self.native_by_norm(invocation, threshold, arguments.get("axes"))


class OnParameters(Adapter):
    writes = True
    marks_parameters = True

    utils: Any  # the module `nn.utils`

    def call_utils(self, name: str, invocation: Invocation, *arguments: Any) -> Returned:
        invocation.native = f"{self.utils.__name__}.{name}"
        norm = getattr(self.utils, name)(invocation.in_place_container, *arguments)
        return Returned(norm, invocation.read_gradients())

    def parameter(self, like: Any, value: float) -> Any:
        """Return a parameter with the shape of `like`, filled with `value`. If `like` is None, the parameter has one
        element.
        """

    def step(self, parameters: list[Any]) -> None:
        """Make one SGD step with LEARNING_RATE and the gradients in `.grad`."""

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        weights = [None if gradient is None else self.parameter(gradient, 1.0) for gradient in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            if weight is not None:
                weight.grad = gradient
        self.step([weight for weight in weights if weight is not None])
        return weights

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        parameters = [self.parameter(tensor, 0.0) for tensor in tensors]
        for parameter, needed in zip(parameters, need_clip, strict=True):
            parameter.need_clip = needed
        return parameters

    def in_place_arguments(self, invocation: Invocation) -> list[Any]:
        for parameter, gradient in zip(invocation.parameters, invocation.gradients, strict=True):
            if gradient is not None:  # Paddle 3.2 rejects None
                parameter.grad = gradient
        return list(invocation.parameters)

    def read_in_place(self, arguments: Sequence[Any]) -> Sequence[Any]:
        return [parameter.grad for parameter in arguments]


@dataclass(eq=False)
class Invocation:
    adapter: Adapter
    call: PublicCall
    call_form: CallForm
    arguments: Mapping[str, Any]
    gradients: Sequence[Any]
    native: str = ""
    """The name of the framework's function that the adapter called, or '' if the framework has no such function."""

    cache: dict[str, Any] = field(default_factory=dict)
    """The values that `once` has cached.

    `functools.cached_property` of Python 3.11 uses a lock, which frameworks cannot trace.
    """

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]

    @property
    def parameters(self) -> Any:
        needed = self.call_form.need_clip or [True] * len(self.gradients)
        return self.once("parameters", lambda: self.adapter.parameters(self.gradients, needed))

    @property
    def in_place_arguments(self) -> Any:
        return self.once("in_place_arguments", lambda: self.adapter.in_place_arguments(self))

    @property
    def in_place_container(self) -> Any:
        items = self.gradients if self.call_form.gradients_for_parameters else self.in_place_arguments
        return self.once("in_place_container", lambda: self.call_form.contain(items))

    @property
    def container(self) -> Any:
        return self.once("container", lambda: self.call_form.contain(self.gradients))

    @property
    def param_grads(self) -> list[tuple[Any, Any]]:
        return self.call_form.in_order(list(zip(self.parameters, self.gradients, strict=True)))

    @property
    def rule(self) -> AGC:
        rule: AGC = self.once("rule", lambda: AGC(**self.call.rule_settings(self.arguments)))
        return rule

    @property
    def is_strict(self) -> bool:
        return bool(self.arguments.get("error_if_nonfinite"))

    @property
    def need_clip(self) -> Callable[[Any], bool] | None:
        if self.adapter.marks_parameters:
            return None
        needed = {
            id(argument): flag
            for arguments in (self.parameters, self.in_place_arguments)
            for argument, flag in zip(arguments, self.call_form.need_clip, strict=False)
        }
        return lambda parameter: bool(needed.get(id(parameter), True))

    def read_gradients(self) -> Sequence[Any]:
        if self.adapter.writes:
            return self.adapter.read_in_place(self.in_place_arguments)
        container = self.in_place_container
        return list(leaves(container)) if isinstance(container, list | dict) else self.in_place_arguments
