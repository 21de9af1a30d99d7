"""Every public function and class, as one table: how to call it with some gradients, and what the contract says of the
result. The property tests compare both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from support import reference
from support.kits import Kit

EPS = 1e-6
PYTORCH, PADDLE, TENSORFLOW = (EPS, False), (0.0, False), (0.0, True)
"""(eps, whether an infinite norm makes every element NaN)."""


class Result(NamedTuple):
    gradients: list[Any]
    """In the order of the gradients that were passed, with None."""

    norm: Any = None


class Call(NamedTuple):
    scope: str
    """What is clipped by one norm: "total", "each", or "" for nothing. "value" clips elements."""

    prepare: Callable[[Kit, list[Any]], Any]
    """Returns the argument of `run`. It is called outside of graphs."""

    run: Callable[[Kit, Any, Any], Any]
    """Gets the kit, the argument and the threshold."""

    read: Callable[[Kit, Any, Any], Result]
    """Gets the kit, the argument and what `run` has returned."""

    convention: tuple[float, bool] = PADDLE
    p: float = 2.0
    given_norm: float | None = None

    @property
    def in_place(self) -> bool:
        return self.prepare is holders


def holders(kit: Kit, tensors: list[Any]) -> list[Any]:
    return kit.in_place(tensors)


def tensors(kit: Kit, tensors: list[Any]) -> list[Any]:
    return list(tensors)


def pairs(kit: Kit, tensors: list[Any]) -> list[Any]:
    return [(f"p{index}", tensor) for index, tensor in enumerate(tensors)]


def _written(kit: Kit, argument: Any, returned: Any) -> Result:
    return Result(kit.kept(argument), returned)


def _returned(kit: Kit, argument: Any, returned: Any) -> Result:
    return Result(list(returned[0]), returned[1])


def _in_pairs(kit: Kit, argument: Any, returned: Any) -> Result:
    assert [name for name, _ in returned] == [name for name, _ in argument]
    return Result([gradient for _, gradient in returned])


def _only(kit: Kit, argument: Any, returned: Any) -> Result:
    return Result(list(argument), returned)


def _list(kit: Kit, argument: Any, returned: Any) -> Result:
    return Result(list(returned))


def named(name: str, **options: Any) -> Callable[[Kit, Any, Any], Any]:
    return lambda kit, argument, c: getattr(kit.namespace, name)(argument, c, **options)


def measured(name: str, *order: float) -> Callable[[Kit, Any, Any], Any]:
    return lambda kit, argument, c: getattr(kit.namespace, name)(argument, *order)


def instance(name: str) -> Callable[[Kit, Any, Any], Any]:
    return lambda kit, argument, c: getattr(kit.namespace, name)(c)(argument)


def method(name: str) -> Callable[[Kit, Any, Any], Any]:
    return lambda kit, argument, c: getattr(kit.namespace, name)(c).clip_(argument)


def each(function: Callable[[Kit, Any, Any], Any]) -> Callable[[Kit, Any, Any], Any]:
    return lambda kit, argument, c: [None if tensor is None else function(kit, tensor, c) for tensor in argument]


def by_value(kit: Kit, tensor: Any, c: Any) -> Any:
    return kit.namespace.clip_by_value(tensor, -c, c)


GIVEN, INF = 10.0, math.inf

CALLS: dict[str, Call] = {
    "clip_by_global_norm": Call("total", tensors, named("clip_by_global_norm"), _returned, TENSORFLOW),
    "clip_by_global_norm, use_norm": Call(
        "total", tensors, named("clip_by_global_norm", use_norm=GIVEN), _returned, TENSORFLOW, given_norm=GIVEN
    ),
    "clip_grad_norm_": Call("total", holders, named("clip_grad_norm_"), _written, PYTORCH),
    "clip_grad_norm_, 1": Call("total", holders, named("clip_grad_norm_", norm_type=1), _written, PYTORCH, 1),
    "clip_grad_norm_, inf": Call("total", holders, named("clip_grad_norm_", norm_type="inf"), _written, PYTORCH, INF),
    "clip_grad_norm_, 3": Call("total", holders, named("clip_grad_norm_", norm_type=3), _written, PYTORCH, 3),
    "clip_grads_with_norm_": Call(
        "total", holders, named("clip_grads_with_norm_", total_norm=GIVEN), _written, PYTORCH, given_norm=GIVEN
    ),
    "GradientClipByGlobalNorm": Call("total", pairs, instance("GradientClipByGlobalNorm"), _in_pairs),
    "GradientClipByGlobalNorm.clip_": Call("total", holders, method("GradientClipByGlobalNorm"), _written),
    "clip_by_norm": Call("each", tensors, each(named("clip_by_norm")), _list),
    "GradientClipByNorm": Call("each", pairs, instance("GradientClipByNorm"), _in_pairs),
    "GradientClipByNorm.clip_": Call("each", holders, method("GradientClipByNorm"), _written),
    "clip_by_value": Call("value", tensors, each(by_value), _list),
    "clip_grad_value_": Call("value", holders, named("clip_grad_value_"), _written),
    "GradientClipByValue": Call("value", pairs, instance("GradientClipByValue"), _in_pairs),
    "GradientClipByValue.clip_": Call("value", holders, method("GradientClipByValue"), _written),
    "ErrorClipByValue": Call("value", tensors, each(instance("ErrorClipByValue")), _list),
    "global_norm": Call("", tensors, measured("global_norm"), _only),
    "get_total_norm, 1": Call("", tensors, measured("get_total_norm", 1), _only, p=1),
    "get_total_norm, 0.5": Call("", tensors, measured("get_total_norm", 0.5), _only, p=0.5),
    "get_total_norm, 100": Call("", tensors, measured("get_total_norm", 100), _only, p=100),
    "get_total_norm, inf": Call("", tensors, measured("get_total_norm", INF), _only, p=INF),
}


def function(kit: Kit, name: str, limit: float) -> Callable[[Sequence[Any]], Result]:
    """Return a function of tensors that makes the call with them."""
    call = CALLS[name]

    def run(tensors: Sequence[Any]) -> Result:
        argument = call.prepare(kit, list(tensors))
        return call.read(kit, argument, call.run(kit, argument, limit))

    return run


def norm_of(arrays: Sequence[np.ndarray], p: float) -> float:
    return _norm_of(tuple((array.dtype.name, array.tobytes()) for array in arrays), p)


@lru_cache(maxsize=64)
def _norm_of(arrays: tuple[tuple[str, bytes], ...], p: float) -> float:
    """All calls of an example have the same gradients, and exact norms take long."""
    numbers = [np.frombuffer(data, reference.NUMPY[dtype]) for dtype, data in arrays]
    return reference.norm(numbers, p) if p in (1, 2, math.inf) else reference.general_norm(numbers, p)


def check_norm(kit: Kit, got: Any, arrays: Sequence[np.ndarray], p: float, *, exact: bool) -> float:
    """Check and return the norm. On the host path, it is correctly rounded for the orders 1, 2 and inf of real
    gradients. Otherwise, it is within 1 ULP, and on the device path, within 1e-12 for float64."""
    dtype, expected = reference.norm_dtype(a.dtype.name for a in arrays), norm_of(arrays, p)
    assert (kit.array(got).shape, kit.dtype(got)) == ((), dtype)
    n = float(kit.array(got))
    is_complex = any(np.iscomplexobj(array) for array in arrays)
    if not math.isfinite(expected):
        np.testing.assert_equal(n, expected)
    elif exact and (p == 2 or (p in (1, math.inf) and not is_complex)):
        assert n == expected
    elif dtype == "float64" and not exact:
        np.testing.assert_allclose(n, expected, rtol=1e-12, atol=0)
    else:
        rounded = reference.NUMPY[dtype](expected)
        ulp = 2 * np.spacing(rounded / 2) if rounded > 1 else np.spacing(rounded)  # also of the largest number
        assert abs(n - expected) <= float(ulp)
    return n


def expected_of(call: Call, arrays: Sequence[np.ndarray], limit: float, n: float | None = None) -> list[np.ndarray]:
    """`n` is the norm that the call returned. By default, it is computed exactly."""
    if call.scope == "value":
        return [reference.clamped(array, -limit, limit) for array in arrays]
    if not call.scope or limit == math.inf:
        return [array.copy() for array in arrays]
    if call.scope == "each":
        return [scaled(array, call, norm_of([array], call.p), limit) for array in arrays]
    if n is None:
        n = norm_of(arrays, call.p) if call.given_norm is None else call.given_norm
    return [scaled(array, call, n, limit) for array in arrays]


def scaled(array: np.ndarray, call: Call, n: float, limit: float) -> np.ndarray:
    eps, infinite_gives_nan = call.convention
    return reference.scaled(array, reference.coefficient(n, limit, eps, infinite_gives_nan=infinite_gives_nan))


RELATIVE = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 2e-12, "complex128": 2e-12}


def check_gradient(kit: Kit, got: Any, expected: np.ndarray, *, exact: bool) -> None:
    """Compare bits. On the device path, the norm can be off by 1 ULP. NaN may have any bits."""
    result = kit.array(got)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    if not exact:
        flushed = 0.0 if kit.keeps_subnormals_on_device else 2.0**-126
        smallest = 2.0**-24 if expected.dtype.name == "float16" else max(2.0**-133, flushed)
        rtol = RELATIVE.get(expected.dtype.name, 2.0**-22)
        np.testing.assert_allclose(result.astype(wide), expected.astype(wide), rtol=rtol, atol=smallest)
        return
    parts = [(result, expected)] if wide is np.float64 else [(result.real, expected.real), (result.imag, expected.imag)]
    for one, other in parts:
        nan = np.isnan(other)
        np.testing.assert_array_equal(np.isnan(one), nan)
        assert np.where(nan, 0, one).tobytes() == np.where(nan, 0, other).tobytes(), (one, other)
