"""What a parity worker needs of a framework beside its public names: `Adapter`, and the calls that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...tensors.frameworks import TensorConverter
from ...tensors.types import Gradient
from ..suite.call_form import CallForm, leaves
from ..suite.public_calls import Call


class NativeResult(NamedTuple):
    """What a framework's own function returned."""

    name: str
    norm: Any = None
    tensors: Sequence[Any] | None = None


class Adapter(TensorConverter, Protocol):
    """A framework. A new one subclasses this, and names the subclass Framework; what has a body most can keep."""

    packages: Sequence[str] = ()
    """The distributions whose versions the report names."""

    families: Sequence[str] = ()
    """Whose names its own functions correspond to: see `calls.Call.family`."""

    writes: bool = False
    """Whether in-place names write into the tensors; if not, they update the container."""

    marks_parameters: bool = False
    """Whether `parameters` sets their attribute `need_clip`."""

    def sgd(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Parameters of ones after one step of the framework's SGD with LEARNING_RATE; None for None."""

    def in_place_arguments(self, invocation: Invocation) -> list[Any]:
        """What an in-place name takes for each gradient: by default the gradient."""
        return list(invocation.made)

    def read_in_place(self, holders: Sequence[Any]) -> Sequence[Any]:
        """The gradients in what `holders` returned; called where `writes`."""
        return holders

    def parameters(self, tensors: Sequence[Any], need_clip: Sequence[bool | int]) -> Sequence[Any]:
        """Something to stand for the parameter of each gradient."""
        return [np.zeros(1) for _ in tensors]

    def transposed(self, tensor: Any) -> Any:
        """The same tensor with its memory in the order of its transpose, where there is such a thing."""
        return tensor

    def expanded(self, tensor: Any) -> Any:
        """A tensor of the same shape whose elements are all in one place; only where there is such a thing."""
        return tensor

    def overlapping(self, tensors: list[Any]) -> list[Any]:
        """Tensors of equal elements and one axis that overlap in part; only where there is such a thing."""
        return tensors

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Whether a write into one of two tensors would show in the other; only asked where `writes`."""
        return False

    def scope(self, dtypes: set[str]) -> AbstractContextManager[Any]:
        """Entered around a case whose gradients have these dtypes."""
        return nullcontext()

    def make_all(self, gradients: Sequence[Gradient]) -> list[Any]:
        """The tensors of a call."""
        return [self.make(gradient) for gradient in gradients]

    def all_gather_text(self, told: str) -> Sequence[str]:
        """What each of the processes tells; by default there is this one. Ends the process where another has ended."""
        return [told]

    def run_in_graph(self, mode: str, function: Callable[[Sequence[Any]], Any], tensors: Sequence[Any]) -> Any:
        """What a function of tensors and None gives inside a graph of this mode: lists, in lists, of them.

        The function is called once, to trace it. Only called for modes that `launch.GRAPHS` names.
        """

    # -- the framework's own functions, named with `run.calls` before they are called; None where there is none like it

    def native_norm(self, run: Invocation, p: float) -> NativeResult | None:
        return None

    def native_global(self, run: Invocation, limit: float, p: float) -> NativeResult | None:
        """Clip all by one norm."""
        return None

    def native_given_norm(self, run: Invocation, limit: float, norm: float) -> NativeResult | None:
        """Clip all by a norm that is given."""
        return None

    def native_by_norm(self, run: Invocation, limit: float, axes: Sequence[int] | None) -> NativeResult | None:
        """Clip each by its own norm."""
        return None

    def native_by_value(self, run: Invocation, low: float, high: float) -> NativeResult | None:
        return None

    def native_settings(self, run: Invocation, limit: float) -> NativeResult | None:
        """Clip the gradients of each group of parameters by the clip that was set for them."""
        return None

    def has_native(self, run: Invocation) -> bool:
        """Whether the framework has a function of its own for this call."""
        if run.call.style == "measure":
            return "torch" in self.families or "error_if_nonfinite" not in run.arguments
        return run.call.family in self.families and run.call.style not in ("hook", "class in place")

    def native(self, run: Invocation) -> NativeResult | None:
        """The native that corresponds to a call of ours, called."""
        call, arguments = run.call, run.arguments
        p, given = arguments.get("norm_type", 2), call.given_norm(arguments)
        if call.style == "measure":
            return self.native_norm(run, p)
        if call.by_value:
            return self.native_by_value(run, *call.bounds(arguments))
        limit = call.limit(arguments)
        if call.style == "settings":
            return self.native_settings(run, limit)
        if given is not None:
            return self.native_given_norm(run, limit, given)
        if call.one_norm:
            return self.native_global(run, limit, p)
        return self.native_by_norm(run, limit, arguments.get("axes"))


class OnParameters(Adapter):
    """A framework whose parameters carry their gradients in `.grad`, which in-place names write."""

    writes = True
    marks_parameters = True

    def in_place_arguments(self, invocation: Invocation) -> list[Any]:
        for parameter, tensor in zip(invocation.parameters, invocation.made, strict=True):
            if tensor is not None:  # which Paddle 3.2 refuses
                parameter.grad = tensor
        return list(invocation.parameters)

    def read_in_place(self, holders: Sequence[Any]) -> Sequence[Any]:
        return [parameter.grad for parameter in holders]


@dataclass(eq=False)
class Invocation:
    """One call: its arguments, its tensors, and the container that passes them."""

    adapter: Adapter
    call: Call
    call_form: CallForm
    arguments: Mapping[str, Any]
    made: Sequence[Any]
    """The gradients: tensors of the framework, and None."""

    native: str = ""
    """The framework's own function that is being called."""

    kept: dict[str, Any] = field(default_factory=dict)
    """What is made once, when it is asked for. Not by `cached_property`, whose lock cannot be traced into a graph."""

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    @property
    def parameters(self) -> Any:
        """Something to stand for the parameter of each gradient; PyTorch's and Paddle's hold it."""
        needed = self.call_form.need_clip or [True] * len(self.made)
        return self.once("parameters", lambda: self.adapter.parameters(self.made, needed))

    @property
    def in_place_arguments(self) -> Any:
        """What in-place names take: parameters, or the gradients."""
        return self.once("holders", lambda: self.adapter.in_place_arguments(self))

    @property
    def given_in_place(self) -> Any:
        gradients = self.call_form.gradients_for_parameters
        return self.once(
            "in place", lambda: self.call_form.contain(self.made if gradients else self.in_place_arguments)
        )

    @property
    def given(self) -> Any:
        return self.once("given", lambda: self.call_form.contain(self.made))

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return self.call_form.in_order(list(zip(self.parameters, self.made, strict=True)))

    @property
    def need_clip(self) -> Callable[[Any], bool] | None:
        """The predicate for a clip; None where the parameters' own attribute says it."""
        if self.adapter.marks_parameters:
            return None
        needed = {
            id(holder): flag
            for held in (self.parameters, self.in_place_arguments)
            for holder, flag in self._flags(held)
        }
        return lambda parameter: bool(needed.get(id(parameter), True))

    def _flags(self, held: Sequence[Any]) -> Iterable[tuple[Any, bool | int]]:
        return zip(held, self.call_form.need_clip, strict=False)

    def calls(self, function: str) -> str:
        """Note the native that is called next, so that an error can be put down to it."""
        self.native = function
        return function

    def now(self) -> Sequence[Any]:
        """The gradients after a call in place."""
        if self.adapter.writes:
            return self.adapter.read_in_place(self.in_place_arguments)
        container = self.given_in_place
        return list(leaves(container)) if isinstance(container, list | dict) else self.in_place_arguments
