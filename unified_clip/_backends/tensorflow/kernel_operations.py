"""The compiled kernels as operations of TensorFlow, for graphs on a CPU.

`UnifiedClipNorm` and `UnifiedClipScale` have the same results as the host path. TensorFlow's operations compute the
coefficient and the derivatives. In a graph that XLA compiles, a custom call (`XlaCustomCallV2`) computes the norm, and
TensorFlow's operations compute the products, which XLA can fuse with the step of an optimizer. The shapes of all
tensors must then be known when the function is traced.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import execute
from tensorflow.python.framework import kernels as registered_kernels
from tensorflow.python.framework import op_def_library, op_def_registry
from tensorflow.python.ops.parallel_for import pfor

from ..._compute import host, kernels, processor
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from ...recorder.guard import Hook
from .arithmetic import computed_once, is_for_xla, product

XLA_CALL, TARGET = "XlaCustomCallV2", "unified_clip_norm"

BARRIER = "XlaOptimizationBarrier"


def register_for_xla() -> bool:
    """Register the kernels with XLA, and as a CPU kernel of `XlaCustomCallV2` for graphs that XLA does not compile."""
    has_kernel = any(
        kernel.device_type == "CPU" for kernel in registered_kernels.get_registered_kernels_for_op(XLA_CALL).kernel
    )
    return KERNELS is not None and not has_kernel and KERNELS.register_tensorflow_xla()


def supports_xla(tensors: Sequence[Tensor]) -> bool:
    """Return False if a device is not a CPU of this process, because only this process has registered the kernels."""
    return bool(
        all(tensor.shape.is_fully_defined() for tensor in tensors)
        and tf.compat.v1.executing_eagerly_outside_functions()
        and all(device.name.startswith("/device:CPU:") for device in tf.config.list_logical_devices())
        and _xla_calls_kernels()
    )


def norm_for_xla(tensors: Sequence[Tensor], *, p: int, per_tensor: bool, is_batch: bool, threads: int) -> Scalar:
    """Return float64: the norm over all tensors, or one norm per tensor. p is 1 or 2.

    is_batch: Whether the first axis of each tensor is the batch axis.
    """
    batch = [tensors[0].shape[0]] if is_batch else []
    codes = [f"{kernels.CODES[tensor.dtype.name]}{tensor.shape.num_elements()}" for tensor in tensors]
    config = [p, int(per_tensor), *(batch or [-1]), threads, *codes]
    results = op_def_library.apply_op(
        XLA_CALL, operands=list(tensors), call_target_name=TARGET, backend_config=" ".join(map(str, config)),
        has_side_effect=False, result_dtypes=[tf.float64],
        result_shapes=[[*batch, *([len(tensors)] if per_tensor else [])]],
    )  # fmt: skip
    return results[0]


def barrier(tensor: Tensor) -> Tensor:
    """Return the same tensor. XLA computes the tensor before operations that use the returned tensor."""
    return gen_xla_ops.xla_optimization_barrier([tensor])[0]


def attributes_of_call(op: Any) -> dict[str, Any]:
    target = op.get_attr("call_target_name").decode()
    if target != TARGET:
        raise LookupError(f"{XLA_CALL} with the target {target!r} supports neither derivatives nor tf.vectorized_map")
    p, per_tensor, batch, *_ = op.get_attr("backend_config").split()
    return {"p": int(p), "per_tensor": per_tensor == b"1", "is_batch": int(batch) >= 0}


XLA_HOOK = Hook(
    "kernels in XLA of TensorFlow",
    "XLA in TensorFlow does not call the compiled kernels of unified_clip. In functions with jit_compile=True, "
    "TensorFlow's operations compute the norms, which may differ in the last bit from norms of eager calls",
)


@functools.cache
def _xla_calls_kernels() -> bool:
    return XLA_HOOK.run(_check) is True


def _check() -> bool:
    numbers = [tf.TensorSpec([2])]

    @functools.partial(tf.function, input_signature=numbers, jit_compile=True, autograph=False)
    def compiled(numbers: Tensor) -> Scalar:
        return norm_for_xla([numbers], p=2, per_tensor=False, is_batch=False, threads=1)

    with tf.init_scope():
        result = compiled(tf.constant([3.0, 4.0])).numpy()
    if result != 5.0:
        raise ValueError(f"the norm of [3, 4] is {result} instead of 5")
    return True


# -- operations of graphs that XLA does not compile


NORM, SCALE = "UnifiedClipNorm", "UnifiedClipScale"


def _register() -> bool:
    """Register the operations once. A second registration would end the process."""
    return KERNELS is not None and op_def_registry.get(NORM) is None and KERNELS.register_tensorflow()


HOOK = Hook("kernels in TensorFlow", "graphs of TensorFlow do not call the compiled kernels of unified_clip")
REGISTERED = HOOK.run(_register) is True
REGISTERED_FOR_XLA = REGISTERED and HOOK.run(register_for_xla) is True

NormByOperations = Callable[[Sequence[Tensor], float, bool], Scalar]

STRATEGIES = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)
"""Strategies whose processes run the user's script. Workers of other strategies might not import unified_clip."""


def supports(tensors: Sequence[Tensor]) -> bool:
    return bool(
        REGISTERED
        and tensors
        and not tf.executing_eagerly()
        and (not tf.distribute.has_strategy() or isinstance(tf.distribute.get_strategy(), STRATEGIES))
        and host.kernels_in_graphs()
        and all(device.device_type == "CPU" for device in tf.config.get_visible_devices())
        and all(tensor.dtype.name in kernels.CODES for tensor in tensors)
        and (not is_for_xla() or (REGISTERED_FOR_XLA and supports_xla(tensors)))
    )


def norm(tensors: Sequence[Tensor], p: float, *, per_tensor: bool) -> Scalar:
    n = _apply(NORM, tensors, p=p, per_tensor=per_tensor)
    n.set_shape([len(tensors)] if per_tensor else [])
    return n


def scale(tensors: Sequence[Tensor], coef: Scalar, *, per_tensor: bool) -> list[Tensor]:
    """A tensor with the coefficient 1 is returned unchanged."""
    if is_for_xla():
        # Otherwise, XLA may first multiply `coef` by a constant factor of a gradient, and return 0 for inf * 0.
        return _products(list(map(barrier, tensors)), computed_once(coef), per_tensor)
    return list(_apply(SCALE, tensors, per_tensor=per_tensor, coef=coef))


def _apply(
    name: str, tensors: Sequence[Tensor], *, per_tensor: bool, p: float = 2, is_batch: bool = False, **inputs: Any
) -> Any:
    """is_batch: Whether the first axis of each tensor is the batch axis."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or processor.default_threads()
    attributes: dict[str, Any] = {"p": int(p), "per_tensor": per_tensor, "is_batch": is_batch, "threads": threads}
    if name == NORM and is_for_xla():
        result = norm_for_xla(tensors, **attributes)
    else:
        result = op_def_library.apply_op(name, gradients=list(tensors), **inputs, **attributes)
    if execute.must_record_gradient():  # a GradientTape in the graph, as TensorFlow's own operations do
        op = (result[0] if isinstance(result, list) else result).op
        execute.record_gradient(name, op.inputs, tuple(itertools.chain(*attributes.items())), op.outputs)
    return result


def register(norm_by_operations: NormByOperations) -> None:
    """Register the derivatives of the operations, and their rules for `tf.vectorized_map`."""

    def by_operations(tensors: Sequence[Tensor], *, p: int, per_tensor: bool, is_batch: bool) -> Scalar:
        if not is_batch:
            return norm_by_operations(tensors, float(p), per_tensor)
        return tf.vectorized_map(lambda member: norm_by_operations(member, float(p), per_tensor), tensors)

    def norm_gradient(op: Any, gradient: Tensor) -> list[Tensor]:
        return _derivatives(lambda *tensors: [by_operations(tensors, **_attributes(op))], op.inputs, [gradient])

    def scale_gradient(op: Any, *gradients: Tensor) -> list[Tensor]:
        per_tensor = op.get_attr("per_tensor")
        return _derivatives(lambda *inputs: _products(inputs[:-1], inputs[-1], per_tensor), op.inputs, gradients)

    def vectorized_norm(loop: Any) -> Any:
        tensors, settings = _stacked_inputs(loop), _attributes(loop.op)
        is_nested, settings["is_batch"] = settings["is_batch"], True
        if not is_nested:
            return pfor.wrap(norms_of_batch(tensors, settings), True)
        batches = tf.shape(tensors[0])[:2]  # a `tf.vectorized_map` inside another one
        flat = [_with_first_axes(tensor, tf.reduce_prod(batches, keepdims=True), replaced=2) for tensor in tensors]
        return pfor.wrap(_with_first_axes(norms_of_batch(flat, settings), batches, replaced=1), True)

    def norms_of_batch(tensors: Sequence[Tensor], settings: dict[str, Any]) -> Scalar:
        return _apply(NORM, tensors, **settings) if supports(tensors) else by_operations(tensors, **settings)

    def vectorized_scale(loop: Any) -> Any:
        *tensors, coef = _stacked_inputs(loop)
        products = _products(tensors, coef, loop.get_attr("per_tensor"), is_batch=True)
        return [pfor.wrap(product, True) for product in products]

    def vectorized_barrier(loop: Any) -> Any:
        return [pfor.wrap(barrier(tensor), True) for tensor in _stacked_inputs(loop)]

    for name, derive, vectorize in (
        (NORM, norm_gradient, vectorized_norm),
        (XLA_CALL, norm_gradient, vectorized_norm),
        (SCALE, scale_gradient, vectorized_scale),
        (BARRIER, lambda _, *gradients: list(gradients), vectorized_barrier),
    ):
        with suppress(KeyError):  # this process has imported unified_clip before
            tf.RegisterGradient(name)(derive)
        with suppress(KeyError):
            pfor.RegisterPFor(name)(vectorize)
    with suppress(KeyError):  # so that `tf.vectorized_map` can vectorize `tf.nn.l2_loss`
        pfor.RegisterPFor("L2Loss")(_half_sums_of_squares)


def _half_sums_of_squares(loop: Any) -> Any:
    """Return half of the sum of squares for each row.

    The squares are halved before the addition, because their sum can exceed the range of float16.
    """
    rows = loop.stacked_input(0)
    return pfor.wrap(tf.reduce_sum(0.5 * tf.square(rows), axis=tf.range(1, tf.rank(rows))), True)


def _attributes(op: Any) -> dict[str, Any]:
    if op.type == XLA_CALL:
        return attributes_of_call(op)
    return {name: op.get_attr(name) for name in ("p", "per_tensor", "is_batch")}


def _stacked_inputs(loop: Any) -> list[Tensor]:
    loop.stack_inputs()
    return [loop.stacked_input(index) for index in range(loop.num_inputs)]


def _with_first_axes(tensor: Tensor, lengths: Tensor, *, replaced: int) -> Tensor:
    return tf.reshape(tensor, tf.concat([lengths, tf.shape(tensor)[replaced:]], axis=0))


def _derivatives(
    function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    copies = [tf.identity(tensor) for tensor in inputs]
    derivatives: list[Tensor] = tf.gradients(function(*copies), copies, list(gradients))
    return derivatives


def _products(tensors: Sequence[Tensor], coef: Scalar, per_tensor: bool, *, is_batch: bool = False) -> list[Tensor]:
    results = []
    for index, tensor in enumerate(tensors):
        factor = coef[..., index] if per_tensor else coef
        if is_batch:
            factor = tf.reshape(factor, tf.concat([[-1], tf.ones([tf.rank(tensor) - 1], tf.int32)], axis=0))
        results.append(tf.where(factor >= 1.0, tensor, product(tensor, factor)))
    return results
