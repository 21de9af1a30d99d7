"""Clipping by value: elements beyond a bound become the bound. NaN and elements equal to a bound keep their bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_float64_tensor_bounds_of_16_bit_gradients_are_rounded_once(kit: Kit, dtype: str, step: float) -> None:
    """If these bounds were rounded to float32 first, they would be half-way cases, which then round to even."""
    above, below = 1 + step / 2 + 2.0**-40, 1 + 3 * step / 2 - 2.0**-40
    for sign in (1.0, -1.0):
        tensor = kit.tensor([sign * 9.0] * 5, dtype)
        array = np.array([sign * bound for bound in (above, below, 1 + step / 2, 1e300, 1e-300)])
        for bounds in (array, kit.tensor(array, "float64")) if "float64" in kit.floating else (array,):
            low, high = (0.0, bounds) if sign > 0 else (bounds, 0.0)
            got = kit.array(kit.namespace.clip_by_value(tensor, low, high))
            assert [sign * float(number) for number in got] == [1 + step, 1 + step, 1.0, 9.0, 0.0]


def test_numpy_thresholds_and_bounds_keep_their_dtype(kit: Kit) -> None:
    """Without x64, JAX would convert them to float32."""
    given = kit.tensor([3.0, 4.0])
    for threshold in (np.array(2**32), np.array([2.0**-7 + 2.0**-40])):
        expected = kit.namespace.clip_by_norm(given, threshold.item())
        assert kit.bits(kit.namespace.clip_by_norm(given, threshold)) == kit.bits(expected)
    with pytest.raises(ValueError, match="Pass 0 or more"):
        kit.namespace.clip_by_norm(given, np.array(-1e-46))
    got = kit.namespace.clip_by_value(kit.tensor([9e12, 5.0]), 0, np.array([2**40, 2**40]))
    assert kit.array(got).tolist() == [2.0**40, 5.0]


def test_bounds_may_be_tensors_that_broadcast(kit: Kit) -> None:
    tensor = kit.tensor([[-3.0, 0.0, 3.0], [-3.0, 0.0, 3.0]])
    got = kit.namespace.clip_by_value(tensor, kit.tensor([[-1.0], [1.0]]), kit.tensor([2.0, 2.0, 2.5]))
    assert kit.array(got).tolist() == [[-1.0, 0.0, 2.5], [1.0, 1.0, 2.5]]
    got = kit.namespace.clip_by_value(tensor, kit.tensor(-1.0), np.array([1.0], np.float32))
    assert kit.array(got).tolist() == [[-1.0, 0.0, 1.0]] * 2
    got = kit.namespace.clip_by_value(tensor, np.array([-1.0, 0.5, 0.0], np.float32), 1)
    assert kit.array(got).tolist() == [[-1.0, 0.5, 1.0]] * 2


@where(lambda kit: kit.reads_tensors)
@pytest.mark.parametrize(("low", "high"), [([1.0, 2.0], [2.0, 1.0]), ([3.0, 3.0], 2.0), (0.0, [1.0, -1.0])])
def test_a_lower_bound_above_the_upper_one_is_refused(kit: Kit, low: object, high: object) -> None:
    low, high = (bound if isinstance(bound, float) else kit.tensor(bound) for bound in (low, high))
    with pytest.raises(ValueError, match="above the upper bound"):
        kit.namespace.clip_by_value(kit.tensor([0.0, 0.0]), low, high)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 1, 2)])
def test_bounds_that_would_enlarge_the_tensor_are_refused(kit: Kit, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not broadcast"):
        kit.namespace.clip_by_value(kit.tensor([0.0, 0.0]), kit.tensor(np.zeros(shape)), 1.0)


def test_complex_values_have_no_order(kit: Kit) -> None:
    if not kit.complex:
        return
    tensor = kit.tensor([3 + 4j], "complex64")
    with pytest.raises(TypeError, match="no order"):
        kit.namespace.clip_by_value(tensor, -1.0, 1.0)
    with pytest.raises(TypeError, match="no order"):
        kit.namespace.GradientClipByValue(1.0)([(kit.parameter(), tensor)])
    with pytest.raises(TypeError, match="no order"):
        kit.namespace.clip_grad_value_(kit.in_place([tensor]), 1.0)


@pytest.mark.parametrize("bounds", [(math.nan, 1.0), (-1.0, math.nan)])
def test_a_bound_that_is_nan_is_refused(kit: Kit, bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="NaN"):
        kit.namespace.clip_by_value(kit.tensor([1.0]), *bounds)
    with pytest.raises(ValueError, match="NaN"):
        kit.namespace.GradientClipByValue(max=bounds[1], min=bounds[0])


def test_class_bounds(kit: Kit) -> None:
    assert kit.namespace.GradientClipByValue(2).min == -2
    for make in (kit.namespace.GradientClipByValue, kit.namespace.ErrorClipByValue):
        with pytest.raises(ValueError, match="Swap"):
            make(max=1.0, min=2.0)
        with pytest.raises(ValueError, match="Pass `min` too"):
            make(max=-1.0)
        for wrong in ("1", None, True):
            with pytest.raises(TypeError, match="max is"):
                make(max=wrong)


def test_tensor_bounds_of_integers_have_their_dtype(kit: Kit) -> None:
    tensor = kit.tensor([1, 2], "int8")
    bounds = kit.tensor([0, 1], "int32"), kit.tensor([1, 2], "int32")
    with pytest.raises(TypeError, match="Pass both with the same dtype"):
        kit.namespace.clip_by_value(tensor, *bounds)
    got = kit.namespace.clip_by_value(tensor, kit.tensor([2, 0], "int8"), 5)
    assert kit.array(got).tolist() == [2, 2]
    if "int64" in kit.integers:
        got = kit.namespace.clip_by_value(kit.tensor([2**60], "int64"), 0, kit.tensor(2**53 + 1, "int64"))
        assert kit.array(got).tolist() == [2**53 + 1]


@where(lambda kit: kit.reads_tensors)
@pytest.mark.parametrize("bound", [math.nan, [math.nan, 1.0]])
def test_tensor_bounds_that_are_nan_are_refused(kit: Kit, bound: object) -> None:
    with pytest.raises(ValueError, match="NaN"):
        kit.namespace.clip_by_value(kit.tensor([1.0, 2.0]), kit.tensor(bound), 1.0)


def test_bounds_are_real_tensors(kit: Kit) -> None:
    for dtype in ("complex64", "bool"):
        with pytest.raises(TypeError, match=f"clip_value_max is a tensor of {dtype}"):
            kit.namespace.clip_by_value(kit.tensor([1.0, 2.0]), 0.0, kit.tensor([1, 1], dtype))


def test_bounds_of_integers_are_whole(kit: Kit) -> None:
    tensor = kit.tensor([0, 5], "int8")
    with pytest.raises(TypeError, match="whole number"):
        kit.namespace.clip_by_value(tensor, 0.5, 7)
