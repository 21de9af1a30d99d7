"""A JAX primitive for the norm. The compiled kernels compute the norm if the only device is a CPU.

XLA computes the coefficient and multiplies the gradients. It can fuse this code with the step of an optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..._compute import kernels, processor
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from ...recorder.guard import Hook
from .releases import enable_x64

TARGET, SCALE_TARGET = "unified_clip_norm", "unified_clip_scale"


class Norm(NamedTuple):
    p: int
    per_tensor: bool


ByOperations = Callable[[Sequence[Tensor], Norm], Scalar]


def supports(tensors: Sequence[Tensor], p: float) -> bool:
    return bool(
        KERNELS is not None
        and tensors
        and (p == 2 or (p == 1 and not any(map(jnp.iscomplexobj, tensors))))
        and all(_is_supported(tensor) for tensor in tensors)
        and any(isinstance(tensor, jax.core.Tracer) for tensor in tensors)
    )


def _is_supported(tensor: Tensor) -> bool:
    mesh = jax.typeof(tensor).sharding.mesh
    return mesh.empty and isinstance(tensor.size, int) and kernels.dtype_name(tensor.dtype) in kernels.CODES


def define(by_operations: ByOperations) -> Callable[[Sequence[Tensor], Norm], Scalar]:
    """Callers of the result need `jax.enable_x64(True)`."""
    primitive = Primitive(TARGET)

    def bind(*tensors: Tensor, norm: Norm, batches: int) -> Scalar:
        return primitive.bind(*tensors, norm=norm, batches=batches)

    def operations(*tensors: Tensor, norm: Norm, batches: int) -> Scalar:
        compute = functools.partial(_from_arguments, by_operations, norm)
        for _ in range(batches):
            compute = jax.vmap(compute)
        with enable_x64(True):  # JAX also calls this outside of the scope
            return compute(*tensors)

    @functools.cache
    def compiled(norm: Norm, batches: int) -> Callable[..., Scalar]:
        function: Callable[..., Scalar] = jax.jit(functools.partial(bind, norm=norm, batches=batches))
        return function

    def implementation(*tensors: Tensor, norm: Norm, batches: int) -> Scalar:
        """In eager calls, run a compiled function, even under `jax.disable_jit`."""
        with enable_x64(True), jax.disable_jit(False):
            return compiled(norm, batches)(*tensors)

    def abstract(*types: Any, norm: Norm, batches: int) -> Any:
        shape = (*types[0].shape[:batches], *([len(types)] if norm.per_tensor else []))
        return jax.core.ShapedArray(shape, np.dtype(np.float64))

    def jvp(primals: Any, tangents: Any, **parameters: Any) -> tuple[Scalar, Scalar]:
        directions = tuple(map(ad.instantiate_zeros, tangents))
        with enable_x64(True):
            derivative = jax.jvp(functools.partial(operations, **parameters), tuple(primals), directions)[1]
            return bind(*primals, **parameters), derivative

    def batch(tensors: Any, axes: Any, *, norm: Norm, batches: int) -> tuple[Scalar, int]:
        size = next(tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True) if axis is not None)
        with enable_x64(True):
            moved = [
                jnp.broadcast_to(tensor, (size, *tensor.shape)) if axis is None else jnp.moveaxis(tensor, axis, 0)
                for tensor, axis in zip(tensors, axes, strict=True)
            ]
            return bind(*moved, norm=norm, batches=batches + 1), 0

    by_xla = mlir.lower_fun(operations, multiple_results=False)

    def by_kernels(context: Any, *operands: Any, norm: Norm, batches: int) -> Any:
        if not (_is_for_one_device(context.module_context) and register()):
            return by_xla(context, *operands, norm=norm, batches=batches)
        attributes = {"p": norm.p, "per_tensor": int(norm.per_tensor), "threads": processor.default_threads()}
        lower = jax.ffi.ffi_lowering(TARGET)
        return lower(context, *operands, **{name: np.int64(value) for name, value in attributes.items()})

    primitive.def_impl(implementation)
    primitive.def_abstract_eval(abstract)
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, by_xla)
    mlir.register_lowering(primitive, by_kernels, platform="cpu")
    return lambda tensors, norm: bind(*tensors, norm=norm, batches=0)


def _from_arguments(by_operations: ByOperations, norm: Norm, *tensors: Tensor) -> Scalar:
    return by_operations(tensors, norm)


def _is_for_one_device(module: Any) -> bool:
    """Return False for exported programs, and for several devices, where XLA would gather all shards for a kernel."""
    return not module.lowering_parameters.for_export and getattr(module.axis_context, "num_devices", None) == 1


HOOK = Hook(
    "kernels in JAX",
    "JAX rejects the compiled kernels of unified_clip. In compiled programs, JAX's operations compute the norms, which "
    "may differ in the last bit from norms of eager calls",
)


@functools.cache
def register() -> bool:
    """Return whether XLA accepts the kernels."""
    return KERNELS is not None and HOOK.run(_register_kernels, KERNELS) is True


def _register_kernels(kernels: ModuleType) -> bool:
    jax.ffi.register_ffi_target(TARGET, kernels.xla_norm, platform="cpu")
    jax.ffi.register_ffi_target(SCALE_TARGET, kernels.xla_scale, platform="cpu")
    return True


register()  # at import, because compiled programs that this process loads need the functions
