"""TensorFlow. Tensors cannot be written, so in-place names update the container; accumulators (Variables) are assigned.

Two things TensorFlow's compilers do shape the arithmetic here: XLA's maximum drops NaN, and Grappler turns
`not (x <= c)` into `x > c`, which differs for NaN. So NaN is masked by name, and no comparison is negated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import ensure_initialized
from tensorflow.python.ops import control_flow_util
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetPossibleGradientTypes as gradient_types

from .._core import entry
from .._core.device import DevicePath, inverse, odd_bits
from .._core.ops import GraphTeller, MergedSparse, Ops, Path, Receive, Scalar, Tensor, WholePath
from .._core.writes import Write
from . import host, kernels, tensorflow_exact, tensorflow_vectorized

EAGER = tf.__internal__.EagerTensor
"""The type itself: making a tensor to ask for its type would start the runtime, which cannot be configured then."""

TENSOR = tf.__internal__.types.Tensor
"""Base of eager and symbolic tensors and of every Variable, Keras's on TensorFlow included; not of IndexedSlices."""

PIECE = 1 << 18
"""The elements of a long tensor that are cast to float64 at a time: 2 MiB, which stay in a cache."""

LANES = 4
"""How many pieces are in memory as float64 at a time."""

SHORT = 1 << 12
"""Up to so many elements, an operation takes longer to start than the elements to be copied."""


class TensorflowOps(Ops):
    """`Ops` and `DeviceOps` for TensorFlow."""

    name = "tensorflow"
    writable = False
    has_variables = True
    takes_capsules = True

    # -- recognising

    def is_tensor(self, value: Any) -> bool:
        if isinstance(value, tf.distribute.DistributedValues) and not isinstance(value, TENSOR):
            raise TypeError(
                f"a {type(value).__name__} holds a gradient of each replica, not their sum; clip in the function that "
                "strategy.run is given, after get_replica_context().all_reduce('sum', gradients), or pass "
                "strategy.reduce('sum', gradient, axis=None)"
            )
        return isinstance(value, TENSOR | tf.IndexedSlices) or kernels.is_array(value)

    def adopt(self, value: Any) -> Tensor:
        if isinstance(value, tf.Tensor | tf.IndexedSlices):
            return value
        return tf.convert_to_tensor(value)

    def dtype(self, tensor: Any) -> str:
        return str(getattr(tensor.dtype, "name", tensor.dtype))  # Keras names its dtypes by strings

    def shape(self, tensor: Any) -> tuple[int | None, ...] | None:
        shape = tf.TensorShape(tensor.shape)
        return None if shape.rank is None else tuple(shape.as_list())

    # -- variables

    def is_variable(self, value: Any) -> bool:
        return isinstance(value, TENSOR) and hasattr(type(value), "assign")

    def is_trainable(self, variable: Any) -> bool:
        return bool(variable.trainable)

    def parameter_name(self, parameter: Any) -> str | None:
        return str(getattr(parameter, "path", parameter.name)) if self.is_variable(parameter) else None

    def assign(self, variable: Any, value: Tensor) -> None:
        if value is not variable:
            variable.assign(value)

    def distinct(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """Only Variables count once: the gradients of a and b in f(a + b) are one tensor, and yet two gradients."""
        first: dict[int, int] = {}
        return [
            first.setdefault(id(tensor), index) if self.is_variable(tensor) else index
            for index, tensor in enumerate(tensors)
        ]

    def name_scope(self, name: str) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = nullcontext() if tf.executing_eagerly() else tf.name_scope(name)
        return scope

    # -- sparse gradients

    def merge_sparse(self, gradient: Any, *, differentiable: bool) -> MergedSparse | None:
        if not isinstance(gradient, tf.IndexedSlices):
            return None
        indices, values = tf.convert_to_tensor(gradient.indices), tf.convert_to_tensor(gradient.values)
        if not (_in_host_memory([indices]) and _all_different(indices)):
            indices, values = self._merged(indices, values, differentiable)
        return MergedSparse(values, lambda new: tf.IndexedSlices(new, indices, gradient.dense_shape), 1, indices)

    def _merged(self, indices: Tensor, values: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
        if not self._takes_host([indices, values], watched=[values] if differentiable else []):
            rows, segments = tf.unique(indices)
            wide = tf.cast(values, tf.complex128 if values.dtype.is_complex else tf.float64)
            sums = tf.math.unsorted_segment_sum(wide, segments, tf.size(rows))
            return rows, tf.cast(sums, values.dtype)
        dtype = self.dtype(values)
        merged_rows, sums = kernels.merge_rows(self.host_view(indices).reshape(1, -1), self.host_view(values), dtype)
        return self.from_host(merged_rows.reshape(-1), self.dtype(indices)), self.from_host(sums, dtype)

    # -- the path

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, others: Sequence[Any] = ()) -> Path:
        everything = [*tensors, *others]
        # No other than a functional name has a derivative; a threshold, though, is read only where nothing watches it.
        if not self._takes_host(everything, watched=everything if differentiable else others):
            return DevicePath(self, tensors, differentiable)
        return host.HostPath(self, tensors, [self.host_view(tensor) for tensor in tensors])

    def whole_of_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> WholePath | None:
        present = [tensor for tensor in tensors if tensor is not None]
        if GATHERER is None or not self._takes_host(present, watched=present if differentiable else []):
            return None
        return host.whole_path(self, GATHERER.of_tensors(present, False, False))

    def _takes_host(self, tensors: Sequence[Tensor], watched: Sequence[Tensor]) -> bool:
        return not host.forced_path() and _in_host_memory(tensors) and not _is_watched(watched)

    def host_view(self, tensor: Tensor) -> kernels.Array:
        if tensor.dtype != tf.bfloat16:
            return np.asarray(memoryview(tensor))
        # The buffer protocol does not know bfloat16. __array__ shares the memory too, and lets it be written.
        view = kernels.storage(np.asarray(tensor.__array__()))[0].view()
        view.flags.writeable = False
        return view

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        # What tf.constant does after a copy: the tensor shares the array's memory where that is aligned.
        return EAGER(array.view(tf.bfloat16.as_numpy_dtype) if dtype == "bfloat16" else array, "", None)

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        return [tf.experimental.dlpack.from_dlpack(capsule) for capsule in capsules]

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        ensure_initialized()  # where there is no gradient, this may be the first tensor of the process
        return self.from_host(np.array(value, dtype), dtype)

    def threads(self) -> int | None:
        return tf.config.threading.get_intra_op_parallelism_threads() or None  # 0 is TensorFlow's own choice

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        """Nothing is ever written."""

    def read(self, scalar: Tensor) -> float | int | None:
        if not _in_host_memory([scalar]):
            return None
        with kernels.ieee_arithmetic():
            number: float | int = scalar.numpy().item()
            return number

    def wants_derivative(self, scalar: Tensor) -> bool:
        return type(scalar) is EAGER and _is_watched([scalar])

    # -- what the device path needs

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        if isinstance(value, tf.Tensor):
            return tf.cast(tf.reshape(value, []), tf.float64)
        return _constant(value, tf.float64)

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        joined = list(tensors) if is_for_xla() else _joined(tensors)[0]
        sums, pieces = [self.constant(0.0, tensors)], _pieces(joined)
        for piece in pieces:
            # All would be cast first, for a graph runs whatever it can; so each waits for an earlier sum.
            with tf.control_dependencies(sums[-LANES:][:1]):
                parts = _real_parts(piece, p)
            if divisor is not None and p in (1, 2):
                parts = [part / divisor for part in parts]
            # l2_loss is half the sum of squares, in one pass; doubling it is exact.
            sums += [tf.nn.l2_loss(part) if p == 2 else tf.reduce_sum(_powers(part, p, divisor)) for part in parts]
        total = _computed_once(tf.add_n(sums))
        total = 2.0 * total if p == 2 else total
        if divisor is not None or not _has_to_be_exact(tensors):
            return total
        return tensorflow_exact.settled(total, _additions(pieces), joined, p, _terms)

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        greatest = [_max_abs(_magnitude(tensor)) for tensor in tensors]
        return _computed_once(_max_abs(tf.stack([self.constant(0.0, tensors), *greatest])))

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        parts = [part if divisor is None else part / divisor for part in _real_parts(tensor, 2)]
        return tf.add_n([tf.reduce_sum(tf.square(part), axis=list(axes), keepdims=True) for part in parts])

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        return _max_abs(_magnitude(tensor), axis=list(axes), keepdims=True)

    def root(self, value: Scalar, p: float) -> Scalar:
        return tf.sqrt(value) if p == 2 else tf.pow(value, self.constant(inverse(p), []))

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return tf.where(condition, yes, no)

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return tf.stop_gradient(scalar)

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        return tf.cast(tf.cast(scalar, dtype), tf.float64)

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return tf.cast(scalar, dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        coef = _computed_once(coef)
        unchanged = coef >= 1.0
        joined, apart = _joined(tensors)

        def scaled() -> list[Tensor]:
            return [_product(tensor, coef) for tensor in joined]

        if _pays_to_branch(joined, coef):
            return apart(tf.cond(unchanged, lambda: [tf.identity(tensor) for tensor in joined], scaled))
        return apart([tf.where(unchanged, *both) for both in zip(joined, scaled(), strict=True)])

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        raise AssertionError("tensors of TensorFlow cannot be written")

    def crossed(self, low: Any, high: Any) -> bool | None:
        ordered = tf.reduce_all(low <= high)
        return not bool(ordered) if type(ordered) is EAGER else None

    def bound(self, value: Any, tensor: Tensor) -> Any:
        return _bound(value, tensor.dtype)

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        return tf.where(tensor < low, low, tf.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        raise AssertionError("tensors of TensorFlow cannot be written")

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [tf.where(keep, tensor, tf.zeros_like(tensor)) for tensor in tensors]

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        raise AssertionError("tensors of TensorFlow cannot be written")

    def cosine(self, scalar: Scalar) -> Scalar:
        return tf.cos(scalar)

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor

    def is_finite(self, scalar: Scalar) -> bool | None:
        return bool(np.isfinite(scalar.numpy())) if type(scalar) is EAGER else None

    def nonfinite_counts(self, tensor: Tensor) -> tuple[int, int]:
        parts = [tf.math.real(tensor), tf.math.imag(tensor)] if tensor.dtype.is_complex else [tensor]
        nan, inf = (np.any([test(part).numpy() for part in parts], axis=0) for test in (tf.math.is_nan, tf.math.is_inf))
        return int(np.sum(nan)), int(np.sum(inf))

    def count_nonfinite(self, tensors: Sequence[Tensor]) -> tuple[Scalar, Scalar]:
        def count(test: Callable[[Tensor], Tensor]) -> Scalar:
            total = self.constant(0.0, tensors)
            for tensor in tensors:
                parts = [tf.math.real(tensor), tf.math.imag(tensor)] if tensor.dtype.is_complex else [tensor]
                found = functools.reduce(tf.logical_or, map(test, parts))
                total += tf.reduce_sum(tf.cast(found, tf.float64))
            return total

        return count(tf.math.is_nan), count(tf.math.is_inf)

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        if differentiable or not tf.executing_eagerly():
            return nullcontext()
        scope: AbstractContextManager[Any] = tf.init_scope()  # when eager, it only pauses every tape
        return scope

    # -- for a recording

    def fetched(self, tensor: Tensor) -> kernels.Array:
        return kernels.storage(tensor.numpy())[0]

    def in_graph(self, values: Sequence[Any]) -> bool:
        return not tf.executing_eagerly() or any(type(value) is not EAGER for value in values)

    def graph_teller(self) -> GraphTeller | None:
        # XLA has no such operation, and in a graph of TensorFlow 1 nothing would run it.
        in_function = isinstance(tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph)
        return None if is_for_xla() or not in_function else _tell_from_graph


# -- conditions of the host path


def _in_host_memory(tensors: Sequence[Any]) -> bool:
    """Whether all are eager tensors on the CPU, seen from eager code: inside a graph, one is a constant to trace."""
    return tf.executing_eagerly() and all(
        type(tensor) is EAGER and "/device:CPU:" in tensor.backing_device for tensor in tensors
    )


def _is_watched(tensors: Sequence[Tensor]) -> bool:
    """Whether a GradientTape or a ForwardAccumulator that records now would derive by one of these eager tensors."""
    return bool(tensors) and bool(gradient_types(list(tensors)))


def _all_different(indices: Tensor) -> bool:
    rows = np.asarray(memoryview(indices))
    return np.unique(rows).size == rows.size


# -- arithmetic of the device path


def _constant(number: float, dtype: Any) -> Tensor:
    """A number that `dtype` holds, as a tensor.

    By way of an array: eager TensorFlow keeps small constants of Python numbers, and gives -0.0 the one of 0.0.
    """
    return tf.constant(np.array(number, dtype.as_numpy_dtype))


def _elements(tensor: Tensor) -> float:
    """How many there are; inf where that is not known."""
    count = tensor.shape.num_elements()
    return math.inf if count is None else count


def is_for_xla() -> bool:
    """Whether a graph is being made that XLA compiles: it fuses what reads a tensor, however long or short."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _computed_once(scalar: Scalar) -> Scalar:
    """The same numbers; for XLA as a quotient. It computes divisions once, but repeats cheaper operations, the sum over
    all tensors among them, in every loop that needs their result: in the scaling of every tensor."""
    if not is_for_xla():
        return scalar
    one, two = (_constant(number, tf.float64) for number in (1.0, 2.0))
    factor = tf.where(tf.math.is_nan(scalar), two, one)  # that NaN stays NaN anyway is not known to XLA
    return scalar * factor / factor


def _has_to_be_exact(tensors: Sequence[Tensor]) -> bool:
    """Whether to make sure of the last bit by a branch, so that it is that of one process: under a strategy.

    XLA would compile the branch every time, and an eager one waits for the device.
    """
    if not tf.distribute.has_strategy():
        return False
    return _in_host_memory(tensors) if tf.executing_eagerly() else not is_for_xla()


def _additions(pieces: Sequence[Tensor]) -> Any:
    """How many additions any element of the pieces goes through, at most, until all are summed."""
    known = [elements for elements in map(_elements, pieces) if elements < math.inf]
    unknown = [tf.size(piece, tf.int64) for piece in pieces if _elements(piece) == math.inf]
    return max(known, default=0.0) + 2.0 * len(pieces) + sum(tf.cast(size, tf.float64) for size in unknown)


def _terms(piece: Tensor, p: float) -> Tensor:
    """|g|**p of a flat piece, of which float64 holds all bits."""
    parts = _real_parts(piece, p)
    return tf.concat([tf.square(part) if p == 2 else tf.abs(part) for part in parts], axis=0)


def _pays_to_branch(tensors: Sequence[Tensor], coef: Scalar) -> bool:
    """Whether to leave out a multiplication by 1: a branch has to be built, and an eager one waits for the device."""
    long = sum(map(_elements, tensors)) > PIECE
    return long and coef.shape.rank == 0 and not tf.executing_eagerly() and not is_for_xla()


def _pieces(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same elements, in tensors that are not very long."""
    return list(tensors) if is_for_xla() else [piece for tensor in tensors for piece in _split(tensor)]


def _split(tensor: Tensor) -> list[Tensor]:
    elements = _elements(tensor)
    if not PIECE < elements < math.inf:
        return [tensor]
    whole, rest = divmod(int(elements), PIECE)
    pieces: list[Tensor] = tf.split(tf.reshape(tensor, [-1]), [PIECE] * whole + [rest])
    return pieces


def _joined(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """The tensors with the short ones of a dtype in one, and a function that takes as many results apart again."""
    groups: dict[object, list[int]] = {}
    most = 0 if is_for_xla() else SHORT
    for index, tensor in enumerate(tensors):
        together = _elements(tensor) <= most
        groups.setdefault((tensor.dtype, tensor.device) if together else index, []).append(index)

    def apart(results: list[Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for result, group in zip(results, groups.values(), strict=True):
            found.update(zip(group, _apart(result, [tensors[index].shape for index in group]), strict=True))
        return [found[index] for index in range(len(tensors))]

    return [_end_to_end([tensors[index] for index in group]) for group in groups.values()], apart


def _end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([_of_shape(tensor, [-1]) for tensor in tensors], axis=0)


def _apart(joined: Tensor, shapes: Sequence[tf.TensorShape]) -> list[Tensor]:
    if len(shapes) == 1:
        return [joined]
    parts = tf.split(joined, [shape.num_elements() for shape in shapes])
    return [_of_shape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _of_shape(tensor: Tensor, shape: Any) -> Tensor:
    return tensor if tensor.shape.rank == len(shape) == 1 else tf.reshape(tensor, shape)


def _is_short(tensor: Tensor) -> bool:
    return tensor.dtype in (tf.float16, tf.bfloat16)


def _real_parts(tensor: Tensor, p: float) -> list[Tensor]:
    """Real float64 tensors with the same sum of |g|**p: for a complex tensor its two parts (p = 2) or its magnitude."""
    if not tensor.dtype.is_complex:
        return [tf.cast(tensor, tf.float64)]
    if p == 2:
        return [tf.cast(part, tf.float64) for part in (tf.math.real(tensor), tf.math.imag(tensor))]
    return [_magnitude(tensor)]


def _magnitude(tensor: Tensor) -> Tensor:
    if not tensor.dtype.is_complex:
        return tf.abs(tf.cast(tensor, tf.float64))
    nan = tf.math.is_nan(tf.math.real(tensor)) | tf.math.is_nan(tf.math.imag(tensor))
    return tf.where(nan, _constant(np.nan, tf.float64), tf.abs(tf.cast(tensor, tf.complex128)))  # of inf + nan j: inf


def _powers(part: Tensor, p: float, divisor: Scalar) -> Tensor:
    """|x / divisor|**p, but |x| for p = 1; where x is 0, so is the derivative."""
    magnitudes = tf.abs(part)
    if p == 1:
        return magnitudes
    zero = tf.equal(magnitudes, 0.0)
    below = tf.math.log(tf.where(zero, divisor, magnitudes)) - tf.math.log(divisor)
    rounding = (below > 0.0) & (magnitudes < np.inf)  # it is at most 0
    powers = tf.exp(_constant(p, tf.float64) * tf.where(rounding, tf.zeros_like(part), below))
    return tf.where(zero, tf.zeros_like(part), powers)


def _max_abs(magnitudes: Tensor, **over: Any) -> Tensor:
    """The greatest; 0 for none, NaN if there is any."""
    nan = tf.reduce_any(tf.math.is_nan(magnitudes), **over)
    greatest = tf.maximum(tf.reduce_max(magnitudes, **over), _constant(0.0, tf.float64))
    return tf.where(nan, _constant(np.nan, tf.float64), greatest)


def _product(tensor: Tensor, coef: Scalar) -> Tensor:
    """tensor * coef, in float32 with coef rounded to it, but for float64 and complex128."""
    if tensor.dtype.is_complex:  # each part on its own: a complex product makes NaN of inf * coef
        return tf.complex(_product(tf.math.real(tensor), coef), _product(tf.math.imag(tensor), coef))
    wide = tf.float32 if _is_short(tensor) else tensor.dtype
    return tf.cast(tf.cast(tensor, wide) * tf.cast(coef, wide), tensor.dtype)


def _bound(bound: Any, dtype: Any) -> Tensor:
    if not isinstance(bound, tf.Tensor):
        return _constant(bound, dtype)
    if dtype not in (tf.float16, tf.bfloat16):
        return tf.cast(bound, dtype)
    once, twice = tf.cast(_rounded_to_odd(tf.cast(bound, tf.float64)), dtype), tf.cast(bound, dtype)
    return tf.where(tf.equal(once, twice), twice, once)  # `twice`, nearly always, has the derivative


def _rounded_to_odd(wide: Tensor) -> Tensor:
    near = tf.cast(wide, tf.float32)
    return tf.bitcast(odd_bits(wide, tf.cast(near, tf.float64), tf.bitcast(near, tf.int32), tf.where), tf.float32)


def _tell_from_graph(scalars: Sequence[Scalar], receive: Receive) -> Callable[[], object]:
    tf.numpy_function(lambda *values: receive([value.tolist() for value in values]), list(scalars), [])
    return lambda: None  # a call returns when its graph has run


def _run_as_written() -> None:
    """Have AutoGraph call the public functions as they are: they branch on what is known while tracing only."""
    for function in entry.PUBLIC:
        function.autograph_info__ = tf.autograph.experimental.do_not_convert(function).autograph_info__  # type: ignore[attr-defined]


GATHERER: Any = host.gatherer(EAGER)
OPS = TensorflowOps()
_run_as_written()
tensorflow_vectorized.register()
