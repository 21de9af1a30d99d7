"""Every refusal in one place: what is wrong, where, and what to do instead. All of them come before the first write."""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from ..errors import ClipWarning, NonFiniteNormError
from . import entry
from .backend import Backend
from .containers import of_another, other_framework
from .path import Path
from .types import Leaf, Scalar, Tensor

FLOATING = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
MOST_AXES = 64
INTEGER_RANGES = {
    f"{sign}int{bits}": ((-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if not sign else (0, 2**bits - 1))
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


def threshold(backend: Backend, value: Any, what: str, *, differentiable: bool) -> Scalar:
    """A threshold as a float, or the tensor where its value is not known here or a derivative by it is wanted."""
    number, scalar = _number(backend, value, what, differentiable)
    if number is not None and not number >= 0:  # or NaN: math.isnan cannot be traced by PyTorch
        raise ValueError(f"{what} is {number}; it must be 0 or more (inf clips nothing)")
    return scalar + 0.0 if isinstance(scalar, float) else scalar  # -0.0 would turn the signs of all gradients


def known_threshold(backend: Backend, value: Any, what: str) -> float:
    """Return a clip instance's threshold, which has to be known when the instance is made."""
    return _known(threshold(backend, value, what, differentiable=False), what)


def in_main_grad_only(leaf: Leaf, remedy: str) -> ValueError:
    return ValueError(
        f"{leaf.place} has a gradient in main_grad, and .grad is None. unified_clip clips .grad. {remedy}"
    )


def given_norm(backend: Backend, value: Any, what: str, *, differentiable: bool) -> Scalar:
    """Return a norm that the caller measured before; NaN and inf are possible results of measuring."""
    number, scalar = _number(backend, value, what, differentiable)
    if number is not None and number < 0:
        raise ValueError(
            f"{what} is {number}; a norm is never negative: pass what get_total_norm or global_norm returned"
        )
    return scalar


def bound(backend: Backend, value: Any, what: str) -> Scalar:
    """Return a bound of value clipping: a number (int or float), or a tensor."""
    if backend.is_tensor(value) and _elements(backend.shape(value)) != 1:
        if backend.dtype(value) not in (*FLOATING, *INTEGER_RANGES):
            raise TypeError(f"{what} is a tensor of {backend.dtype(value)}; pass real numbers")
        return backend.as_bound(value)
    if _is_real(value) and isinstance(value, numbers.Integral):
        return int(value)
    read = _one_element if backend.is_tensor(value) and not _is_real(value) else _number
    return _not_nan(*read(backend, value, what, differentiable=True), what)


def _elements(shape: Sequence[int | None] | None) -> int | None:
    """Return how many elements; None where a length, or even the number of axes, is not known."""
    if shape is None:
        return None
    known = [length for length in shape if length is not None]
    return math.prod(known) if len(known) == len(shape) else None


def _not_nan(number: float | int | None, scalar: Scalar, what: str) -> Scalar:
    if number is not None and not -math.inf <= number <= math.inf:
        raise ValueError(f"{what} is NaN, which no value can be compared with; pass a number")
    return scalar


def not_distributed(backend: Backend) -> TypeError:
    return TypeError(
        "process_group, ownership and check_numel are for gradients that several processes hold, and each tensor of "
        f"{backend.name} is held by one; leave them out"
    )


def _number(backend: Backend, value: Any, what: str, differentiable: bool) -> tuple[float | None, Scalar]:
    """Return the number if it is known here, and what to compute with: the number, or the tensor that was given."""
    if not _is_real(value):
        if not backend.is_tensor(value):
            raise TypeError(
                f"{what} is {reprlib.repr(value)} ({type(value).__name__}); pass a number, or a tensor with one element"
            )
        number, scalar = _one_element(backend, value, what, differentiable)
        return (float(number), float(number)) if scalar is number and number is not None else (number, scalar)
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is too large for float64; pass math.inf to measure without clipping") from None
    return number, number


def _one_element(backend: Backend, value: Any, what: str, differentiable: bool) -> tuple[float | int | None, Scalar]:
    shape = backend.shape(value)
    if shape is not None and any(length not in (1, None) for length in shape):
        raise ValueError(f"{what} has shape {list(shape)}; pass one number, or call once for each threshold")
    if backend.dtype(value) not in (*FLOATING, *INTEGER_RANGES):
        raise TypeError(f"{what} is a tensor of {backend.dtype(value)}; pass a real number")
    tensor = backend.as_bound(value)
    number = backend.read(tensor)
    return number, tensor if number is None or (differentiable and backend.wants_derivative(tensor)) else number


def _is_real(value: Any) -> bool:
    if type(value) in (float, int):  # at once, and not by an abstract class
        return True
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def norm_type(value: Any) -> float:
    """p as a float: any p > 0, inf, or the string 'inf'."""
    if isinstance(value, str):
        if value != "inf":
            raise ValueError(f"norm_type is {value!r}; the only string it may be is 'inf'")
        return math.inf
    if not _is_real(value):
        raise TypeError(f"norm_type is {value!r} ({type(value).__name__}); pass a number above 0, or 'inf'")
    p = math.inf if isinstance(value, int) and value > sys.float_info.max else float(value)
    if not p > 0:
        raise ValueError(f"norm_type is {p}; it must be above 0 (2 is the Euclidean norm, inf the greatest magnitude)")
    return p


def supported(backend: Backend, leaf: Leaf) -> None:
    """Reject a kind of tensor that the framework's operations cannot clip."""
    reason = backend.unsupported(leaf.tensor)
    if reason is not None:
        raise TypeError(f"{leaf.place} is {reason}")
    shape = backend.shape(leaf.tensor)
    if shape is not None and len(shape) > MOST_AXES:
        raise ValueError(
            f"{leaf.place} has {len(shape)} axes; unified_clip takes up to {MOST_AXES}, as NumPy does: reshape it"
        )


def gradient_dtype(dtype: str, leaf: Leaf, *, extra_dtypes: Iterable[str] = (), reject_complex: bool = False) -> None:
    """Reject integers and booleans, except for `extra_dtypes`, and complex numbers where order counts."""
    if dtype in FLOATING or dtype in extra_dtypes:
        return
    if dtype in COMPLEX:
        if not reject_complex:
            return
        raise TypeError(
            f"{leaf.place} is {dtype}: complex values have no order, so they cannot be clipped by value; "
            "clip by norm, or clip the real and the imaginary part each on its own"
        )
    raise TypeError(
        f"{leaf.place} is {dtype}: gradients are {', '.join(FLOATING + COMPLEX)}; convert it, or leave it out"
    )


def value_bounds(backend: Backend, low: Any, high: Any, tensor: Any) -> tuple[Any, Any]:
    """Return the bounds of `clip_by_value` for this tensor; for integers, moved into the dtype's range."""
    dtype, shape = backend.dtype(tensor), backend.shape(tensor)
    for value, what in ((low, "clip_value_min"), (high, "clip_value_max")):
        if not isinstance(value, int | float):
            _broadcasts_to(backend.shape(value), shape, what)
    if dtype in INTEGER_RANGES:
        low, high = _whole(backend, low, dtype, "clip_value_min"), _whole(backend, high, dtype, "clip_value_max")
    if isinstance(low, int | float) and isinstance(high, int | float):
        ordered(low > high, low, high)
    if dtype in INTEGER_RANGES:
        return _into_range(low, high, dtype)
    return low, high


def _whole(backend: Backend, value: Any, dtype: str, what: str) -> Any:
    if not isinstance(value, int | float):
        if backend.dtype(value) != dtype:
            raise TypeError(f"{what} is a tensor of {backend.dtype(value)} and t is {dtype}; give both one dtype")
        return value
    if math.isinf(value) or value == int(value):
        return value
    raise TypeError(f"{what} is {value} and t is {dtype}; pass a whole number, or convert t to float32")


def _into_range(low: Any, high: Any, dtype: str) -> tuple[Any, Any]:
    smallest, largest = INTEGER_RANGES[dtype]
    if (isinstance(low, int | float) and low > largest) or (isinstance(high, int | float) and high < smallest):
        raise ValueError(f"the bounds {low} and {high} leave no value of {dtype}, which holds {smallest} to {largest}")

    def moved(value: Any) -> Any:
        return int(max(smallest, min(largest, value))) if isinstance(value, int | float) else value

    return moved(low), moved(high)


def sparse_bounds(low: Any, high: Any, leaf: Leaf) -> None:
    """Rows that a sparse gradient does not store are 0, and stay so."""
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        raise ValueError(f"{leaf.place} is sparse, so its bounds cannot be tensors; pass numbers, or a dense tensor")
    if not low <= 0 <= high:
        raise ValueError(
            f"{leaf.place} is sparse, and the bounds {low} and {high} exclude 0, which the rows that it does not store "
            "are; pass a dense tensor"
        )


def ordered(bounds_inverted: bool | None, low: Any, high: Any) -> None:
    if bounds_inverted:
        known = isinstance(low, int | float) and isinstance(high, int | float)
        remedy = "swap them" if known else "somewhere, or one of them is NaN; swap or mend them"
        raise ValueError(f"the lower bound ({low}) is above the upper one ({high}){'; ' if known else ' '}{remedy}")


def _broadcasts_to(shape: Sequence[int | None] | None, target: Sequence[int | None] | None, what: str) -> None:
    """Raise ValueError for a bound that would enlarge the tensor. It may repeat along it."""
    if shape is None or target is None:
        return
    pairs = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(a not in (1, b) and None not in (a, b) for a, b in pairs):
        raise ValueError(f"{what} has shape {list(shape)}, which does not broadcast to t's shape {list(target)}")


def one_tensor(backend: Backend, value: Any, function: str) -> None:
    if value is None or backend.is_tensor(value):
        return
    if isinstance(value, numbers.Number):
        raise TypeError(
            f"{function} was given the plain number {value!r}; pass a tensor of {backend.name} or a NumPy array"
        )
    if other := other_framework(backend, value):
        raise TypeError(f"{function} was given {of_another(backend, other)}")
    remedy = (
        "call it once for each tensor" if isinstance(value, list | tuple | Mapping) else f"pass one of {backend.name}"
    )
    raise TypeError(
        f"{function} takes one tensor and was given a {type(value).__module__}.{type(value).__qualname__}; {remedy}"
    )


def axes(value: Any, shape: Sequence[int | None] | None) -> tuple[int, ...]:
    """Axes as sorted ints, not negative where the number of axes is known."""
    rank = None if shape is None else len(shape)
    given = value.tolist() if hasattr(value, "tolist") else value
    listed = list(given) if isinstance(given, list | tuple) else [given]
    found = []
    for axis in listed:
        if isinstance(axis, bool) or not hasattr(type(axis), "__index__"):
            raise TypeError(f"axes is {value!r}; pass an int, or a list of ints")
        axis = operator.index(axis)
        if rank is not None and not -rank <= axis < rank:
            raise ValueError(f"axes names axis {axis}, and t has {rank}: from {-rank} to {rank - 1}")
        found.append(axis if rank is None else axis % rank)
    if len(set(found)) != len(found):
        raise ValueError(f"axes is {value!r}, which names an axis twice")
    return tuple(sorted(found))


def bounds_of_shards(backend: Backend, bounds: Sequence[Tensor]) -> None:
    """Which part of a bound belongs to a part of a gradient is not known."""
    for bound in bounds:
        shape = backend.shape(bound)
        if shape is None or any(length != 1 for length in shape):
            raise ValueError(
                f"a bound has shape {list(shape or ())}, and several processes hold the gradient; pass numbers, or "
                "clip what each process holds with its own part of the bounds"
            )


def finite(
    path: Path,
    n: Scalar,
    leaves: Sequence[Leaf],
    p: float,
    setting: str,
    elsewhere: Callable[[], Sequence[tuple[str, int, int]]],
) -> None:
    """Raise NonFiniteNormError with every tensor that holds NaN or inf, and every rank that does.

    `setting`: what asks for the error. `elsewhere`: returns other ranks with their counts.
    """
    known = path.is_finite(n)
    if known is None:
        raise TypeError(
            "error_if_nonfinite=True cannot raise from inside a graph; leave it out, return the norm from the graph, "
            "and check it outside"
        )
    if known:
        return
    counted = [(leaf, *counts) for leaf, counts in zip(leaves, path.nonfinite_counts(), strict=True) if any(counts)]
    places = [(leaf.place, nans, infs) for leaf, nans, infs in counted] + list(elsewhere())
    found = "; ".join(f"{place} holds {nans} NaN and {infs} inf" for place, nans, infs in places)
    kind = "NaN" if any(nans for _, nans, _ in places) else "infinite"
    raise NonFiniteNormError(
        f"the total norm of order {p:g} is {kind}, and {setting}; no gradient was "
        f"changed. {found or 'Every gradient is finite, but their norm exceeds the largest number of its dtype'}"
    )


def known_bounds(backend: Backend, upper: Any, lower: Any) -> tuple[float, float]:
    """`max` and `min` of a clip instance as (min, max)."""
    high = _known_bound(backend, upper, "max")
    if lower is None and high < 0:
        raise ValueError(f"max is {high} and min is None, which means -max; pass min as well, or a max of 0 or more")
    low = -high if lower is None else _known_bound(backend, lower, "min")
    if low > high:
        raise ValueError(f"min ({low}) is above max ({high}); swap them")
    return low, high


def _known_bound(backend: Backend, value: Any, what: str) -> float:
    return _known(_not_nan(*_number(backend, value, what, differentiable=False), what), what)


def _known(scalar: Scalar, what: str) -> float:
    if isinstance(scalar, float):
        return scalar
    raise TypeError(f"{what} is a tensor whose value is not known here (on a device, or in a graph); pass a number")


def parameter_list(backend: Backend, param_list: Any) -> list[Any]:
    if isinstance(param_list, str | Mapping) or backend.is_tensor(param_list) or not isinstance(param_list, Iterable):
        raise TypeError(f"param_list is {reprlib.repr(param_list)}; pass a list of parameters")
    parameters = list(param_list)
    for position, parameter in enumerate(parameters):
        try:
            weakref.ref(parameter)
        except TypeError:
            kind = type(parameter).__name__
            raise TypeError(f"position {position} of param_list is a {kind}; pass the parameters themselves") from None
    return parameters


def warn(message: str) -> None:
    """Issue a ClipWarning of a call, which breaks a graph for it."""
    entry.break_graph(message)
    warn_at_call(message)


def warn_at_call(message: str) -> None:
    """Issue a ClipWarning that points at the user's line that calls a public function."""
    frame, level = sys._getframe(), 1
    # Leave the frames up to `run`, then those of a compiler around it, then those of the public function.
    for has_left in (_is_run, _calls_run, lambda frame: not _is_in_package(frame)):
        while frame.f_back is not None and not has_left(frame):
            frame, level = frame.f_back, level + 1
    warnings.warn(message, ClipWarning, stacklevel=level)


def _is_run(frame: FrameType) -> bool:
    return frame.f_code is entry.run_eagerly.__code__


def _calls_run(frame: FrameType) -> bool:
    return _is_in_package(frame) and not _is_run(frame)


def _is_in_package(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "unified_clip"
