"""The interfaces of the host path and the device path."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .types import Deferred, GraphCallback, Scalar, Tensor, Write


class Scalars(Protocol):
    """Functions of scalars. A `Scalar` supports the operators `+ - * / < <= > >=`."""

    def asarray(self, value: Any) -> Scalar:
        """Convert a number, or a tensor with one element, to a scalar."""

    def where(self, condition: Any, yes: Scalar, no: Scalar, /) -> Scalar: ...

    def is_true(self, condition: Any) -> bool:
        """Return whether all elements are true. On the device path, the elements are unknown, so return False."""

    def cos(self, scalar: Scalar, /) -> Scalar: ...

    def to_float32(self, scalar: Scalar) -> Scalar: ...

    def least(self, numbers: Scalar, /) -> Scalar:
        """Return the smallest number. The array must not contain NaN."""


class Change(Protocol):
    """What a rule does to the gradients of one path."""

    @property
    def group(self) -> range:
        """The indices of these gradients in the gradient list."""

    @property
    def path(self) -> Path: ...

    def is_identity(self) -> bool:
        """Return False if the device is still computing."""

    def results(self) -> list[Tensor]: ...

    def writes(self) -> list[Write]: ...


class Path(Protocol):
    """A list of dense tensors, and computations with them: `HostPath` or `DevicePath`."""

    on_host: bool

    @property
    def xp(self) -> Scalars: ...

    @property
    def framework(self) -> str: ...

    norm_dtype: str
    """"float64" if any tensor is float64 or complex128, else "float32"."""

    def norm(self, p: float) -> Scalar:
        """Round the norm to `norm_dtype`, and return the result as float64."""

    def slice_norms(self, axes: Sequence[int]) -> Scalar:
        """Return the 2-norm of each slice. The path must have one tensor. The result has length 1 along `axes`."""

    def scale(self, coef: Scalar) -> list[Tensor]:
        """Return new tensors, or `unchanged()` for the coefficient 1."""

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        """Return the writes that multiply by `coef`. If `coef` is known to be 1, return an empty list."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return None in a graph."""

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        """`low` and `high` are numbers, or tensors that broadcast to the shape of each tensor."""

    def prepare_clamp(self, low: float, high: float) -> list[Write]: ...

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        """Return `results`, or zeros if the condition `keep` is false."""

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        """Return the writes of `change`. If the condition `keep` is false, write zeros instead."""

    def unchanged(self) -> list[Tensor]:
        """Return the tensors, or copies if code outside unified_clip can overwrite the tensors."""

    def as_norm(self, n: Scalar) -> Tensor:
        """Return a 0-d tensor in `norm_dtype`."""

    def is_one(self, coef: Scalar) -> bool:
        """Return False if the device is still computing the coefficient."""

    def is_finite(self, n: Scalar) -> bool | None:
        """Return None in a compiled graph."""

    def nonfinite_counts(self) -> list[tuple[Scalar, Scalar]]:
        """Return (number of NaN, number of inf) for each tensor. The call does not wait for a device."""

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        """Return whether the path's tensors or these scalars are traced."""
        return False

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Start to read eager scalars, without waiting for a device."""

    def graph_callback(self) -> GraphCallback | None:
        """Return None if the traced graph cannot call Python functions."""
        return None

    def per_tensor(self) -> Path | None:
        """Return a path with one norm per tensor, or None if each tensor needs a separate path."""
        return None

    def scope(self) -> AbstractContextManager[Any]: ...


class CollectedPath(Path, Protocol):
    @property
    def tensors(self) -> list[Tensor]: ...

    def part(self, group: range) -> CollectedPath: ...


def not_adaptive(framework: str) -> TypeError:
    return TypeError(f"adaptive thresholds are not supported in traced code of {framework}. Use a fixed threshold")


class DevicePrimitives(Protocol):
    """The float64 operations that a framework provides for `DevicePath`."""

    name: str

    def dtype(self, tensor: Tensor) -> str: ...

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """Return a float64 scalar on the device of the tensors in `like`."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """Return the float64 sum of |g / divisor|**p. The derivative at zero must be finite.

        If p is neither 1 nor 2, compute the power by logarithms, because g / divisor can underflow to 0.
        """

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        """Return the largest |g| in float64. Return 0 if there are no elements, and NaN if an element is NaN."""

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """Return the sums of |g / divisor|**2 over `axes`. The result has length 1 along these axes."""

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar: ...

    def root(self, value: Scalar, p: float) -> Scalar: ...

    def where(self, condition: Any, yes: Scalar, no: Scalar, /) -> Scalar: ...

    def stop_gradient(self, scalar: Scalar, /) -> Scalar: ...

    def stack(self, scalars: Sequence[Scalar], /) -> Scalar:
        raise TypeError(f"bug in unified_clip: the backend of {self.name} has no stack")

    def ndim(self, scalar: Scalar) -> int | None:
        return len(scalar.shape)

    def cast(self, tensor: Tensor, dtype: str, /) -> Tensor:
        """A cast from float64 to 16 bits may round twice."""

    def bitcast(self, tensor: Tensor, dtype: str, /) -> Tensor:
        """Reinterpret the bits of float32 numbers as int32, or the reverse."""
        raise TypeError(f"bug in unified_clip: the backend of {self.name} has no bitcast")

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        """Round to `dtype`, then convert back to float64."""
        return self.cast(self.cast(scalar, dtype), "float64")

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return self.cast(scalar, dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        """Return a tensor itself if coef is 1. Round coef to float32, unless the tensor is float64 or complex128."""

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        """Run all checks now, because a later write must not raise."""
        return self.prepare_write(tensors, self.scale(tensors, coef))

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """If `value` is a tensor, round it once to the dtype of `tensor`. Numbers are already rounded."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return True if a lower bound exceeds the upper bound, or if a bound is NaN. Return None in a graph."""

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        """Do not change the bits of NaN, or of elements that are equal to a bound."""
        return self.where(tensor < low, low, self.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        results = [self.clamp(tensor, *both) for tensor, both in zip(tensors, bounds, strict=True)]
        return self.prepare_write(tensors, results)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        """Return the tensors, or zeros if the condition `keep` is false."""

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        raise TypeError(f"tensors of {self.name} cannot be changed in place")

    def cos(self, scalar: Scalar, /) -> Scalar: ...

    def floor(self, scalar: Scalar, /) -> Scalar:
        raise not_adaptive(self.name)

    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        """The vector is float64, on the device of the tensors `like`."""
        raise not_adaptive(self.name)

    def indices(self, length: int, like: Sequence[Tensor]) -> Scalar:
        """Return the numbers from 0 to `length - 1` as float64."""
        raise not_adaptive(self.name)

    def sort(self, vector: Scalar, /) -> Scalar:
        raise not_adaptive(self.name)

    def total(self, vector: Scalar, /) -> Scalar:
        """Return the sum of a vector with at most one nonzero element."""
        raise not_adaptive(self.name)

    def least(self, numbers: Scalar, /) -> Scalar:
        return numbers.min()

    def pinned(self, scalar: Scalar) -> Scalar:
        """In graphs, return min(scalar, the largest float64). Compilers do not merge operations across this minimum."""
        return scalar

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        """Store the bits of all scalars and vectors in one tensor, so that a compiled graph can return them."""
        raise not_adaptive(self.name)

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Tensor]) -> list[Scalar]:
        """A length of None means one number, not a vector."""
        raise not_adaptive(self.name)

    def copy(self, tensor: Tensor, /) -> Tensor: ...

    def is_finite(self, scalar: Scalar) -> bool | None:
        """Wait for the device. Return None in a compiled graph."""

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return (number of NaN, number of inf) as 0-d tensors."""

    def in_graph(self, values: Sequence[Any]) -> bool: ...

    def to_numpy(self, scalar: Scalar) -> Any: ...

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        return Deferred(lambda: [self.to_numpy(scalar).tolist() for scalar in scalars])

    def graph_callback(self) -> GraphCallback | None:
        return None

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        """Return a context that records derivatives only if `differentiable` is True."""
