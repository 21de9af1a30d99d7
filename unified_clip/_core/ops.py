"""What a framework must be able to do (`Ops`), and what the rule computes with (`Path`).

A new framework is one class that satisfies `Ops`. The core never asks which framework it runs on.
Dtypes travel as their names ("float32", "bfloat16", ...), scalars as opaque float64 values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from .writes import Write

if TYPE_CHECKING:
    from .containers import Leaf
    from .shards import Across, Measuring, Shards

Tensor = Any
"""A dense tensor of whichever framework the Ops at hand belongs to."""

Scalar = Any
"""A float64 value, or an array of them (one per slice): NumPy's on the host path, else the framework's."""


Receive = Callable[[Sequence[Any]], None]
"""Takes the values of scalars, each a float or a nested list of them."""

GraphTeller = Callable[[Sequence[Scalar], Receive], Callable[[], object]]
"""Has the graph that is being made call a function with the values of scalars whenever it is run. It returns what waits
until all that was run has done so."""


class Later(NamedTuple):
    """Numbers that are on their way to the host."""

    values: Callable[[], list[Any]]
    """Each a float, or a nested list of them; waits until they are there."""

    ready: Callable[[], bool] = lambda: True
    """Whether `values` need not wait."""


class Path(Protocol):
    """Arithmetic on one list of dense tensors: `HostPath` on their raw memory, `DevicePath` by the framework."""

    on_host: bool

    @property
    def framework(self) -> str: ...

    @property
    def norm_dtype(self) -> str:
        """Of the norm over all tensors: float64 where any is that or complex128, else float32."""

    def norm(self, p: float) -> Scalar:
        """The p-norm over all tensors, as a float64 that holds the value rounded to `norm_dtype`."""

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        """The 2-norm of each slice of the only tensor, reduced over `axes`, which stay with length 1.

        `groups`: see `Slices`. Each row then has the norm of its whole slice.
        """

    def constant(self, value: Any) -> Scalar:
        """A number or a one-element tensor as a float64 scalar."""

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar: ...

    def scale(self, coef: Scalar) -> list[Tensor]:
        """New tensors g * coef; g itself where coef is 1."""

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        """The same, to be written into the tensors; no writes where coef is known to be 1."""

    def crossed(self, low: Any, high: Any) -> bool | None:
        """Whether any lower bound is above its upper one; None where that is not known here."""

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        """New tensors with every element moved to the bound it exceeds. Bounds: numbers, or tensors that broadcast."""

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        """The same, to be written into the tensors."""

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        """Results for these tensors, or zeros where a condition does not hold."""

    def prepare_write(self, results: list[Tensor]) -> list[Write]:
        """Results for these tensors, to be written into them."""

    def prepare_zero(self, keep: Any) -> list[Write] | None:
        """Zeros where a condition does not hold, to be written after clipped values, without memory for all of them.

        None where only `zeroed` results can be written.
        """

    def cosine(self, scalar: Scalar) -> Scalar: ...

    def single(self, scalar: Scalar) -> Scalar:
        """A scalar rounded to float32."""

    def unchanged(self) -> list[Tensor]:
        """The values as a functional name returns them when nothing is to be done."""

    def as_norm(self, n: Scalar) -> Tensor:
        """The norm as the caller gets it: 0-d, in `norm_dtype`."""

    def is_one(self, coef: Scalar) -> bool:
        """True where coef is known to be 1 without waiting for a device."""

    def is_finite(self, n: Scalar) -> bool | None:
        """Whether the norm is finite; None inside a graph, where that cannot be known."""

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        """How many NaN and how many inf each tensor holds."""

    def nonfinite_elsewhere(self) -> list[tuple[str, int, int]]:
        """The same of other processes that hold parts of the gradients: which one, and how many."""

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        """How many NaN and how many inf all tensors hold, without waiting for a device."""

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        """Whether the tensors, or these scalars, have no values here, since a graph is being made."""

    def read_later(self, scalars: Sequence[Scalar]) -> Later:
        """Scalars for a recording, without waiting for them now. Not called where they are `in_graph`."""

    def graph_teller(self) -> GraphTeller | None:
        """For those that are; None where a graph cannot call anything."""

    def scope(self) -> AbstractContextManager[Any]:
        """Entered around a computation on this path."""


class WholePath(Path, Protocol):
    """A path that knows its tensors: plain gradients, found in one go, to be clipped together."""

    @property
    def tensors(self) -> list[Tensor]: ...

    def each(self) -> Path:
        """The same with a norm and a coefficient for each tensor."""

    def part(self, group: range) -> WholePath:
        """The same over some of the tensors."""


class MergedSparse(NamedTuple):
    """A sparse gradient with repeated rows summed."""

    values: Tensor
    """The stored rows, along the first axis."""

    restore: Callable[[Tensor], Any]
    """Make a sparse gradient from new values."""

    sparse_axes: int
    """How many axes of the gradient the indices replace. They come first."""

    indices: Tensor
    """The place of each stored row, in the framework's own layout."""


class Slices(NamedTuple):
    """The slices of a gradient's values."""

    axes: Sequence[int]

    groups: Tensor | None = None
    """For each row of the values, the number of its slice: rows with equal numbers belong together. None: by axes."""


class Ops(Protocol):
    """One framework. A new one subclasses this; methods with a body have a default that most can keep."""

    name: str
    """The namespace: "torch" for unified_clip.torch."""

    writable: bool
    """Whether tensors can be written in place; if not, in-place names update the container."""

    donates: bool = False
    """Whether a caller may donate a tensor's memory to a computation, which deletes every tensor that shares it. Then
    functional names return copies of unchanged gradients, also where tensors cannot be written."""

    gradients_on_parameters: bool = False
    """Whether in-place names take parameters, which carry their gradient in `.grad`."""

    has_variables: bool = False
    """Whether parameters are a type of their own (tf.Variable), told from gradients by `is_variable`."""

    # -- recognising what was passed

    def is_tensor(self, value: Any) -> bool:
        """Dense or sparse tensors of the framework, its variables, and NumPy arrays."""

    def adopt(self, value: Any) -> Tensor:
        """A NumPy array or a variable as a tensor of the framework; a tensor as itself.

        Where in-place names write into gradients (not parameters), the tensor shares the array's memory.
        """

    def adopt_bound(self, value: Any) -> Tensor:
        """The same for a bound of value clipping, which keeps its own dtype."""
        return self.adopt(value)

    def dtype(self, tensor: Any) -> str: ...

    def shape(self, tensor: Any) -> tuple[int | None, ...] | None:
        """None for a length that is not known; None alone where not even the number of axes is."""

    def is_parameter(self, value: Any) -> bool:
        """A tensor that cannot be a gradient, since its type says that it is a parameter."""
        return self.is_variable(value)

    def parameter_name(self, parameter: Any) -> str | None:
        return None

    def is_variable(self, value: Any) -> bool:
        return False

    def is_trainable(self, variable: Any) -> bool:
        return True

    def assign(self, variable: Any, value: Tensor) -> None:
        """Only called for what `is_variable`."""
        return

    def children(self, node: Any) -> dict[str, Any] | None:
        """The parts, by name, of a container that only this framework knows (a custom pytree node)."""
        return None

    def with_children(self, node: Any, children: list[Any]) -> Any:
        """Only called for what has `children`."""
        return None

    def name_scope(self, name: str) -> AbstractContextManager[Any]:
        """Entered where operations that a graph names are made."""
        return nullcontext()

    # -- gradients on parameters: only called where `gradients_on_parameters`

    def identity(self, parameter: Any) -> Hashable:
        """What tells one parameter from others."""
        return id(parameter)

    def gradient_of(self, parameter: Any) -> Any | None:
        return None

    def main_gradient_of(self, parameter: Any) -> Any | None:
        """`main_grad` of a trainable parameter, into which some wrappers accumulate gradients; None without one."""
        return None

    main_gradient_remedy: str = ""
    """What to type where a parameter has a gradient in `main_grad` only."""

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        return None

    def held(self, gradient: Any) -> Any:
        """A gradient in a form that outlives its removal from the parameter."""
        return gradient

    def can_have_gradient(self, parameter: Any) -> bool:
        """False for a tensor that cannot have a gradient and is no frozen parameter either: probably a gradient."""
        return True

    # -- the path

    def stated(self, across: Across) -> Self:
        """The framework as it is to take gradients of which a caller states this."""
        return self

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across, *, differentiable: bool
    ) -> Shards | None:
        """The gradients where several processes hold them together, or None. `parameters`: those without a gradient
        too. `differentiable`: a functional name, so a derivative may be wanted."""
        if across.is_stated:
            raise TypeError(
                "process_group, ownership and check_numel are for gradients that several processes hold, and each "
                f"tensor of {self.name} is held by one; leave them out"
            )
        return None

    def tell_shards(self, parameters: Sequence[Any]) -> bool:
        """Whether any of them tells that other processes may have parts of it."""
        return False

    def check_one_norm(self, gradients: Sequence[Leaf], across: Across) -> None:
        """ValueError where derivatives are wanted, there are no `shards`, and other processes may have more."""
        return

    def measuring(self, tensors: Sequence[Tensor]) -> Measuring:
        """Sums of what is held here of `shards`, on the host. Only called where there are some."""
        return cast("Measuring", self.path(tensors, differentiable=False))

    def unsupported(self, gradient: Any) -> str | None:
        """Return what kind of tensor this is and what to do instead, or None if it can be clipped."""
        return None

    def merge_sparse(self, gradient: Any, *, differentiable: bool) -> MergedSparse | None:
        """Sum the repeated rows of a sparse gradient. None for a dense one."""
        return None

    def row_groups(self, indices: Tensor, axes: Sequence[int]) -> Tensor:
        """Number the stored rows of a sparse gradient: rows with equal indices along `axes` get equal numbers.

        Only called for indices of several axes. An adapter with such gradients has `group_sum` and `group_max` too.
        """
        raise TypeError(f"{type(self).__name__} has no gradients with several sparse axes")

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        """As `DeviceOps` has it."""
        raise TypeError(f"{type(self).__name__} has no gradients with several sparse axes")

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        """As `DeviceOps` has it."""
        raise TypeError(f"{type(self).__name__} has no gradients with several sparse axes")

    def check_hook(self, gradient: Any) -> None:
        """Refuse what `register_hook` never hands to a hook."""
        return

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, others: Sequence[Any] = ()) -> Path:
        """The host path where the conditions for it hold for every tensor, `others` (bounds) included; else the device
        path. `differentiable`: a functional name, so a derivative may be wanted."""

    def each(self, tensors: Sequence[Tensor], *, differentiable: bool) -> Path | None:
        """A path with a norm and a coefficient for each tensor; None where every one takes a path of its own."""
        return None

    # -- the path over a whole list, found in one go; None where anything in it is not plain: then each is looked at

    def whole_of_parameters(self, parameters: Sequence[Any]) -> WholePath | None:
        """The gradients of parameters, to be written in place."""
        return None

    def whole_of_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> WholePath | None:
        """Tensors and None. `in_place`: to be written, where tensors can be."""
        return None

    def whole_of_pairs(self, pairs: Sequence[Any]) -> WholePath | None:
        """The gradients, or None, of (parameter, gradient) tuples."""
        return None

    def read(self, scalar: Tensor) -> float | int | None:
        """A one-element tensor's value; None where it is not known yet, or reading it would wait for a device."""

    def wants_derivative(self, scalar: Tensor) -> bool:
        """Whether a derivative by an eager tensor is being recorded."""
        return False

    def distinct(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """For each gradient the index of the first one in the same memory, which alone is counted and written.
        ValueError for memory that overlaps otherwise or cannot be written."""

    takes_capsules: bool = False
    """Whether `from_capsules` makes tensors over memory that is handed on by DLPack, without a copy."""

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        """Only called where `takes_capsules`."""
        return []

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """Results of the host path on the devices where the framework would have computed them from their sources."""
        return results

    def threads(self) -> int | None:
        """How many threads the framework uses on the CPU; None where it does not say."""
        return None

    def wrote(self, tensors: Sequence[Any]) -> None:
        """Tell automatic differentiation that the memory of these tensors has changed."""
        return

    # -- for a recording

    def fetched(self, tensor: Tensor) -> Any:
        """A dense eager tensor's memory, or a copy of it on the host, as a NumPy array; bfloat16 as its bits."""
        return self.host_view(tensor)  # type: ignore[attr-defined]  # as every framework with a host path has it

    def read_later(self, scalars: Sequence[Scalar]) -> Later:
        """As `Path` has it, of the device path's scalars."""
        return Later(lambda: [self.fetched(scalar).tolist() for scalar in scalars])

    def graph_teller(self) -> GraphTeller | None:
        """As `Path` has it."""
        return None


class DeviceOps(Protocol):
    """The float64 primitives from which `DevicePath` computes the rule with a framework's own operations."""

    name: str

    def dtype(self, tensor: Tensor) -> str: ...

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """A number or a one-element tensor as a float64 scalar, on the device of the tensors given."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """The float64 sum of |g / divisor|**p over all elements, with finite derivatives at zero.

        For p other than 1 and 2 by logarithms: a quotient may underflow where its power does not.
        """

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        """The greatest |g| in float64; 0 for no elements; NaN if there is any."""

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """Sums of |g / divisor|**2 over `axes`, kept with length 1."""

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar: ...

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        """For each row, the sum of all rows of its group. Only called with `row_groups`."""

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        """For each row, the greatest of its group; rows are 0 or more. Only called with `row_groups`."""

    def root(self, value: Scalar, p: float) -> Scalar: ...

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar: ...

    def stop_gradient(self, scalar: Scalar) -> Scalar: ...

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        """`scalar` rounded to `dtype` and held in float64 again."""

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor: ...

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        """g * coef, coef in float32 for gradients of 32 bits or fewer; g where coef is 1."""

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        """The same in place. All that can fail is done here, as far as that takes no memory for all products."""

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """A bound in the tensor's dtype: a number that it holds, or a tensor to be rounded to it."""

    def crossed(self, low: Any, high: Any) -> bool | None:
        """Whether any of two bounds are not in order, NaN included; None where that is not known here."""

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        """where(g < low, low, where(g > high, high, g)), with bounds from `bound`."""

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        """The same in place, for each tensor and its two bounds."""

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        """where(keep, g, 0)."""

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        """Values in the place of those of the tensors."""

    def cosine(self, scalar: Scalar) -> Scalar: ...

    def copy(self, tensor: Tensor) -> Tensor:
        """What a functional name returns for a value left alone: a copy where tensors are writable."""

    def is_finite(self, scalar: Scalar) -> bool | None:
        """Whether a scalar is finite, at the cost of waiting for its device; None inside a graph."""

    def nonfinite_counts(self, tensor: Tensor) -> tuple[int, int]: ...

    def count_nonfinite(self, tensors: Sequence[Tensor]) -> tuple[Scalar, Scalar]:
        """How many elements are NaN, and how many infinite, of all tensors together, as scalars on the device."""

    def in_graph(self, values: Sequence[Any]) -> bool:
        """Whether any of these tensors and scalars has no value here, since a graph is being made."""

    def read_later(self, scalars: Sequence[Scalar]) -> Later: ...

    def graph_teller(self) -> GraphTeller | None: ...

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        """Entered around a computation; records no derivative unless `differentiable`."""
