"""Checks of arguments. All checks run before the first gradient changes."""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from ..errors import ClipWarning, NonFiniteNormError
from . import entry, observer
from .backend import Backend
from .containers import accepted, describe_other, other_framework
from .path import Path
from .types import Leaf, Scalar, Tensor, with_article

FLOATING = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
MAX_AXES = 64
INTEGER_RANGES = {
    f"{sign}int{bits}": ((-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if not sign else (0, 2**bits - 1))
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


def threshold(backend: Backend, value: Any, name: str, *, differentiable: bool) -> Scalar:
    number, scalar = _number(backend, value, name, differentiable)
    if number is not None and not number >= 0:  # also false for NaN. PyTorch cannot trace math.isnan
        raise ValueError(f"{name} is {number}. Pass 0 or more (inf clips nothing)")
    return scalar + 0.0 if isinstance(scalar, float) else scalar  # -0.0 would change the signs of all gradients


def known_threshold(backend: Backend, value: Any, name: str) -> float:
    return _known(threshold(backend, value, name, differentiable=False), name)


def main_grad_only(leaf: Leaf, remedy: str) -> ValueError:
    return ValueError(
        f"{leaf.place} has a gradient in main_grad, and .grad is None. unified_clip clips .grad. {remedy}"
    )


def given_norm(backend: Backend, value: Any, name: str, *, differentiable: bool) -> Scalar:
    number, scalar = _number(backend, value, name, differentiable)
    if number is not None and number < 0:
        raise ValueError(
            f"{name} is {number}, but a norm is never negative. Pass the result of get_total_norm or global_norm"
        )
    return scalar


def bound(backend: Backend, value: Any, name: str) -> Scalar:
    if backend.is_tensor(value) and _elements(backend.shape(value)) != 1:
        if backend.dtype(value) not in (*FLOATING, *INTEGER_RANGES):
            raise TypeError(f"{name} is a tensor of {backend.dtype(value)}. Pass real numbers")
        return backend.as_bound(value)
    if _is_real(value) and isinstance(value, numbers.Integral):
        return int(value)
    read = _one_element if backend.is_tensor(value) and not _is_real(value) else _number
    return _not_nan(*read(backend, value, name, differentiable=True), name)


def _elements(shape: Sequence[int | None] | None) -> int | None:
    if shape is None:
        return None
    known = [length for length in shape if length is not None]
    return math.prod(known) if len(known) == len(shape) else None


def _not_nan(number: float | int | None, scalar: Scalar, name: str) -> Scalar:
    if number is not None and not -math.inf <= number <= math.inf:
        raise ValueError(f"{name} is NaN. Pass a number")
    return scalar


def not_distributed(backend: Backend) -> TypeError:
    return TypeError(
        "process_group, ownership, check_numel and check_replicas are for distributed gradients, but gradients of "
        f"{backend.name} are complete in this process. Leave these arguments out"
    )


def _number(backend: Backend, value: Any, name: str, differentiable: bool) -> tuple[float | None, Scalar]:
    if not _is_real(value):
        if not backend.is_tensor(value):
            raise TypeError(
                f"{name} is {reprlib.repr(value)} ({type(value).__name__}). Pass a number, or a tensor with one element"
            )
        number, scalar = _one_element(backend, value, name, differentiable)
        return (float(number), float(number)) if scalar is number and number is not None else (number, scalar)
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is outside the range of float64. Pass a number in this range, or math.inf") from None
    return number, number


def _one_element(backend: Backend, value: Any, name: str, differentiable: bool) -> tuple[float | int | None, Scalar]:
    shape = backend.shape(value)
    if shape is not None and any(length not in (1, None) for length in shape):
        raise ValueError(f"{name} has shape {list(shape)}. Pass one number, or call the function once for each number")
    if backend.dtype(value) not in (*FLOATING, *INTEGER_RANGES):
        raise TypeError(f"{name} is a tensor of {backend.dtype(value)}. Pass a real number")
    tensor = backend.as_bound(value)
    number = backend.read(tensor)
    return number, tensor if number is None or (differentiable and backend.wants_derivative(tensor)) else number


def _is_real(value: Any) -> bool:
    if type(value) in (float, int):  # faster than an abstract class
        return True
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def norm_type(value: Any) -> float:
    if isinstance(value, str):
        if value != "inf":
            raise ValueError(f"norm_type is {value!r}. Pass a number above 0, or 'inf'")
        return math.inf
    if not _is_real(value):
        raise TypeError(f"norm_type is {value!r} ({type(value).__name__}). Pass a number above 0, or 'inf'")
    p = math.inf if isinstance(value, int) and value > sys.float_info.max else float(value)
    if not p > 0:
        raise ValueError(f"norm_type is {p}. Pass a number above 0 (2 is the Euclidean norm, inf the maximum norm)")
    return p


def supported(backend: Backend, leaf: Leaf) -> None:
    reason = backend.unsupported(leaf.tensor)
    if reason is not None:
        raise TypeError(f"{leaf.place} is {reason}")
    shape = backend.shape(leaf.tensor)
    if shape is not None and len(shape) > MAX_AXES:
        raise ValueError(
            f"{leaf.place} has {len(shape)} axes, and at most {MAX_AXES} are supported, as in NumPy. Reshape the tensor"
        )


def gradient_dtype(dtype: str, leaf: Leaf, *, extra_dtypes: Iterable[str] = (), reject_complex: bool = False) -> None:
    """Raise TypeError for integers and booleans whose dtype is not in `extra_dtypes`."""
    if dtype in FLOATING or dtype in extra_dtypes:
        return
    if dtype in COMPLEX:
        if not reject_complex:
            return
        raise TypeError(
            f"{leaf.place} is {dtype}: complex values have no order, so they cannot be clipped by value. "
            "Clip by norm, or clip the real and the imaginary part separately"
        )
    raise TypeError(f"{leaf.place} is {dtype}. Convert it to one of {', '.join(FLOATING + COMPLEX)}, or leave it out")


def value_bounds(backend: Backend, low: Any, high: Any, tensor: Any) -> tuple[Any, Any]:
    """Return the checked bounds of `clip_by_value`. For integers, clamp the bounds to the range of the dtype."""
    dtype, shape = backend.dtype(tensor), backend.shape(tensor)
    for value, name in ((low, "clip_value_min"), (high, "clip_value_max")):
        if not isinstance(value, (int, float)):
            _broadcasts_to(backend.shape(value), shape, name)
    if dtype in INTEGER_RANGES:
        low = _integer_bound(backend, low, dtype, "clip_value_min")
        high = _integer_bound(backend, high, dtype, "clip_value_max")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        ordered(low > high, low, high)
    if dtype in INTEGER_RANGES:
        return _into_range(low, high, dtype)
    return low, high


def _integer_bound(backend: Backend, value: Any, dtype: str, name: str) -> Any:
    if not isinstance(value, (int, float)):
        if backend.dtype(value) != dtype:
            raise TypeError(
                f"{name} is a tensor of {backend.dtype(value)} and t is {dtype}. Pass both with the same dtype"
            )
        return value
    if math.isinf(value) or value == int(value):
        return value
    raise TypeError(f"{name} is {value} and t is {dtype}. Pass a whole number, or convert t to float32")


def _into_range(low: Any, high: Any, dtype: str) -> tuple[Any, Any]:
    smallest, largest = INTEGER_RANGES[dtype]
    if (isinstance(low, (int, float)) and low > largest) or (isinstance(high, (int, float)) and high < smallest):
        raise ValueError(
            f"no value of {dtype} is within the bounds {low} and {high}. Pass bounds that include a number from "
            f"{smallest} to {largest}"
        )

    def clamped(value: Any) -> Any:
        return int(max(smallest, min(largest, value))) if isinstance(value, (int, float)) else value

    return clamped(low), clamped(high)


def sparse_bounds(low: Any, high: Any, leaf: Leaf) -> None:
    if not (isinstance(low, (int, float)) and isinstance(high, (int, float))):
        raise ValueError(
            f"{leaf.place} is sparse, and a bound is a tensor. Pass numbers as bounds, or make the gradient dense"
        )
    if not low <= 0 <= high:
        raise ValueError(
            f"{leaf.place} is sparse, and the bounds {low} and {high} exclude 0, the value of rows that are not "
            "stored. Pass bounds that include 0, or pass a dense tensor"
        )


def ordered(bounds_inverted: bool | None, low: Any, high: Any) -> None:
    if bounds_inverted:
        known = isinstance(low, (int, float)) and isinstance(high, (int, float))
        if known:
            raise ValueError(f"the lower bound ({low}) is above the upper bound ({high}). Swap them")
        raise ValueError(
            f"the lower bound ({low}) is above the upper bound ({high}) for some elements, or a bound is NaN. Correct "
            "the bounds"
        )


def _broadcasts_to(shape: Sequence[int | None] | None, target: Sequence[int | None] | None, name: str) -> None:
    if not shape or target is None:  # a number broadcasts. PyTorch 2.9 cannot trace `zip` of an empty tuple
        return
    lengths = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(a not in (1, b) and None not in (a, b) for a, b in lengths):
        problem = f"{name} has shape {list(shape)}, which does not broadcast to t's shape {list(target)}"
        raise ValueError(f"{problem}. Pass a number, or a tensor that broadcasts to t")


def one_tensor(backend: Backend, value: Any, function: str) -> None:
    if value is None or backend.is_tensor(value):
        return
    if isinstance(value, numbers.Number):
        raise TypeError(f"{function} received the plain number {value!r}. Pass {accepted(backend)}")
    if reason := backend.unsupported(value):
        raise TypeError(f"{function} received {reason}")
    if framework := other_framework(backend, value):
        raise TypeError(f"{function} received {describe_other(backend, framework)}")
    several = isinstance(value, (list, tuple, Mapping))
    remedy = f"Call {function} once for each tensor" if several else f"Pass a dense tensor of {backend.name}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise TypeError(f"{function} takes one tensor and received {with_article(kind)}. {remedy}")


def axes(value: Any, shape: Sequence[int | None] | None) -> tuple[int, ...]:
    """Return sorted axes. If `shape` is not None, the result has no negative axes."""
    rank = None if shape is None else len(shape)
    items = value.tolist() if hasattr(value, "tolist") else value
    normalized = []
    for axis in items if isinstance(items, (list, tuple)) else [items]:
        if isinstance(axis, bool) or not hasattr(type(axis), "__index__"):
            raise TypeError(f"axes is {value!r}. Pass an int, or a list of ints")
        axis = operator.index(axis)
        if rank is not None and not -rank <= axis < rank:
            remedy = f"Pass axes from {-rank} to {rank - 1}" if rank else "Leave axes out"
            raise ValueError(f"axes has axis {axis}, and t has {rank} axes. {remedy}")
        normalized.append(axis if rank is None else axis % rank)
    if len(set(normalized)) != len(normalized):
        raise ValueError(f"axes is {value!r}, which lists an axis twice. Pass each axis once")
    return tuple(sorted(normalized))


def bounds_of_shards(backend: Backend, bounds: Sequence[Tensor]) -> None:
    """Raise ValueError for a bound with several elements, because their assignment to shards is unknown."""
    for bound in bounds:
        shape = backend.shape(bound)
        if shape is None or any(length != 1 for length in shape):
            raise ValueError(
                f"a bound has shape {list(shape or ())}, and the gradient is distributed. Pass numbers. Or clip "
                "the local tensor on each rank, and pass only the bounds for that local tensor"
            )


def finite(path: Path, n: Scalar, leaves: Sequence[Leaf], p: float, setting: str, *, has_ranks: bool) -> None:
    """Raise NonFiniteNormError if the norm is NaN or inf. `leaves` are only the gradients of this rank."""
    is_finite = path.is_finite(n)
    if is_finite is None:
        raise TypeError(
            "error_if_nonfinite=True cannot raise from inside a graph. Leave out error_if_nonfinite, return the norm "
            "from the graph, and check the norm outside"
        )
    if is_finite:
        return
    known_n, *numbers = path.read_later([n, *(count for both in path.nonfinite_counts() for count in both)]).values()
    counted = zip(leaves, numbers[::2], numbers[1::2], strict=True)
    listed = "; ".join(f"{leaf.place} has {nan:.0f} NaN and {inf:.0f} inf" for leaf, nan, inf in counted if nan or inf)
    if not listed and has_ranks:
        listed = "On this rank, every gradient is finite. The error on another rank names it, or the norm overflows"
    elif not listed:
        listed = "Every gradient is finite, but the total norm overflows its dtype"
    kind = "NaN" if math.isnan(known_n) else "infinite"
    raise NonFiniteNormError(
        f"the total norm of order {p:g} is {kind}, and {setting}. Skip this step, or find the cause. No gradient was "
        f"changed. {listed}"
    )


def known_bounds(backend: Backend, upper: Any, lower: Any) -> tuple[float, float]:
    high = _known_bound(backend, upper, "max")
    if lower is None and high < 0:
        raise ValueError(f"`max` is {high}, and `min` is -max by default. Pass `min` too, or a `max` of 0 or more")
    low = -high if lower is None else _known_bound(backend, lower, "min")
    if low > high:
        raise ValueError(f"min ({low}) is above max ({high}). Swap them")
    return low, high


def _known_bound(backend: Backend, value: Any, name: str) -> float:
    return _known(_not_nan(*_number(backend, value, name, differentiable=False), name), name)


def _known(scalar: Scalar, name: str) -> float:
    if isinstance(scalar, float):
        return scalar
    raise TypeError(f"{name} is a tensor on a device or in a graph, so its value is not known yet. Pass a number")


def parameter_list(backend: Backend, param_list: Any) -> list[Any]:
    if isinstance(param_list, (str, Mapping)) or backend.is_tensor(param_list) or not isinstance(param_list, Iterable):
        raise TypeError(f"param_list is {reprlib.repr(param_list)}. Pass a list of parameters")
    parameters = list(param_list)
    for position, parameter in enumerate(parameters):
        try:
            weakref.ref(parameter)
        except TypeError:
            kind = type(parameter).__name__
            problem = f"position {position} of param_list has the type {kind}"
            raise TypeError(f"{problem}. Pass the parameters themselves") from None
    return parameters


def warn(message: str) -> None:
    """Under `torch.compile`, the warning breaks the graph."""
    entry.break_graph(message)
    warn_at_call(message)


def warn_at_call(message: str) -> None:
    """Issue a ClipWarning that points at the user's call of a public function."""
    frame, level = sys._getframe(), 1
    # Skip the frames up to `run`, then the frames of a compiler, then the frames of the public function.
    for has_left in (_is_run, _calls_run, lambda frame: not _is_in_package(frame)):
        while frame.f_back is not None and not has_left(frame):
            frame, level = frame.f_back, level + 1
    if observer.active is not None:
        observer.active.on_warning(message)
    warnings.warn(message, ClipWarning, stacklevel=level)


def _is_run(frame: FrameType) -> bool:
    return frame.f_code is entry.run_eagerly.__code__


def _calls_run(frame: FrameType) -> bool:
    return _is_in_package(frame) and not _is_run(frame)


def _is_in_package(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "unified_clip"
