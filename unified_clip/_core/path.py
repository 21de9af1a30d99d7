"""The interface of paths. A path computes with one list of tensors, on the host or on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .types import Deferred, GraphCallback, Scalar, Tensor, Write


class Scalars(Protocol):
    """The functions for a path's scalars, which also have the operators `+ - * / < <= > >=`."""

    def asarray(self, value: Any) -> Scalar:
        """Convert a number, or a tensor with one element, to a scalar."""

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        """Return `yes` where a condition is true, else `no`."""

    def is_true(self, condition: Any) -> bool:
        """Return whether a condition is true everywhere, or False if that is unknown, as on a device."""

    def cos(self, scalar: Scalar) -> Scalar: ...

    def to_float32(self, scalar: Scalar) -> Scalar:
        """Return the scalar rounded to float32."""

    def sqrt(self, scalar: Scalar) -> Scalar: ...

    def floor(self, scalar: Scalar) -> Scalar: ...

    def vector(self, values: Sequence[float]) -> Scalar:
        """Convert numbers to a vector of float64."""

    def indices(self, length: int) -> Scalar:
        """Return the vector of the float64 numbers 0, 1, ... below `length`."""

    def sort(self, vector: Scalar) -> Scalar: ...

    def total(self, vector: Scalar) -> Scalar:
        """Return the sum of a vector in which only one element is not 0."""

    def least(self, numbers: Scalar) -> Scalar:
        """Return the smallest number of an array without NaN."""

    def pinned(self, scalar: Scalar) -> Scalar:
        """Return the same finite number, so that a compiler does not merge its computation with the next operation."""

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        """Return the same number or packed tensor without a derivative."""

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        """Return numbers and vectors as one tensor that a graph can return, with all bits of each float64."""

    def unpack(self, packed: Tensor, lengths: Sequence[int | None]) -> list[Scalar]:
        """Return the scalars in the result of `pack`.

        lengths: The length of each vector, or None for a number.
        """


class Change(Protocol):
    """A change of all tensors of a path, such as `changes.Scaled`."""

    def is_identity(self, path: Path) -> bool:
        """Return whether no element changes, or False if finding out would mean waiting for a device."""

    def results(self, path: Path) -> list[Tensor]:
        """Return the changed values as new tensors."""

    def writes(self, path: Path) -> list[Write]:
        """Prepare the writes that make the same change in place."""


class Path(Protocol):
    """Computes with one list of dense tensors: `HostPath` on raw memory, `DevicePath` by the framework's operations."""

    on_host: bool

    @property
    def xp(self) -> Scalars:
        """The functions of this path's scalars."""

    @property
    def framework(self) -> str: ...

    norm_dtype: str
    """The dtype of the norm: float64 if any tensor is float64 or complex128, else float32."""

    def norm(self, p: float) -> Scalar:
        """Return the p-norm over all tensors, rounded to `norm_dtype`, as float64."""

    def tensor_norms(self, p: float) -> list[float] | None:
        """Return the p-norm of each tensor, from one pass, or None if each tensor needs a separate path."""

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        """Return the 2-norm of each slice of the path's tensor. The path must have exactly one tensor.

        A slice extends along `axes`, which have the length 1 in the result.

        groups: For each row, the number of its slice. If you pass `groups`, the result has a number for each row: the
        norm of the row's slice.
        """

    def scale(self, coef: Scalar) -> list[Tensor]:
        """Return new tensors with g * coef. For a coefficient of 1, return the same as `unchanged`."""

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        """Prepare the writes of g * coef. Return no writes if coef is known to be 1."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return whether any lower bound is above its upper bound, or None if unknown, as in a graph."""

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        """Return new tensors with every element clamped to the bounds, which are numbers or tensors that broadcast."""

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        """Prepare the writes that clamp every element to the bounds."""

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        """Return `results` if the condition `keep` is true, else zeros."""

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        """Prepare the writes of a change if the condition `keep` is true, else of zeros."""

    def unchanged(self) -> list[Tensor]:
        """Return the results of a clip that changes nothing: copies of the tensors if their memory can be written."""

    def as_norm(self, n: Scalar) -> Tensor:
        """Return the norm as public functions return it: a 0-d tensor in `norm_dtype`."""

    def is_one(self, coef: Scalar) -> bool:
        """Return whether the coefficient is 1, or False if finding out would mean waiting for a device."""

    def is_finite(self, n: Scalar) -> bool | None:
        """Return whether the norm is finite, or None inside a compiled graph."""

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        """Return (number of NaN, number of inf) for each tensor."""

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        """Return (number of NaN, number of inf) over all tensors as scalars, without waiting for a device."""

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        """Return whether the path's tensors or these scalars are traced, so that their values are unknown."""

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Start to read eager scalars, and return them as `Deferred`. This does not wait for a device."""

    def graph_callback(self) -> GraphCallback | None:
        """Return the `GraphCallback` of the graph that is being traced, or None if that graph cannot call Python
        functions.
        """

    def per_tensor(self) -> Path | None:
        """Return this path with one 2-norm and one coefficient for each tensor: its scalars are vectors.

        Return None if each tensor needs a separate path.
        """

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context manager in which this path computes."""


class CollectedPath(Path, Protocol):
    """A path over plain gradients that were collected in one pass."""

    @property
    def tensors(self) -> list[Tensor]: ...

    def part(self, group: range) -> CollectedPath:
        """Return the path over the tensors with these indices."""


def not_adaptive(device: str) -> TypeError:
    """Return the error for adaptive thresholds on a device without their operations in float64."""
    return TypeError(f"adaptive thresholds are not supported on devices of {device}. Use a fixed threshold")


class DevicePrimitives(Protocol):
    """The operations in float64 that `DevicePath` needs of a framework."""

    name: str

    def dtype(self, tensor: Tensor) -> str: ...

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """Convert a number or a tensor with one element to a float64 scalar, on the device of the tensors `like`."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """Return the float64 sum of |g / divisor|**p over all elements, with finite derivatives at zero.

        For p other than 1 and 2, compute it by logarithms: a quotient may underflow although its power does not.
        """

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        """Return the largest |g| in float64: 0 without elements, NaN if an element is NaN."""

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """Return the sums of |g / divisor|**2 over `axes`, which have the length 1 in the result."""

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar: ...

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        """Return, for each row, the sum over all rows of the same group. `groups`: the result of `Sparse.row_groups`.

        Without an override, raise TypeError.
        """
        raise TypeError(f"{self.name} has no gradients with several sparse axes")

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        """Return, for each row, the maximum over all rows of the same group. All numbers in `rows` are 0 or more.

        Without an override, raise TypeError.
        """
        raise TypeError(f"{self.name} has no gradients with several sparse axes")

    def root(self, value: Scalar, p: float) -> Scalar: ...

    def times_divisor(self, scalar: Scalar, divisor: Scalar) -> Scalar:
        """Return the product of a root and the divisor of its `power_sum`."""
        return scalar * divisor

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar: ...

    def stop_gradient(self, scalar: Scalar) -> Scalar: ...

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Convert a tensor to a dtype by the framework's operation, which may round float64 to 16 bits in two steps."""

    def bitcast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return the bits of float32 numbers as int32, or the reverse, for `round_once` in `_compute/device.py`.

        Without an override, raise TypeError.
        """
        raise TypeError(f"{self.name} cannot convert between float32 numbers and their bits")

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        """Return a scalar rounded to `dtype`, as float64."""
        return self.cast(self.cast(scalar, dtype), "float64")

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return self.cast(scalar, dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        """Return g * coef, with coef in float32 for gradients of up to 32 bits, or g unchanged if coef is 1."""

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        """Prepare writes of g * coef.

        Raise errors here, not in a write. There is one exception: a write may raise an error that could only be found
        here with memory for all results.
        """
        return self.prepare_write(tensors, self.scale(tensors, coef))

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """Convert a bound to the tensor's dtype, rounded once. If `value` is a number, it is already rounded to that
        dtype.
        """

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return whether a lower bound is above its upper bound, or one is NaN. None: unknown, in a graph."""

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        """Return the elements clamped to results of `bound`. NaN, and elements equal to a bound, keep their bits."""
        return self.where(tensor < low, low, self.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        """Prepare the writes of clamped tensors. `bounds`: (low, high) for each tensor."""
        results = [self.clamp(tensor, *both) for tensor, both in zip(tensors, bounds, strict=True)]
        return self.prepare_write(tensors, results)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        """Return the tensors if the condition `keep` is true, else zeros."""

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        """Prepare the writes of values into tensors that can be written. Without an override, raise TypeError."""
        raise TypeError(f"tensors of {self.name} cannot be changed in place")

    def cos(self, scalar: Scalar) -> Scalar: ...

    def floor(self, scalar: Scalar) -> Scalar:
        raise not_adaptive(self.name)

    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        """Convert numbers to a vector of float64, on the device of the tensors `like`."""
        raise not_adaptive(self.name)

    def indices(self, length: int, like: Sequence[Tensor]) -> Scalar:
        raise not_adaptive(self.name)

    def sort(self, vector: Scalar) -> Scalar:
        raise not_adaptive(self.name)

    def total(self, vector: Scalar) -> Scalar:
        raise not_adaptive(self.name)

    def least(self, numbers: Scalar) -> Scalar:
        """Return the smallest number of an array without NaN."""
        return numbers.min()

    def pinned(self, scalar: Scalar) -> Scalar:
        """Return the same finite number, so that a compiler does not merge a product with a sum.

        In graphs, return the minimum of the scalar and the largest float64: compilers do not remove this operation.
        """
        return scalar

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        """Return numbers and vectors as one tensor that a graph can return, with all bits of each float64."""
        raise not_adaptive(self.name)

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Tensor]) -> list[Scalar]:
        """Return the scalars in the result of `pack`, on the device of the tensors `like`.

        lengths: The length of each vector, or None for a number.
        """
        raise not_adaptive(self.name)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return an unchanged gradient as a result: a copy if tensors can be written, otherwise the gradient itself."""

    def is_finite(self, scalar: Scalar) -> bool | None:
        """Return whether a scalar is finite. This waits for the device. Return None inside a compiled graph."""

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return (number of NaN, number of inf) in a tensor, as 0-d tensors on its device."""

    def in_graph(self, values: Sequence[Any]) -> bool:
        """Return whether any of these tensors and scalars is traced, so that its value is unknown."""

    def to_numpy(self, scalar: Scalar) -> Any:
        """Return an eager scalar as a NumPy array."""

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Start to read scalars, and return them as `Deferred`. This does not wait for a device."""
        return Deferred(lambda: [self.to_numpy(scalar).tolist() for scalar in scalars])

    def graph_callback(self) -> GraphCallback | None:
        """Return the `GraphCallback` of the graph that is being traced, or None if that graph cannot call Python
        functions.
        """
        return None

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        """Return the context manager of a computation. It records derivatives only if `differentiable` is True."""
