"""The compiled kernels as a custom call (`XlaCustomCallV2`), for graphs that XLA compiles for a CPU.

XLA computes the coefficient and multiplies the gradients. It can fuse this code with the step of an optimizer. The
shapes of all tensors must be known when the function is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import kernels as registered_kernels
from tensorflow.python.framework import op_def_library

from ..._compute import kernels
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from ...recorder.guard import Hook

NAME, TARGET = "XlaCustomCallV2", "unified_clip_norm"

BARRIER = "XlaOptimizationBarrier"


def register() -> bool:
    """Register the kernels with XLA, and as a CPU kernel of `XlaCustomCallV2` for graphs that XLA does not compile."""
    has_kernel = any(
        kernel.device_type == "CPU" for kernel in registered_kernels.get_registered_kernels_for_op(NAME).kernel
    )
    return KERNELS is not None and not has_kernel and KERNELS.register_tensorflow_xla()


def supports(tensors: Sequence[Tensor]) -> bool:
    """Return False if a device is not a CPU of this process, because only this process has registered the kernels."""
    return bool(
        all(tensor.shape.is_fully_defined() for tensor in tensors)
        and tf.compat.v1.executing_eagerly_outside_functions()
        and all(device.name.startswith("/device:CPU:") for device in tf.config.list_logical_devices())
        and _is_called()
    )


def norm(tensors: Sequence[Tensor], *, p: int, per_tensor: bool, is_batch: bool, threads: int) -> Scalar:
    """Return float64: the norm over all tensors, or one norm per tensor. p is 1 or 2.

    is_batch: Whether the first axis of each tensor is the batch axis.
    """
    batch = [tensors[0].shape[0]] if is_batch else []
    codes = [f"{kernels.CODES[tensor.dtype.name]}{tensor.shape.num_elements()}" for tensor in tensors]
    config = [p, int(per_tensor), *(batch or [-1]), threads, *codes]
    results = op_def_library.apply_op(
        NAME, operands=list(tensors), call_target_name=TARGET, backend_config=" ".join(map(str, config)),
        has_side_effect=False, result_dtypes=[tf.float64],
        result_shapes=[[*batch, *([len(tensors)] if per_tensor else [])]],
    )  # fmt: skip
    return results[0]


def barrier(tensor: Tensor) -> Tensor:
    """Return the same tensor. XLA computes the tensor before operations that use the returned tensor."""
    return gen_xla_ops.xla_optimization_barrier([tensor])[0]


def attributes(op: Any) -> dict[str, Any]:
    target = op.get_attr("call_target_name").decode()
    if target != TARGET:
        raise LookupError(f"{NAME} with the target {target!r} supports neither derivatives nor tf.vectorized_map")
    p, per_tensor, batch, *_ = op.get_attr("backend_config").split()
    return {"p": int(p), "per_tensor": per_tensor == b"1", "is_batch": int(batch) >= 0}


HOOK = Hook(
    "kernels in XLA of TensorFlow",
    "XLA in TensorFlow does not call the compiled kernels of unified_clip. In functions with jit_compile=True, "
    "TensorFlow's operations compute the norms, which may differ in the last bit from norms of eager calls",
)


@functools.cache
def _is_called() -> bool:
    return HOOK.run(_check) is True


def _check() -> bool:
    numbers = [tf.TensorSpec([2])]

    @functools.partial(tf.function, input_signature=numbers, jit_compile=True, autograph=False)
    def compiled(numbers: Tensor) -> Scalar:
        return norm([numbers], p=2, per_tensor=False, is_batch=False, threads=1)

    with tf.init_scope():
        result = compiled(tf.constant([3.0, 4.0])).numpy()
    if result != 5.0:
        raise ValueError(f"the norm of [3, 4] is {result} instead of 5")
    return True
