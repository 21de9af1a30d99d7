"""Convert NumPy arrays to JAX arrays and back, without a copy if possible."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from ..._compute import kernels, processor
from ..._core.types import Tensor
from . import kernel_custom_call
from .releases import enable_x64

SMALL = 1 << 16
"""Up to this number of bytes, compiled code copies an array faster than `jax.device_put` does."""

WIDE = {"float64", "complex128", "int64", "uint64"}


class Structure:
    def __init__(self, types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in types]
        self.small = [index for index, size in enumerate(sizes) if size <= SMALL]
        self.large = [index for index, size in enumerate(sizes) if size > SMALL]
        self.dtypes = {dtype.name for _, dtype in types}
        self.was_put = self.was_scaled = False


_structure = functools.lru_cache(maxsize=64)(Structure)


def structure_of(arrays: Sequence[Any]) -> Structure:
    return _structure(tuple((array.shape, array.dtype) for array in arrays))


def put(arrays: list[kernels.Array]) -> list[Tensor]:
    """Convert NumPy arrays to uncommitted JAX arrays on the default device.

    If possible, large results share the memory of `arrays`. From the second call with the same shapes and dtypes,
    a compiled function copies small arrays. This function is faster than `device_put`.
    """
    structure = structure_of(arrays)
    is_repeated, structure.was_put = structure.was_put, True
    # Arrays with elements of 64 bits may exist although the process has no x64.
    with enable_x64(True) if structure.dtypes & WIDE else nullcontext():
        if not (structure.small and is_repeated and may_compile()):
            return list(jax.device_put(arrays, may_alias=True))
        with jax.transfer_guard_host_to_device("allow"):  # as for `device_put`, an explicit transfer
            if not structure.large:
                return list(_copied(arrays))
            copies = _copied([arrays[index] for index in structure.small])
        shared = jax.device_put([arrays[index] for index in structure.large], may_alias=True)
        by_index = dict(zip((*structure.small, *structure.large), (*copies, *shared), strict=True))
        return [by_index[index] for index in range(len(arrays))]


@jax.jit  # type: ignore[untyped-decorator]
def _copied(arrays: list[Tensor]) -> list[Tensor]:
    return arrays


def may_compile() -> bool:
    config = jax.config
    return (
        not (config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs)
        and jax.sharding.get_abstract_mesh().empty  # otherwise, results are on all devices of the mesh that is set
    )


def beside(result: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    homes = {tensor.sharding for tensor in tensors if tensor.committed}
    devices = {device for home in homes for device in home.device_set}
    if len(devices) != 1:
        return result
    is_alike = len(tensors) == len(homes) == 1 and result.shape == tensors[0].shape
    with enable_x64(True):
        return jax.device_put(result, homes.pop() if is_alike else devices.pop())


class Exporter:
    """A DLPack capsule for `np.from_dlpack`. `jax.dlpack.from_dlpack` would commit the array to a device."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def is_concrete(tensor: Any) -> bool:
    if isinstance(tensor, np.ndarray):
        return True
    if not isinstance(tensor, jax.Array) or isinstance(tensor, jax.core.Tracer) or tensor.is_deleted():
        return False
    devices = tensor.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu" and bool(tensor.is_fully_addressable)


# -- products of many small arrays, in one call of a compiled function that calls the compiled kernels


def products(tensors: Sequence[Tensor], coefs: Sequence[float]) -> list[Tensor] | None:
    """Return the products, or None to let the host path multiply.

    The first call with new shapes and dtypes returns None, because XLA can take seconds to compile `_scaled`.
    """
    if any(getattr(tensor, "committed", True) for tensor in tensors) or not _on_cpu():
        return None
    structure = structure_of(tensors)
    if structure.large or not structure.dtypes <= kernels.CODES.keys():
        return None
    is_repeated, structure.was_scaled = structure.was_scaled, True
    if not (is_repeated and may_compile() and kernel_custom_call.register()):
        return None
    with jax.ensure_compile_time_eval(), enable_x64(True), jax.transfer_guard_host_to_device("allow"):
        return list(_scaled(list(tensors), np.array(coefs, np.float64)))


def _on_cpu() -> bool:
    device = jax.config.jax_default_device
    return bool((getattr(device, "platform", device) or jax.default_backend()) == "cpu")


@jax.jit  # type: ignore[untyped-decorator]
def _scaled(arrays: list[Tensor], coefs: Tensor) -> list[Tensor]:
    types = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    call = jax.ffi.ffi_call(kernel_custom_call.SCALE_TARGET, types)
    return list(call(*arrays, coefs, threads=np.int64(processor.default_threads())))
