"""What the rule computes with: a `Path` is arithmetic on one list of tensors, on the host or on their devices."""

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
        """Return `yes` where a comparison holds, else `no`."""

    def cos(self, scalar: Scalar) -> Scalar: ...

    def to_float32(self, scalar: Scalar) -> Scalar:
        """Round to float32."""


class Path(Protocol):
    """Arithmetic on one list of dense tensors: `HostPath` on their raw memory, `DevicePath` by the framework."""

    on_host: bool

    @property
    def xp(self) -> Scalars:
        """The functions of this path's scalars."""

    @property
    def framework(self) -> str: ...

    norm_dtype: str
    """Of the norm over all tensors: float64 if any is float64 or complex128, else float32."""

    def norm(self, p: float) -> Scalar:
        """Return the p-norm over all tensors, as a float64 that holds the value rounded to `norm_dtype`."""

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        """Return the 2-norm of each slice of the only tensor, reduced over `axes`, which stay with length 1.

        `groups`: see `Slices`. Each row then has the norm of its whole slice.
        """

    def scale(self, coef: Scalar) -> list[Tensor]:
        """New tensors g * coef; g itself where coef is 1."""

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        """Return the same, to be written into the tensors; no writes where coef is known to be 1."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return whether any lower bound is above its upper one; None where that is not known here."""

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        """New tensors with every element moved to the bound it exceeds. Bounds: numbers, or tensors that broadcast."""

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        """Return the same, to be written into the tensors."""

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        """Results for these tensors, or zeros where a condition does not hold."""

    def prepare_write(self, results: list[Tensor]) -> list[Write]:
        """Results for these tensors, to be written into them."""

    def prepare_zero(self, keep: Any) -> list[Write] | None:
        """Zeros where a condition does not hold, to be written after clipped values, without memory for all of them.

        None where only `zeroed` results can be written.
        """

    def unchanged(self) -> list[Tensor]:
        """Return the values as a functional name returns them when nothing is to be done."""

    def as_norm(self, n: Scalar) -> Tensor:
        """Return the norm as the caller gets it: 0-d, in `norm_dtype`."""

    def is_one(self, coef: Scalar) -> bool:
        """True where coef is known to be 1 without waiting for a device."""

    def is_finite(self, n: Scalar) -> bool | None:
        """Return whether the norm is finite; None inside a graph, where that cannot be known."""

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        """Return how many NaN and how many inf each tensor holds."""

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        """Return how many NaN and how many inf all tensors hold, without waiting for a device."""

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        """Return whether the tensors, or these scalars, have no values here, since a graph is being made."""

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Scalars for a recording, without waiting for them now. Not called where they are `in_graph`."""

    def graph_callback(self) -> GraphCallback | None:
        """For those that are; None where a graph cannot call anything."""

    def per_tensor(self) -> Path | None:
        """Return this path with one 2-norm and one coefficient per tensor: scalars are vectors.

        None if every tensor takes a path of its own.
        """

    def scope(self) -> AbstractContextManager[Any]:
        """Entered around a computation on this path."""


class CollectedPath(Path, Protocol):
    """A path over plain gradients that were collected in one pass."""

    @property
    def tensors(self) -> list[Tensor]: ...

    def part(self, group: range) -> CollectedPath:
        """Return the same over some of the tensors."""


class DevicePrimitives(Protocol):
    """The float64 primitives from which `DevicePath` computes the rule with a framework's own operations."""

    name: str

    def dtype(self, tensor: Tensor) -> str: ...

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """Return a number or a one-element tensor as a float64 scalar, on the device of the tensors given."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """Return the float64 sum of |g / divisor|**p over all elements, with finite derivatives at zero.

        For p other than 1 and 2 by logarithms: a quotient may underflow where its power does not.
        """

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        """Return the greatest |g| in float64; 0 for no elements; NaN if there is any."""

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """Sums of |g / divisor|**2 over `axes`, kept with length 1."""

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar: ...

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        """Return for each row the sum of its group. Only called for numbers of groups from `Backend.row_groups`."""
        raise TypeError(f"{self.name} has no gradients with several sparse axes")

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        """Return for each row the greatest of its group. Rows are 0 or more. Only called as `group_sum` is."""
        raise TypeError(f"{self.name} has no gradients with several sparse axes")

    def root(self, value: Scalar, p: float) -> Scalar: ...

    def times_divisor(self, scalar: Scalar, divisor: Scalar) -> Scalar:
        """Return the root of a `power_sum` times its divisor."""
        return scalar * divisor

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar: ...

    def stop_gradient(self, scalar: Scalar) -> Scalar: ...

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        """`scalar` rounded to `dtype` and held in float64 again."""

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor: ...

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        """g * coef, coef in float32 for gradients of 32 bits or fewer; g where coef is 1."""

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        """Return the same in place. All that can fail is done here, as far as that takes no memory for all products."""
        return self.prepare_write(tensors, self.scale(tensors, coef))

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """Return a bound in the tensor's dtype: a number that it holds, or a tensor to be rounded to it."""

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        """Return whether any of two bounds are not in order, NaN included; None where that is not known here."""

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        """Move what lies beyond a bound onto it; NaN and values equal to a bound stay. Bounds come from `bound`."""
        return self.where(tensor < low, low, self.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        """Return the same in place, for each tensor and its two bounds."""
        results = [self.clamp(tensor, *both) for tensor, both in zip(tensors, bounds, strict=True)]
        return self.prepare_write(tensors, results)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        """where(keep, g, 0)."""

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        """Values in the place of those of the tensors. Only called where tensors can be written."""
        raise TypeError(f"tensors of {self.name} cannot be written")

    def cos(self, scalar: Scalar) -> Scalar: ...

    def copy(self, tensor: Tensor) -> Tensor:
        """What a functional name returns for a value left alone: a copy where tensors are writable."""

    def is_finite(self, scalar: Scalar) -> bool | None:
        """Return whether a scalar is finite, at the cost of waiting for its device; None inside a graph."""

    def count_nonfinite(self, tensors: Sequence[Tensor]) -> tuple[Scalar, Scalar]:
        """How many elements are NaN, and how many infinite, of all tensors together, as scalars on the device."""

    def in_graph(self, values: Sequence[Any]) -> bool:
        """Return whether any of these tensors and scalars has no value here, since a graph is being made."""

    def to_numpy(self, scalar: Scalar) -> Any:
        """Return an eager scalar as a NumPy array."""

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        """Read scalars without waiting for them now."""
        return Deferred(lambda: [self.to_numpy(scalar).tolist() for scalar in scalars])

    def graph_callback(self) -> GraphCallback | None:
        """Return how a graph that is being made calls a function; None if it cannot."""
        return None

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        """Entered around a computation; records no derivative unless `differentiable`."""
