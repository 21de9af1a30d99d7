"""The backend of NumPy. To add a framework, read this module first, because it is the smallest backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._compute import host, kernels, memory
from .._core.backend import Backend
from .._core.path import CollectedPath
from .._core.types import Tensor
from . import check_release

check_release("numpy", np.__version__)


class NumpyBackend(Backend):
    """The backend of NumPy. It converts NumPy scalars to read-only 0-d arrays."""

    name = "numpy"
    writable = True
    routes = (host.ROUTE,)

    def is_tensor(self, value: Any) -> bool:
        return kernels.is_array(value)

    def as_tensor(self, value: Any) -> Tensor:
        if isinstance(value, np.ndarray):
            return value
        array = np.asarray(value)
        array.flags.writeable = False
        return array

    def dtype(self, tensor: Any) -> str:
        return kernels.dtype_name(tensor.dtype)

    def plain_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> Any | None:
        return COLLECTOR and COLLECTOR.of_tensors(tensors, False, in_place)

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        return host.path_over(self, self.plain_tensors(tensors, differentiable=differentiable, in_place=in_place))

    def read(self, scalar: Tensor) -> float | int | None:
        return scalar.item()  # type: ignore[no-any-return]

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        return memory.alias_owners(tensors, [self.host_view(self.as_tensor(tensor)) for tensor in tensors], describe)

    # -- memory, for the host path

    def host_view(self, tensor: Tensor) -> kernels.Array:
        return kernels.storage(np.asarray(tensor))[0]

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        if dtype != "bfloat16":
            return array
        import ml_dtypes  # arrays of bfloat16 need it

        return array.view(ml_dtypes.bfloat16)

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return np.dtype(dtype).type(value)


COLLECTOR: Any = host.collector(np.ndarray)
BACKEND = NumpyBackend()
