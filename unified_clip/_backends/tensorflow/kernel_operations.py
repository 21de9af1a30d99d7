"""The compiled kernels as operations of TensorFlow, for graphs on a CPU.

`UnifiedClipNorm` and `UnifiedClipScale` have the same results as the host path. TensorFlow's operations compute the
coefficient and the derivatives. In a graph that XLA compiles, they compute everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_library, op_def_registry
from tensorflow.python.ops.parallel_for import pfor

from ..._compute import host, kernels, processor
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from ...recorder.guard import Hook
from .arithmetic import BARRIER, barrier, is_for_xla, product

NORM, SCALE = "UnifiedClipNorm", "UnifiedClipScale"


def _register() -> bool:
    """Register the operations once. A second registration would end the process."""
    return KERNELS is not None and op_def_registry.get(NORM) is None and KERNELS.register_tensorflow()


HOOK = Hook("kernels in TensorFlow", "graphs of TensorFlow do not call the compiled kernels of unified_clip")
REGISTERED = HOOK.run(_register) is True

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
        and not is_for_xla()
    )


def norm(tensors: Sequence[Tensor], p: float, *, per_tensor: bool) -> Scalar:
    n = _apply(NORM, tensors, p=p, per_tensor=per_tensor)
    n.set_shape([len(tensors)] if per_tensor else [])
    return n


def scale(tensors: Sequence[Tensor], coef: Scalar, *, per_tensor: bool) -> list[Tensor]:
    """A tensor with the coefficient 1 is returned unchanged."""
    return list(_apply(SCALE, tensors, per_tensor=per_tensor, coef=coef))


def _apply(
    name: str, tensors: Sequence[Tensor], *, per_tensor: bool, p: float = 2, is_batch: bool = False, **inputs: Any
) -> Any:
    """is_batch: Whether the first axis of each tensor is the batch axis."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or processor.default_threads()
    attributes: dict[str, Any] = {"p": int(p), "per_tensor": per_tensor, "is_batch": is_batch, "threads": threads}
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
