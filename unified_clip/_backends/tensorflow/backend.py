"""The backend of TensorFlow. In-place functions put new tensors into the caller's list or dict, and assign Variables.

XLA's maximum ignores NaN. Grappler replaces `not (x <= c)` by `x > c`, which is False for NaN. So this
backend masks NaN explicitly, and never uses `not` with a comparison.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import ensure_initialized
from tensorflow.python.framework.smart_cond import smart_constant_value
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetPossibleGradientTypes as gradient_types

from ..._compute import host, kernels, processor, sparse_rows
from ..._compute.device import DevicePath, inverse, round_once
from ..._core import entry
from ..._core.backend import Backend, Inputs, Route, Sparse, Variables, always
from ..._core.path import CollectedPath, DevicePrimitives, Path
from ..._core.types import CoalescedSparse, GraphCallback, Receive, Scalar, Tensor
from . import kernel_operations
from .arithmetic import (
    EAGER,
    LANES,
    barrier,
    computed_once,
    constant,
    in_host_memory,
    is_for_xla,
    join_short,
    magnitude,
    max_abs,
    pays_to_branch,
    powers,
    product,
    real_parts,
    split_long,
)

TENSOR = tf.__internal__.types.Tensor


def _device_path(backend: TensorflowBackend, inputs: Inputs) -> Path:
    return DevicePath(backend, inputs.tensors, inputs.differentiable, kernel_operations)


class TensorflowBackend(Backend, Variables, Sparse, DevicePrimitives):
    name = "tensorflow"
    writable = False
    takes_capsules = True
    routes = (host.ROUTE, Route("device", always, _device_path))

    def kernels_in_graphs(self) -> bool:
        return kernel_operations.REGISTERED and host.kernels_in_graphs()

    # -- tensors

    def unsupported(self, gradient: Any) -> str | None:
        if isinstance(gradient, tf.RaggedTensor):
            return "a RaggedTensor. Pass gradient.flat_values, and gradient.with_flat_values(clipped) is the result"
        if isinstance(gradient, tf.SparseTensor):
            return "a SparseTensor. Pass tf.sparse.to_dense(gradient), or a tf.IndexedSlices"
        return None

    def is_tensor(self, value: Any) -> bool:
        if isinstance(value, tf.distribute.DistributedValues) and not isinstance(value, TENSOR):
            raise TypeError(
                f"a {type(value).__name__} has a gradient per replica, not the sum over replicas. Clip in the function "
                "that you pass to strategy.run, after get_replica_context().all_reduce('sum', gradients). "
                "Outside of this function, pass strategy.reduce('sum', gradient, axis=None)"
            )
        return isinstance(value, TENSOR | tf.IndexedSlices) or kernels.is_array(value)

    def as_tensor(self, value: Any) -> Tensor:
        if isinstance(value, tf.Tensor | tf.IndexedSlices):
            return value
        return tf.convert_to_tensor(value)

    def detached(self, parameter: Any) -> Tensor:
        return tf.stop_gradient(self.as_tensor(parameter))

    def shape(self, tensor: Any) -> tuple[int | None, ...] | None:
        given = getattr(tensor, "dense_shape", None)
        # TensorFlow's functions accept IndexedSlices whose dense_shape is a tuple, but the property `shape` does not.
        shape = tf.TensorShape(given if isinstance(given, tuple | list) else tensor.shape)
        return None if shape.rank is None else tuple(shape.as_list())

    # -- variables

    def is_variable(self, value: Any) -> bool:
        return isinstance(value, TENSOR) and hasattr(type(value), "assign")

    is_parameter = is_variable

    def is_trainable(self, variable: Any) -> bool:
        return bool(variable.trainable)

    def parameter_name(self, parameter: Any) -> str | None:
        return str(getattr(parameter, "path", parameter.name)) if self.is_variable(parameter) else None

    def assign(self, variable: Any, value: Tensor) -> None:
        if value is not variable:
            variable.assign(value)

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """Only repeated Variables are aliases. If two variables have the same gradient tensor, both gradients count."""
        first: dict[int, int] = {}
        return [
            first.setdefault(id(tensor), index) if self.is_variable(tensor) else index
            for index, tensor in enumerate(tensors)
        ]

    def name_scope(self, name: str) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = nullcontext() if tf.executing_eagerly() else tf.name_scope(name)
        return scope

    # -- sparse gradients

    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        if not isinstance(gradient, tf.IndexedSlices):
            return None
        indices, values = tf.convert_to_tensor(gradient.indices), tf.convert_to_tensor(gradient.values)
        if not (in_host_memory([indices]) and _all_different(indices)):
            indices, values = self._merged(indices, values, differentiable)
        return CoalescedSparse(values, lambda new: tf.IndexedSlices(new, indices, gradient.dense_shape), 1, indices)

    def _merged(self, indices: Tensor, values: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
        if not self._takes_host([indices, values], watched=[values] if differentiable else []):
            rows, segments = _unique(indices)
            wide = tf.cast(values, tf.complex128 if values.dtype.is_complex else tf.float64)
            sums = tf.math.unsorted_segment_sum(wide, segments, tf.size(rows))
            return rows, tf.cast(sums, values.dtype)
        dtype = self.dtype(values)
        merged_rows, sums = sparse_rows.merge_rows(
            self.host_view(indices).reshape(1, -1), self.host_view(values), dtype
        )
        return self.from_host(merged_rows.reshape(-1), self.dtype(indices)), self.from_host(sums, dtype)

    # -- paths

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        present = [tensor for tensor in tensors if tensor is not None]
        if COLLECTOR is None or not self._takes_host(present, watched=present if differentiable else []):
            return None
        return host.path_over(self, COLLECTOR.of_tensors(present, False, False))

    def fits_host(self, inputs: Inputs) -> bool:
        # Only functional names have a derivative. A threshold is read only if no tape watches it.
        return self._takes_host(inputs.all(), watched=inputs.all() if inputs.differentiable else inputs.extra)

    def _takes_host(self, tensors: Sequence[Tensor], watched: Sequence[Tensor]) -> bool:
        return not host.forced_path() and in_host_memory(tensors) and not _is_watched(watched)

    def host_view(self, tensor: Tensor) -> kernels.Array:
        if tensor.dtype != tf.bfloat16:
            return np.asarray(memoryview(tensor))
        # The buffer protocol lacks bfloat16. __array__ shares the memory too, but as writable.
        view = kernels.storage(np.asarray(tensor.__array__()))[0].view()
        view.flags.writeable = False
        return view

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        # Unlike tf.constant, this shares the array's memory if it is aligned.
        return EAGER(array.view(tf.bfloat16.as_numpy_dtype) if dtype == "bfloat16" else array, "", None)

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        return [tf.experimental.dlpack.from_dlpack(capsule) for capsule in capsules]

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        ensure_initialized()  # without gradients, this may be the first tensor of the process
        return self.from_host(np.array(value, dtype), dtype)

    def threads(self) -> int | None:
        return tf.config.threading.get_intra_op_parallelism_threads() or None  # 0 is TensorFlow's own choice

    def read(self, scalar: Tensor) -> float | int | None:
        if not in_host_memory([scalar]):
            return None
        with processor.ieee_arithmetic():
            number: float | int = scalar.numpy().item()
            return number

    def wants_derivative(self, scalar: Tensor) -> bool:
        return type(scalar) is EAGER and _is_watched([scalar])

    # -- primitives of the device path

    where = staticmethod(tf.where)
    stop_gradient = staticmethod(tf.stop_gradient)
    cast = staticmethod(tf.cast)
    bitcast = staticmethod(tf.bitcast)
    stack = staticmethod(tf.stack)
    sort = staticmethod(tf.sort)
    total = staticmethod(tf.reduce_sum)
    least = staticmethod(tf.reduce_min)
    cos = staticmethod(tf.cos)
    floor = staticmethod(tf.floor)

    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        return tf.constant(np.array(values, np.float64))

    def indices(self, length: int, like: Sequence[Tensor]) -> Scalar:
        return tf.range(length, dtype=tf.float64)

    def pinned(self, scalar: Scalar) -> Scalar:
        # XLA merges operations, and Grappler moves constants: d * d * 0.5 becomes (d * 0.5) * d
        return scalar if tf.executing_eagerly() else tf.minimum(scalar, constant(sys.float_info.max, tf.float64))

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        return tf.concat([tf.reshape(scalar, [-1]) for scalar in scalars], axis=0)

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Tensor]) -> list[Scalar]:
        parts = tf.split(packed, [length or 1 for length in lengths])
        return [part if length else tf.reshape(part, []) for part, length in zip(parts, lengths, strict=True)]

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        if isinstance(value, tf.Tensor):
            return tf.cast(tf.reshape(value, []), tf.float64)
        return constant(value, tf.float64)

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        joined = list(tensors) if is_for_xla() else join_short(tensors)[0]
        sums = [self.constant(0.0, tensors)]
        for piece in split_long(joined):
            # Each cast waits for an earlier sum. Otherwise, a graph would run all casts first.
            with tf.control_dependencies(sums[-LANES:][:1]):
                parts = real_parts(piece, p)
            if divisor is not None and p in (1, 2):
                parts = [part / divisor for part in parts]
            # l2_loss returns half the sum of squares in one pass, and doubling is exact.
            sums += [tf.nn.l2_loss(part) if p == 2 else tf.reduce_sum(powers(part, p, divisor)) for part in parts]
        total = computed_once(tf.add_n(sums))
        return 2.0 * total if p == 2 else total

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        maxima = [max_abs(magnitude(tensor)) for tensor in tensors]
        return computed_once(max_abs(tf.stack([self.constant(0.0, tensors), *maxima])))

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        parts = [part if divisor is None else part / divisor for part in real_parts(tensor, 2)]
        return tf.add_n([tf.reduce_sum(tf.square(part), axis=list(axes), keepdims=True) for part in parts])

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        return max_abs(magnitude(tensor), axis=list(axes), keepdims=True)

    def root(self, value: Scalar, p: float) -> Scalar:
        return tf.sqrt(value) if p == 2 else tf.pow(value, self.constant(inverse(p), []))

    def ndim(self, scalar: Scalar) -> int | None:
        rank: int | None = scalar.shape.rank
        return rank

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        if is_for_xla():
            # Otherwise, XLA may first multiply `coef` by a constant factor of a gradient, and return 0 for inf * 0.
            tensors, coef = list(map(barrier, tensors)), computed_once(coef)
        unchanged = coef >= 1.0
        joined, split = join_short(tensors)

        def scaled() -> list[Tensor]:
            return [product(tensor, coef) for tensor in joined]

        if pays_to_branch(joined, coef):  # without a clip, the gradients are read once less
            return split(tf.cond(unchanged, lambda: [tf.identity(tensor) for tensor in joined], scaled))
        return split([tf.where(unchanged, *both) for both in zip(joined, scaled(), strict=True)])

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        ordered = tf.reduce_all(low <= high)
        return not bool(ordered) if type(ordered) is EAGER else None

    def bound(self, value: Any, tensor: Tensor) -> Any:
        is_tensor = isinstance(value, tf.Tensor)
        return round_once(self, value, self.dtype(tensor)) if is_tensor else constant(value, tensor.dtype)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [tf.where(keep, tensor, tf.zeros_like(tensor)) for tensor in tensors]

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor

    def is_finite(self, scalar: Scalar) -> bool | None:
        return bool(np.isfinite(scalar.numpy())) if type(scalar) is EAGER else None

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        parts = [tf.math.real(tensor), tf.math.imag(tensor)] if tensor.dtype.is_complex else [tensor]
        nan, inf = (functools.reduce(tf.logical_or, map(test, parts)) for test in (tf.math.is_nan, tf.math.is_inf))
        return tf.reduce_sum(tf.cast(nan, tf.float64)), tf.reduce_sum(tf.cast(inf, tf.float64))

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        if differentiable or not tf.executing_eagerly():
            return nullcontext()
        scope: AbstractContextManager[Any] = tf.init_scope()  # in eager code, it only pauses tapes
        return scope

    # -- for a recording

    def to_numpy(self, tensor: Tensor) -> kernels.Array:
        return kernels.storage(tensor.numpy())[0]

    def elements(self, tensor: Tensor, positions: Any) -> Tensor:
        return tf.gather(tf.reshape(self.detached(tensor), [-1]), positions)

    def in_graph(self, values: Sequence[Any]) -> bool:
        return not tf.executing_eagerly() or any(type(value) is not EAGER for value in values)

    def graph_callback(self) -> GraphCallback | None:
        # XLA lacks the operation, and a graph of TensorFlow 1 would not run it.
        in_function = isinstance(tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph)
        return None if is_for_xla() or not in_function else _call_from_graph


# -- conditions of the host path


def _is_watched(tensors: Sequence[Tensor]) -> bool:
    return bool(tensors) and bool(gradient_types(list(tensors)))


def _unique(indices: Tensor) -> tuple[Tensor, Tensor]:
    """XLA must know the length of the result. So in graphs for XLA, NumPy computes the result for constant indices."""
    constants = smart_constant_value(indices) if is_for_xla() else None
    if constants is None:
        rows, segments = tf.unique(indices)
        return rows, segments
    different, first, inverse = np.unique(constants, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return tf.constant(different[order], indices.dtype), tf.constant(np.argsort(order)[inverse])


def _all_different(indices: Tensor) -> bool:
    rows = np.asarray(memoryview(indices))
    return np.unique(rows).size == rows.size


# -- arithmetic of the device path


def _call_from_graph(scalars: Sequence[Scalar], receive: Receive) -> Callable[[], object]:
    tf.numpy_function(lambda *values: receive([value.tolist() for value in values]), list(scalars), [])
    return lambda: None  # a call returns when its graph has run


def _run_as_written() -> None:
    for function in {entry.run, entry.run_eagerly}:
        function.autograph_info__ = tf.autograph.experimental.do_not_convert(function).autograph_info__  # type: ignore[attr-defined]
    with suppress(ImportError, AttributeError):  # this private setting saves converting the callers of entry.run
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert("unified_clip"), *config.CONVERSION_RULES)


COLLECTOR: Any = host.collector(EAGER)
BACKEND = TensorflowBackend()
_run_as_written()
kernel_operations.register(
    lambda tensors, p, per_tensor: DevicePath(BACKEND, tensors, True, is_per_tensor=per_tensor).norm_by_operations(p)
)
