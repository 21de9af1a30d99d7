"""What a framework has to provide: one class that satisfies `Backend`. The core never asks which framework it runs on.

Dtypes travel as their names ("float32", "bfloat16", ...), scalars as opaque float64 values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, Self, cast

from .distributed import DistributedSpec, PartialSums, Shards
from .path import Path, WholePath
from .types import CoalescedSparse, Leaf, Tensor


class Backend(Protocol):
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

    def as_tensor(self, value: Any) -> Tensor:
        """Return a NumPy array or a variable as a tensor of the framework; a tensor as itself.

        Where in-place names write into gradients (not parameters), the tensor shares the array's memory.
        """

    def as_bound(self, value: Any) -> Tensor:
        """Return the same for a bound of value clipping, which keeps its own dtype."""
        return self.as_tensor(value)

    def dtype(self, tensor: Any) -> str: ...

    def shape(self, tensor: Any) -> tuple[int | None, ...] | None:
        """None for a length that is not known; None alone where not even the number of axes is."""

    def is_parameter(self, value: Any) -> bool:
        """Return a tensor that cannot be a gradient, since its type says that it is a parameter."""
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
        """Return the parts, by name, of a container that only this framework knows (a custom pytree node)."""
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
        """Return a gradient in a form that outlives its removal from the parameter."""
        return gradient

    def can_have_gradient(self, parameter: Any) -> bool:
        """False for a tensor that cannot have a gradient and is no frozen parameter either: probably a gradient."""
        return True

    # -- the path

    def with_spec(self, spec: DistributedSpec) -> Self:
        """Return the framework as it is to take gradients of which a caller states this."""
        return self

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
    ) -> Shards | None:
        """The gradients where several processes hold them together, or None. `parameters`: those without a gradient
        too. `differentiable`: a functional name, so a derivative may be wanted."""
        if spec.is_given:
            raise TypeError(
                "process_group, ownership and check_numel are for gradients that several processes hold, and each "
                f"tensor of {self.name} is held by one; leave them out"
            )
        return None

    def any_sharded(self, parameters: Sequence[Any]) -> bool:
        """Return whether any of them tells that other processes may have parts of it."""
        return False

    def check_total_norm(self, gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
        """ValueError where derivatives are wanted, there are no `shards`, and other processes may have more."""
        return

    def partial_sums(self, tensors: Sequence[Tensor]) -> PartialSums:
        """Sums of what is held here of `shards`, on the host. Only called where there are some."""
        return cast(PartialSums, self.path(tensors, differentiable=False))

    def unsupported(self, gradient: Any) -> str | None:
        """Return what kind of tensor this is and what to do instead, or None if it can be clipped."""
        return None

    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        """Sum the repeated rows of a sparse gradient. None for a dense one."""
        return None

    def row_groups(self, indices: Tensor, axes: Sequence[int]) -> Tensor:
        """Number the stored rows of a sparse gradient: rows with equal indices along `axes` get equal numbers.

        Only called for indices of several axes. A backend with such gradients has `DevicePrimitives.group_sum` too.
        """
        raise TypeError(f"{type(self).__name__} has no gradients with several sparse axes")

    def check_hook(self, gradient: Any) -> None:
        """Reject what `register_hook` never hands to a hook."""
        return

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, extra_inputs: Sequence[Any] = ()) -> Path:
        """Return the host path if every tensor and extra input (a bound) fulfils its conditions, else the device path.

        `differentiable`: a functional name, so a derivative may be wanted.
        """

    def each(self, tensors: Sequence[Tensor], *, differentiable: bool) -> Path | None:
        """Return a path with a norm and a coefficient for each tensor; None where every one takes a path of its own."""
        return None

    # -- the path over a whole list, found in one go; None where anything in it is not plain: then each is looked at

    def whole_of_parameters(self, parameters: Sequence[Any]) -> WholePath | None:
        """Return the gradients of parameters, to be written in place."""
        return None

    def whole_of_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> WholePath | None:
        """Tensors and None. `in_place`: to be written, where tensors can be."""
        return None

    def whole_of_pairs(self, pairs: Sequence[Any]) -> WholePath | None:
        """Return the gradients, or None, of (parameter, gradient) tuples."""
        return None

    def read(self, scalar: Tensor) -> float | int | None:
        """A one-element tensor's value; None where it is not known yet, or reading it would wait for a device."""

    def wants_derivative(self, scalar: Tensor) -> bool:
        """Return whether a derivative by an eager tensor is being recorded."""
        return False

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """For each gradient the index of the first one in the same memory, which alone is counted and written.
        ValueError for memory that overlaps otherwise or cannot be written."""

    def from_host(self, array: Any, dtype: str) -> Tensor:
        """Return a new tensor with a NumPy array's values, which nobody else has; bfloat16 as its bits."""

    def list_from_host(self, arrays: Sequence[Any], dtypes: Sequence[str]) -> list[Tensor]:
        """Return the same of several arrays."""
        return list(map(self.from_host, arrays, dtypes))

    takes_capsules: bool = False
    """Whether `from_capsules` makes tensors over memory that is handed on by DLPack, without a copy."""

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        """Only called where `takes_capsules`."""
        return []

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """Results of the host path on the devices where the framework would have computed them from their sources."""
        return results

    def threads(self) -> int | None:
        """Return how many threads the framework uses on the CPU; None where it does not say."""
        return None

    def bump_versions(self, tensors: Sequence[Any]) -> None:
        """Tell automatic differentiation that the memory of these tensors has changed."""
        return

    # -- for a recording

    def to_numpy(self, tensor: Tensor) -> Any:
        """Return a dense eager tensor's memory, or a copy of it on the host, as a NumPy array; bfloat16 as its bits."""
        return self.host_view(tensor)  # type: ignore[attr-defined]  # as every framework with a host path has it
