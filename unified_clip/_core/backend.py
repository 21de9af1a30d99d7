"""The interface of a framework: `Backend`, and one base class per capability.

The core does not depend on a framework. Dtypes are names ("float32", "bfloat16", ...).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

from .distributed import DistributedSpec, PartialSums, Shards
from .path import CollectedPath, Path
from .types import CoalescedSparse, Leaf, Tensor


class Backend(Protocol):
    """One framework. Methods without a body are required; the others have a default.

    A backend with a capability inherits its class below.
    """

    name: str
    """The namespace: "torch" for unified_clip.torch."""

    writable: bool
    """True if tensors can be written in place. If not, in-place names update the container."""

    donates: bool = False
    """True if a caller may donate a tensor's memory, which deletes every tensor that shares it. Functional names then
    return copies of unchanged gradients."""

    takes_capsules: bool = False
    """True if `from_capsules` returns tensors over DLPack's memory, without a copy."""

    def kernels_in_graphs(self) -> bool:
        """Return whether compiled graphs on a CPU call the compiled kernels."""
        return False

    # -- tensors

    def is_tensor(self, value: Any) -> bool:
        """Return whether this is a dense or sparse tensor, a variable, or a NumPy array."""

    def as_tensor(self, value: Any) -> Tensor:
        """Return a NumPy array or a variable as a tensor of the framework; a tensor as itself.

        Where in-place names write into gradients (not parameters), the tensor shares the array's memory.
        """

    def as_bound(self, value: Any) -> Tensor:
        """Return a bound of value clipping as a tensor with its own dtype."""
        return self.as_tensor(value)

    def dtype(self, tensor: Any) -> str: ...

    def shape(self, tensor: Any) -> tuple[int | None, ...] | None:
        """Return the lengths, with None for an unknown length; None for an unknown rank."""

    def is_parameter(self, value: Any) -> bool:
        """Return whether a tensor's type is that of a parameter, so it cannot be a gradient."""
        return False

    def parameter_name(self, parameter: Any) -> str | None:
        return None

    def unsupported(self, gradient: Any) -> str | None:
        """Return the end of an error message: the kind of tensor, and the remedy. None if it can be clipped."""
        return None

    def check_hook(self, gradient: Any) -> None:
        """Reject a tensor that `register_hook` never passes to a hook."""
        return

    def name_scope(self, name: str) -> AbstractContextManager[Any]:
        """Return a scope for the names of a graph's operations."""
        return nullcontext()

    # -- paths

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, extra_inputs: Sequence[Any] = ()) -> Path:
        """Return the host path if every tensor and extra input (a bound) supports it, else the device path.

        `differentiable`: a functional name, so a derivative may be recorded.
        """

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        """Return a path over a list of tensors and None, in one pass; None unless all are plain.

        `in_place`: the call writes the tensors if they can be written.
        """
        return None

    def read(self, scalar: Tensor) -> float | int | None:
        """Return a one-element tensor's value; None in a graph, or if reading it waits for a device."""

    def wants_derivative(self, scalar: Tensor) -> bool:
        """Return whether a derivative by an eager tensor is being recorded."""
        return False

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """Return, for each gradient, the index of the first one in the same memory. Only that one is clipped.

        Raise ValueError for partial overlap, and for memory that cannot be written.
        """

    # -- memory, for the host path

    def host_view(self, tensor: Tensor) -> Any:
        """Return the tensor's memory as a NumPy array; bfloat16 as uint16. Only called on the host path."""

    def from_host(self, array: Any, dtype: str) -> Tensor:
        """Return a new tensor with the values of a NumPy array, which it may keep; bfloat16 as uint16."""

    def list_from_host(self, arrays: list[Any], dtypes: Sequence[str]) -> list[Tensor]:
        """Return `from_host` of several arrays. It may remove them from the list to free their memory early."""
        return list(map(self.from_host, arrays, dtypes))

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        """Return a norm as a 0-d tensor."""

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        """Return tensors over the memory of DLPack capsules. Only called if `takes_capsules`."""
        return []

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """Put results of the host path on the devices of the framework's own results."""
        return results

    def threads(self) -> int | None:
        """Return the framework's number of CPU threads; None if it has no such setting."""
        return None

    def bump_versions(self, tensors: Sequence[Any]) -> None:
        """Report to automatic differentiation that the memory of these tensors has changed."""
        return

    def to_numpy(self, tensor: Tensor) -> Any:
        """Return a dense eager tensor as a NumPy array, copied from its device if necessary; bfloat16 as uint16."""
        return self.host_view(tensor)

    # -- capabilities

    @property
    def parameters(self) -> Parameters | None:
        return self if isinstance(self, Parameters) else None

    @property
    def variables(self) -> Variables | None:
        return self if isinstance(self, Variables) else None

    @property
    def pytree(self) -> Pytree | None:
        return self if isinstance(self, Pytree) else None

    @property
    def sparse(self) -> Sparse | None:
        return self if isinstance(self, Sparse) else None

    @property
    def distributed(self) -> Distributed | None:
        return self if isinstance(self, Distributed) else None


class Parameters(ABC):
    """In-place names take parameters, which carry their gradient in `.grad`."""

    main_gradient_remedy: str
    """The remedy if a parameter has a gradient in `main_grad` only."""

    @abstractmethod
    def gradient_of(self, parameter: Any) -> Any | None: ...

    @abstractmethod
    def main_gradient_of(self, parameter: Any) -> Any | None:
        """Return `main_grad` of a trainable parameter, where some wrappers accumulate gradients; else None."""

    @abstractmethod
    def set_gradient(self, parameter: Any, gradient: Any) -> None: ...

    @abstractmethod
    def can_have_gradient(self, parameter: Any) -> bool:
        """Return False for a tensor that cannot have a gradient and is not a frozen parameter: probably a gradient."""

    @abstractmethod
    def collect_parameters(self, parameters: Sequence[Any]) -> CollectedPath | None:
        """Return a path that writes the gradients of parameters, in one pass; None unless all are plain."""

    @abstractmethod
    def collect_param_grads(self, param_grads: Sequence[Any]) -> CollectedPath | None:
        """Return a path over (parameter, gradient) tuples. A gradient may be None."""

    @abstractmethod
    def any_sharded(self, parameters: Sequence[Any]) -> bool:
        """Return whether the type of any parameter allows shards on other ranks."""

    def identity(self, parameter: Any) -> Hashable:
        """Return a key that differs from that of every other parameter."""
        return id(parameter)

    def retained(self, gradient: Any) -> Any:
        """Return a gradient that stays valid after its removal from the parameter."""
        return gradient


class Variables(ABC):
    """Parameters are a type of their own, such as `tf.Variable`."""

    @abstractmethod
    def is_variable(self, value: Any) -> bool: ...

    @abstractmethod
    def is_trainable(self, variable: Any) -> bool: ...

    @abstractmethod
    def assign(self, variable: Any, value: Tensor) -> None: ...


class Pytree(ABC):
    """Containers of the framework's own, such as custom pytree nodes."""

    @abstractmethod
    def children(self, node: Any) -> dict[str, Any] | None:
        """Return the children of a container by name; None for a leaf or a Python container."""

    @abstractmethod
    def with_children(self, node: Any, children: list[Any]) -> Any:
        """Return a container like `node` with other children."""


class Sparse(ABC):
    """Sparse gradients."""

    @abstractmethod
    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        """Sum the repeated rows of a sparse gradient; return None for a dense one."""

    @abstractmethod
    def row_groups(self, indices: Tensor, axes: Sequence[int]) -> Tensor:
        """Number the stored rows: rows with equal indices along `axes` get equal numbers.

        Only called for indices of several axes. Such a backend has `DevicePrimitives.group_sum` too.
        """


class Distributed(ABC):
    """Gradients with shards or copies on several ranks."""

    @abstractmethod
    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
    ) -> Shards | None:
        """Return the shards of distributed gradients, else None.

        `parameters`: with or without a gradient. `differentiable`: a functional name, so a derivative may be recorded.
        """

    @abstractmethod
    def has_ranks(self) -> bool:
        """Return whether this process may have other ranks, and is not traced by a compiler."""

    def with_spec(self, spec: DistributedSpec) -> Backend:
        """Return the backend for a caller's declaration."""
        return cast(Backend, self)

    def check_total_norm(self, gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
        """Raise ValueError for a differentiable total norm if other ranks may have more gradients."""
        return

    def partial_sums(self, tensors: Sequence[Tensor]) -> PartialSums:
        """Return sums over the local tensors of `shards`, on the host."""
        return cast(PartialSums, cast(Backend, self).path(tensors, differentiable=False))
