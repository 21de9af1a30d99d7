"""Paths: arithmetic on one list of tensors, on the host or on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .types import Deferred, GraphCallback, Scalar, Tensor, Write


class Scalars(Protocol):
    """The functions of scalars. Their operators are `+`, `-`, `*`, `/`, `<`, `<=`, `>` and `>=`."""

    def asarray(self, value: Any) -> Scalar:
        """Return a number or a one-element tensor as a scalar."""

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        """Return `yes` where a condition is true, else `no`."""

    def cos(self, scalar: Scalar) -> Scalar: ...

    def to_float32(self, scalar: Scalar) -> Scalar:
        """Round to float32."""


class Change(Protocol):
    """A change of all tensors of a path."""

    def is_identity(self, path: Path) -> bool:
        """Return whether no value changes; False if that is unknown without waiting for a device."""

    def results(self, path: Path) -> list[Tensor]:
        """Return new tensors."""

    def writes(self, path: Path) -> list[Write]:
        """Prepare the same changes in place."""


class Path(Protocol):
    """Arithmetic on one list of dense tensors: `HostPath` on their raw memory, `DevicePath` by the framework."""

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
        """Return the p-norm of each tensor, from one pass over all; None if each tensor needs a path of its own."""

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        """Return the 2-norm of each slice of the only tensor, reduced over `axes`, kept with length 1.

        `groups`: see `Slices`. Each row then has the norm of its group's slice.
        """

    def scale(self, coef: Scalar) -> list[Tensor]:
        """Return new tensors g * coef, and g itself where coef is 1."""

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        """Prepare the writes of g * coef. Return no writes if coef is known to be 1."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return whether any lower bound is above its upper bound; None if unknown, as in a graph."""

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        """Return new tensors with every element clamped to bounds: numbers, or tensors that broadcast."""

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        """Prepare the writes of clamped elements."""

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        """Return the results, or zeros where `keep` is false."""

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        """Prepare the writes of a change, with zeros where `keep` is false."""

    def unchanged(self) -> list[Tensor]:
        """Return the values as a functional name returns unchanged gradients."""

    def as_norm(self, n: Scalar) -> Tensor:
        """Return the norm for the caller: 0-d, in `norm_dtype`."""

    def is_one(self, coef: Scalar) -> bool:
        """Return whether coef is 1; False if that is unknown without waiting for a device."""

    def is_finite(self, n: Scalar) -> bool | None:
        """Return whether the norm is finite; None in a graph."""

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        """Return the numbers of NaN and inf in each tensor."""

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        """Return the numbers of NaN and inf in all tensors, without waiting for a device."""

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        """Return whether the tensors or these scalars are traced, so that they have no values yet."""

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Read eager scalars without waiting for them now."""

    def graph_callback(self) -> GraphCallback | None:
        """Return how the graph that is being traced calls a function; None if it cannot."""

    def per_tensor(self) -> Path | None:
        """Return this path with one 2-norm and one coefficient per tensor: scalars are vectors.

        None if every tensor needs a path of its own.
        """

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context of a computation on this path."""


class CollectedPath(Path, Protocol):
    """A path over plain gradients that were collected in one pass."""

    @property
    def tensors(self) -> list[Tensor]: ...

    def part(self, group: range) -> CollectedPath:
        """Return the path over some of the tensors."""


class DevicePrimitives(Protocol):
    """The float64 primitives of `DevicePath`, by a framework's own operations."""

    name: str

    def dtype(self, tensor: Tensor) -> str: ...

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """Return a number or a one-element tensor as a float64 scalar, on the device of the tensors."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """Return the float64 sum of |g / divisor|**p over all elements, with finite derivatives at zero.

        Compute p other than 1 and 2 by logarithms: a quotient may underflow where its power does not.
        """

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        """Return the largest |g| in float64: 0 for no elements, NaN if there is a NaN."""

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """Return the sums of |g / divisor|**2 over `axes`, kept with length 1."""

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar: ...

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        """Return the sum of its group for each row. `groups`: from `Backend.row_groups`."""
        raise TypeError(f"{self.name} has no gradients with several sparse axes")

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        """Return the maximum of its group for each row. Rows are 0 or more."""
        raise TypeError(f"{self.name} has no gradients with several sparse axes")

    def root(self, value: Scalar, p: float) -> Scalar: ...

    def times_divisor(self, scalar: Scalar, divisor: Scalar) -> Scalar:
        """Return the root of a `power_sum` times its divisor."""
        return scalar * divisor

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar: ...

    def stop_gradient(self, scalar: Scalar) -> Scalar: ...

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Convert to a dtype by the framework's operation, which may round float64 twice on the way to 16 bits."""

    def bitcast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return the bits of float32 numbers as int32, or the reverse: for `round_once` of `_compute/device.py`."""
        raise TypeError(f"{self.name} does not round bounds by their bits")

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        """Return a scalar rounded to `dtype`, as float64."""
        return self.cast(self.cast(scalar, dtype), "float64")

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return self.cast(scalar, dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        """Return g * coef, with coef in float32 for gradients of up to 32 bits, and g where coef is 1."""

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        """Prepare the writes of g * coef. Raise errors here, unless that needs memory for all products."""
        return self.prepare_write(tensors, self.scale(tensors, coef))

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """Return a bound in the tensor's dtype, rounded once. A number has that dtype's precision already."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return whether any bounds are not in order, NaN included; None if unknown, as in a graph."""

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        """Clamp elements to bounds from `bound`. NaN, and values equal to a bound, keep their bits."""
        return self.where(tensor < low, low, self.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        """Prepare the writes of clamped tensors. `bounds`: two for each tensor."""
        results = [self.clamp(tensor, *both) for tensor, both in zip(tensors, bounds, strict=True)]
        return self.prepare_write(tensors, results)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        """Return where(keep, g, 0)."""

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        """Prepare the writes of values into tensors that can be written."""
        raise TypeError(f"tensors of {self.name} cannot be written")

    def cos(self, scalar: Scalar) -> Scalar: ...

    def copy(self, tensor: Tensor) -> Tensor:
        """Return an unchanged value for a functional name: a copy if tensors can be written."""

    def is_finite(self, scalar: Scalar) -> bool | None:
        """Wait for a scalar's device, and return whether it is finite; None in a graph."""

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of NaN and inf in a tensor, as 0-d tensors on its device."""

    def in_graph(self, values: Sequence[Any]) -> bool:
        """Return whether any of these tensors and scalars is traced, so that it has no value yet."""

    def to_numpy(self, scalar: Scalar) -> Any:
        """Return an eager scalar as a NumPy array."""

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Read scalars without waiting for them now."""
        return Deferred(lambda: [self.to_numpy(scalar).tolist() for scalar in scalars])

    def graph_callback(self) -> GraphCallback | None:
        """Return how the graph that is being traced calls a function; None if it cannot."""
        return None

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        """Return the context of a computation. It records derivatives only if `differentiable`."""
