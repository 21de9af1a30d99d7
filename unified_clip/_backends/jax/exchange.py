"""Exchange of memory between JAX's arrays and NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..._compute import kernels
from ..._core.types import Tensor
from . import sharded


def put(arrays: list[kernels.Array]) -> list[Tensor]:
    """JAX's arrays, over the memory of NumPy's where that is aligned: on the default device, and free to leave it."""
    with jax.enable_x64(True):  # a float64 array may exist although the process has no x64
        put: list[Tensor] = jax.device_put(arrays, may_alias=True)
        return put


def beside(result: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Where these tensors are, if they are committed to their devices; else the result stays free to leave its own."""
    homes = {tensor.sharding for tensor in tensors if tensor.committed and tensor.sharding.addressable_devices}
    devices = {device for home in homes for device in home.device_set}
    meshes = {getattr(home, "mesh", None) for home in homes}
    with jax.enable_x64(True):
        if len(tensors) == len(homes) == 1 and result.shape == tensors[0].shape:
            return sharded.copied(result, homes.pop())
        if len(devices) == 1:
            return jax.device_put(result, devices.pop())
        if len(meshes) == 1 and None not in meshes:
            return sharded.copied(result, NamedSharding(meshes.pop(), PartitionSpec()))
        return result


class Exporter:
    """What has a capsule to give, as NumPy asks for it. JAX's own `from_dlpack` ties an array to one device."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def is_concrete(tensor: Any) -> bool:
    """Return whether the array is all here, in this process and in the memory of one CPU device."""
    if isinstance(tensor, np.ndarray):
        return True
    if not isinstance(tensor, jax.Array) or isinstance(tensor, jax.core.Tracer) or tensor.is_deleted():
        return False
    devices = tensor.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu" and bool(tensor.is_fully_addressable)
