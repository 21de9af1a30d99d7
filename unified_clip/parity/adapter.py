"""What the worker needs of a framework, beside the public names it tests. One `adapter_*.py` for each framework."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .calls import Arguments, Call
from .tensors import Dense, Gradient, Sparse


class Native(NamedTuple):
    """What a framework's own function returned."""

    name: str
    norm: Any = None
    tensors: Sequence[Any] | None = None


class Adapter:
    """A framework. A new one subclasses this, and names the subclass Framework."""

    packages: Sequence[str] = ()
    """The distributions whose versions the report names."""

    def dense(self, tensor: Dense) -> Any:
        """A tensor of the framework with these bytes, in CPU memory."""
        raise NotImplementedError

    def sparse(self, tensor: Sparse) -> Any:
        """The framework's own sparse tensor with these rows, repeated ones included."""
        raise NotImplementedError

    def read(self, tensor: Any) -> Gradient:
        """The bytes of a tensor."""
        raise NotImplementedError

    def container(self, tensors: Sequence[Any]) -> list[Any]:
        """What an in-place name takes: by default the list of gradients, which it updates."""
        return list(tensors)

    def contents(self, container: list[Any]) -> Sequence[Any]:
        """The gradients in such a container."""
        return container

    def parameters(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Something to stand for the parameter of each gradient."""
        return [f"parameter {index}" for index in range(len(tensors))]

    # -- the framework's own functions, or what comes nearest to them; None where it has nothing like it

    def native_norm(self, tensors: Sequence[Any], p: float) -> Native | None:
        return None

    def native_global(self, tensors: Sequence[Any], limit: float, p: float, *, in_place: bool) -> Native | None:
        """Clip all by one norm. `in_place` tells apart the two functions that Paddle has."""
        return None

    def native_by_norm(self, tensors: Sequence[Any], limit: float, axes: Sequence[int] | None) -> Native | None:
        """Clip each by its own norm."""
        return None

    def native_by_value(self, tensors: Sequence[Any], low: float, high: float, *, in_place: bool) -> Native | None:
        return None

    # -- what most can keep

    def scope(self, dtypes: set[str]) -> AbstractContextManager[Any]:
        """Entered around a case whose gradients have these dtypes."""
        return nullcontext()

    def make(self, gradient: Gradient) -> Any:
        if gradient is None:
            return None
        return self.sparse(gradient) if isinstance(gradient, Sparse) else self.dense(gradient)

    def native(self, call: Call, arguments: Arguments, tensors: Sequence[Any]) -> Native | None:
        """The native that corresponds to a call of ours."""
        p, in_place = arguments.get("norm_type", 2), call.style == "in place"
        if call.by_value:
            return self.native_by_value(tensors, *call.bounds(arguments), in_place=in_place)
        if call.given_norm(arguments) is not None:
            return None
        if call.style == "measure":
            return self.native_norm(tensors, p)
        if call.one_norm:
            return self.native_global(tensors, call.limit(arguments), p, in_place=in_place)
        return self.native_by_norm(tensors, call.limit(arguments), arguments.get("axes"))


def to_numpy(tensor: Dense) -> npt.NDArray[Any]:
    """An array that nobody else holds, in NumPy's dtype or that of ml_dtypes."""
    if tensor.dtype != "bfloat16":
        return tensor.array.copy()
    import ml_dtypes

    return tensor.array.copy().view(ml_dtypes.bfloat16)


def from_numpy(array: npt.NDArray[Any]) -> Dense:
    """The inverse."""
    name = array.dtype.name
    return Dense(name, np.array(array.view(np.uint16) if name == "bfloat16" else array))
