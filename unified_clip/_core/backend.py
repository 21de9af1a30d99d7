"""The interface between unified_clip and a framework: `Backend`, and one base class for each optional capability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

from .distributed import DistributedSpec, PartialSums, Shards
from .path import CollectedPath, Path
from .types import CoalescedSparse, Leaf, Tensor


class Inputs(NamedTuple):
    """What the choice of a path depends on."""

    tensors: Sequence[Tensor]
    extra: Sequence[Any]
    """Other tensors of the computation, such as a threshold."""

    differentiable: bool
    """Whether the caller may want derivatives of the results. In-place functions have none."""

    def all(self) -> list[Any]:
        return [*self.tensors, *self.extra]


class Route(NamedTuple):
    """One way to compute. A backend tries its routes in order."""

    name: str
    fits: Callable[[Any, Inputs], bool]
    make: Callable[[Any, Inputs], Path]
    """Both functions get the backend and the inputs."""


def always(backend: Backend, inputs: Inputs) -> bool:
    return True


def first_route(backend: Backend, inputs: Inputs, routes: Sequence[Route]) -> Route:
    for route in routes:
        if route.fits(backend, inputs):
            return route
    raise AssertionError(f"bug in unified_clip: no route of {backend.name} fits")


class Backend(Protocol):
    """A backend must define the methods and attributes that have no default here."""

    name: str
    """The name of the namespace, such as "torch" for `unified_clip.torch`."""

    writable: bool
    donates: bool = False
    """In JAX, compiled functions can reuse the memory of their arguments (`donate_argnums`).

    JAX then deletes all tensors in this memory. So functions that return new tensors must copy unchanged gradients.
    """

    takes_capsules: bool = False

    def kernels_in_graphs(self) -> bool:
        return False

    # -- tensors

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is a dense or sparse tensor, a variable, or a NumPy array."""

    def as_tensor(self, value: Any) -> Tensor:
        """Convert a NumPy array or a variable to a tensor. Return a tensor unchanged.

        If in-place functions of this framework write into NumPy arrays, the result must share the array's memory.
        """

    def as_bound(self, value: Any) -> Tensor:
        """Keep the dtype."""
        return self.as_tensor(value)

    def dtype(self, tensor: Any) -> str:
        return str(getattr(tensor.dtype, "name", tensor.dtype))  # Keras's dtypes are strings

    def shape(self, tensor: Any) -> tuple[int | None, ...] | None:
        """An unknown length is None. For an unknown number of axes, return None."""
        return tuple(tensor.shape)

    def detached(self, parameter: Any) -> Tensor:
        """The result has no derivative."""
        return self.as_tensor(parameter)

    def is_parameter(self, value: Any) -> bool:
        return False

    def parameter_name(self, parameter: Any) -> str | None:
        return None

    def unsupported(self, gradient: Any) -> str | None:
        """Return the reason and the remedy for a gradient that cannot be clipped. It can be a value of any type."""
        return None

    def check_hook(self, gradient: Any) -> None:
        """Raise TypeError if a hook cannot get this gradient, for example because it is a value of a static program."""
        return

    def name_scope(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    # -- paths

    routes: Sequence[Route]
    """The host path, and then routes for all other inputs."""

    def fits_host(self, inputs: Inputs) -> bool:
        """Return whether the host path may read all inputs from raw memory."""
        return self.takes_host(inputs.all(), differentiable=inputs.differentiable)

    def takes_host(self, tensors: Sequence[Tensor], *, differentiable: bool = False) -> bool:
        return True

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, extra_inputs: Sequence[Any] = ()) -> Path:
        inputs = Inputs(tensors, extra_inputs, differentiable)
        return first_route(self, inputs, self.routes).make(self, inputs)

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        """Return None if a tensor needs more checks than this method makes, such as a sparse one. Items can be None."""
        return None

    def plain_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> Any | None:
        """Return a compiled list of the tensors that are not None, or None if a tensor needs more checks.

        One call of this list clips the tensors.
        """
        return None

    def plain_gradients(self, container: Any) -> Any | None:
        """Return a compiled list of the gradients that an in-place function gets, as `plain_tensors` does."""
        is_list = self.writable and type(container) is list
        return self.plain_tensors(container, differentiable=False, in_place=True) if is_list else None

    def from_state(self, values: Any, like: Tensor | None = None) -> Tensor:
        """Pack float64 numbers into one tensor, as `DevicePrimitives.pack` does for scalars."""
        return self.as_tensor(values)

    def has_values(self, vector: Tensor) -> bool:
        """Return whether numbers can be read without waiting for a device. Return False in a compiled graph."""
        return self.read(vector[0]) is not None

    def read(self, scalar: Tensor) -> float | int | None:
        """Return the number, or None in a graph or while the device is computing."""

    def wants_derivative(self, scalar: Tensor) -> bool:
        return False

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """For each gradient, return the index of the first gradient in the same memory.

        Raise ValueError if two gradients overlap in part, or if the memory cannot be written. `describe` returns the
        name of a gradient for error messages.
        """

    # -- memory, for the host path

    def host_view(self, tensor: Tensor) -> Any:
        """Return an array with the tensor's numbers. bfloat16 becomes uint16."""

    def from_host(self, array: Any, dtype: str) -> Tensor:
        """The returned tensor can share the array's memory. An array of uint16 has the bits of bfloat16 numbers."""

    def list_from_host(self, arrays: list[Any], dtypes: Sequence[str]) -> list[Tensor]:
        """The method can remove arrays from the list to free memory early."""
        return list(map(self.from_host, arrays, dtypes))

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        """Return a 0-d tensor."""

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        return []

    def products(self, tensors: Sequence[Tensor], coefs: Sequence[float]) -> list[Tensor] | None:
        """`coefs` has one number, or one number for each tensor. Return None to let the host path multiply."""
        return None

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """Move results of the host path to the devices that the framework would use."""
        return results

    def threads(self) -> int | None:
        return None

    def bump_versions(self, tensors: Sequence[Any]) -> None:
        """Report to automatic differentiation that the memory of these tensors has changed."""
        return

    def to_numpy(self, tensor: Tensor) -> Any:
        """bfloat16 becomes uint16."""
        return self.host_view(tensor)

    def elements(self, tensor: Tensor, positions: Any) -> Tensor:
        """Return the elements at these positions of the flattened tensor. `positions` is an array of integers."""
        return self.detached(tensor).reshape((-1,))[positions]

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
    """The methods of backends whose framework stores gradients in `.grad`. In-place functions take parameters."""

    main_gradient_remedy: str
    """A sentence for the error if a parameter has a gradient only in `main_grad`."""

    @abstractmethod
    def gradient_of(self, parameter: Any) -> Any | None: ...

    @abstractmethod
    def main_gradient_of(self, parameter: Any) -> Any | None:
        """Return None for a frozen parameter."""

    @abstractmethod
    def set_gradient(self, parameter: Any, gradient: Any) -> None: ...

    @abstractmethod
    def can_have_gradient(self, parameter: Any) -> bool:
        """Return whether a value is a parameter, trainable or frozen."""

    @abstractmethod
    def records_derivative(self, value: Any) -> bool:
        """Return whether a value is a parameter that is trained, or computed from one."""

    @abstractmethod
    def collect_parameters(self, parameters: Sequence[Any]) -> CollectedPath | None:
        """Return None if a gradient needs more checks than this method makes, for example because it is sparse."""

    @abstractmethod
    def collect_param_grads(self, param_grads: Sequence[Any]) -> CollectedPath | None:
        """Return None if a gradient needs more checks than this method makes. A gradient can be None."""

    @abstractmethod
    def any_sharded(self, parameters: Sequence[Any], /) -> bool: ...

    def identity(self, parameter: Any) -> Hashable:
        return id(parameter)

    def retained(self, gradient: Any) -> Any:
        """Return a gradient that stays valid if code replaces or removes the parameter's `.grad`."""
        return gradient


class Variables(ABC):
    """The methods of backends whose framework has a separate type for parameters, such as `tf.Variable`."""

    @abstractmethod
    def is_variable(self, value: Any) -> bool: ...

    @abstractmethod
    def is_trainable(self, variable: Any) -> bool: ...

    @abstractmethod
    def assign(self, variable: Any, value: Tensor) -> None: ...


class Pytree(ABC):
    @abstractmethod
    def children(self, node: Any) -> dict[str, Any] | None:
        """Map names to the children of a custom container. Return None for leaves, lists, tuples and dicts."""

    @abstractmethod
    def with_children(self, node: Any, children: list[Any]) -> Any: ...


class Sparse(ABC):
    @abstractmethod
    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        """Sum repeated rows. Return None for a dense gradient."""

    def to_dense(self, gradient: Any) -> Tensor:
        raise AssertionError("bug in unified_clip: this framework has no gradients with several sparse axes")

    def stored(self, dense: Tensor, indices: Tensor) -> Tensor:
        """Return the rows of a dense tensor at `CoalescedSparse.indices`."""
        return dense[tuple(indices)]


class Distributed(ABC):
    @abstractmethod
    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
    ) -> Shards | None:
        """Return None if no gradient is distributed. `parameters` includes parameters without a gradient."""

    @abstractmethod
    def has_ranks(self) -> bool:
        """Return False for a program with one rank, and while PyTorch or Paddle builds a graph."""

    def with_spec(self, spec: DistributedSpec) -> Backend:
        return cast(Backend, self)

    def check_total_norm(self, gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
        return

    def partial_sums(self, tensors: Sequence[Tensor]) -> PartialSums:
        return cast(PartialSums, cast(Backend, self).path(tensors, differentiable=False))
