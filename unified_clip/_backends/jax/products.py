"""Scale many small arrays in one call of a compiled function, which calls the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from ..._compute import kernels, processor
from ..._core.types import Tensor
from . import exchange, kernel_custom_call
from .releases import enable_x64


def products(tensors: Sequence[Tensor], coefs: Sequence[float]) -> list[Tensor] | None:
    """Return the products, or None to let the host path multiply.

    The first call with new shapes and dtypes returns None, because XLA can take seconds to compile `_scaled`.
    """
    if any(getattr(tensor, "committed", True) for tensor in tensors) or not _on_cpu():
        return None
    structure = exchange.structure_of(tensors)
    if structure.large or not structure.dtypes <= kernels.CODES.keys():
        return None
    is_repeated, structure.was_scaled = structure.was_scaled, True
    if not (is_repeated and exchange.may_compile() and kernel_custom_call.register()):
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
