"""The contract as properties: whatever the gradients are, the result is the oracle's, and nothing else changed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from support import calls, reference, situations
from support.calls import CALLS, Call
from support.kits import Kit
from support.situations import FLAT, NESTED, Gradient


def tensors_of(kit: Kit, gradients: list[Gradient | None]) -> tuple[list[Any], list[Any]]:
    """Return the tensors, and for each the memory around it that nothing may change (or None)."""
    made = [(None, None) if each is None else kit.placed(each.array, each.has_gaps) for each in gradients]
    return [tensor for tensor, _ in made], [around for _, around in made]


def arrays_of(gradients: list[Gradient | None]) -> list[np.ndarray]:
    return [each.array for each in gradients if each is not None]


def norm_for_thresholds(call: Call, arrays: list[np.ndarray]) -> float:
    if call.given_norm is not None:
        return call.given_norm
    largest = max((calls.norm_of([array], 2) for array in arrays), default=0.0)
    return largest if call.scope == "each" else calls.norm_of(arrays, call.p)


def is_certain(kit: Kit, call: Call, arrays: list[np.ndarray], limit: float) -> bool:
    """On the device path, a norm next to the threshold may be on either side of it, and a coefficient that is subnormal
    can become zero."""
    if kit.exact or call.scope in ("value", ""):
        return True
    norms = [calls.norm_of([array], 2) for array in arrays]
    if call.scope == "total":
        norms = [calls.norm_of(arrays, call.p) if call.given_norm is None else call.given_norm]
    if any(math.isclose(n, limit, rel_tol=1e-6) for n in norms):
        return False
    return kit.keeps_subnormals_on_device or not any(0 < limit < n * 2.0**-125 for n in norms if n < math.inf)


SCOPES = {"norms": ("total", ""), "each": ("each",), "value": ("value",)}


@pytest.mark.parametrize("scope", SCOPES)
@given(data=st.data())
def test_the_result_is_the_oracles_and_nothing_else_changed(kit: Kit, scope: str, data: st.DataObject) -> None:
    dtypes = kit.floating if scope == "value" else kit.floating + kit.complex
    gradients = data.draw(situations.gradients(kit, dtypes))
    threshold = data.draw(situations.thresholds(kit.exact))
    for name, call in CALLS.items():
        if call.scope in SCOPES[scope]:
            limit = threshold(norm_for_thresholds(call, arrays_of(gradients)))
            note(f"{name} with the threshold {limit}")
            check(kit, call, gradients, limit)


def check(kit: Kit, call: Call, gradients: list[Gradient | None], limit: float) -> None:
    arrays = arrays_of(gradients)
    if not is_certain(kit, call, arrays, limit):
        return
    given_tensors, around = tensors_of(kit, gradients)
    before = [None if tensor is None else kit.bits(tensor) for tensor in given_tensors]
    argument = call.prepare(kit, given_tensors)
    result = call.read(kit, argument, call.run(kit, argument, limit))

    assert [each is None for each in result.gradients] == [each is None for each in gradients]
    n = None
    if result.norm is not None and call.given_norm is None:
        n = calls.check_norm(kit, result.norm, arrays, call.p, exact=kit.exact)
    elif result.norm is not None:
        assert float(kit.array(result.norm)) == call.given_norm
    got = [each for each in result.gradients if each is not None]
    for tensor, expected in zip(got, calls.expected_of(call, arrays, limit, n), strict=True):
        # The coefficient of a passed norm is known, and is not rounded to 16 bits.
        is_known = call.given_norm is not None and expected.itemsize == 2 and kit.keeps_subnormals_on_device
        calls.check_gradient(kit, tensor, expected, exact=kit.exact or limit == math.inf or is_known)
    if not call.in_place:
        assert [None if tensor is None else kit.bits(tensor) for tensor in given_tensors] == before
    for memory in around:
        assert memory is None or memory.is_unchanged()
    if call.scope == "total" and call.given_norm is None and n is not None and 0 < limit < 1e30:
        check_norm_afterwards(kit, got, arrays, call, n, limit)


def check_norm_afterwards(
    kit: Kit, got: list[Any], arrays: list[np.ndarray], call: Call, n: float, limit: float
) -> None:
    """The norm of clipped float32 gradients is at most c (1 + 2**-22), if no clipped element is subnormal."""
    if not math.isfinite(n) or n <= 1e-30:
        return
    wide = [array.astype(np.float64) for array in arrays if array.dtype == np.float32]
    if len(wide) == len(arrays) and not any((abs(array * limit / max(n, limit)) < 1e-37).any() for array in wide):
        after = calls.norm_of([kit.array(tensor) for tensor in got], call.p)
        assert after <= limit * (1 + 2.0**-22)


@given(data=st.data())
def test_a_container_comes_back_as_it_is(kit: Kit, data: st.DataObject) -> None:
    gradients = data.draw(situations.gradients(kit, ("float32",)))
    given_tensors, _ = tensors_of(kit, gradients)
    kind = data.draw(st.sampled_from([*FLAT, *NESTED]))
    container = (FLAT | NESTED)[kind](given_tensors)
    if kind in ("iterator", "generator") and not gradients:
        return  # gives a warning
    if not is_certain(kit, CALLS["clip_by_global_norm"], arrays_of(gradients), 0.5):
        return
    structure, before = situations.shape_of(container), situations.leaves(container)
    clipped, norm = kit.namespace.clip_by_global_norm(container, 0.5)
    if kind in FLAT:
        assert type(clipped) is list
    else:
        assert situations.shape_of(clipped) == structure
        assert all(a is b for a, b in zip(situations.leaves(container), before, strict=True))
    n = calls.check_norm(kit, norm, arrays_of(gradients), 2.0, exact=kit.exact)
    expected = iter(calls.expected_of(CALLS["clip_by_global_norm"], arrays_of(gradients), 0.5, n))
    for tensor, gradient in zip(situations.leaves(clipped), gradients, strict=True):
        if gradient is None:
            assert tensor is None
        else:
            calls.check_gradient(kit, tensor, next(expected), exact=kit.exact)


@given(data=st.data())
def test_a_container_is_clipped_in_place(kit: Kit, data: st.DataObject) -> None:
    gradients = data.draw(situations.gradients(kit, ("float32",)))
    given_tensors, _ = tensors_of(kit, gradients)
    kinds = FLAT if kit.writable else {"list": FLAT["list"]}
    kind = data.draw(st.sampled_from([*kinds, *(name for name in NESTED if kit.writable or name != "named tuple")]))
    if kind in ("iterator", "generator") and not gradients:
        return
    if not is_certain(kit, CALLS["clip_grad_norm_"], arrays_of(gradients), 0.5):
        return
    held = kit.in_place(given_tensors)
    container = (FLAT | NESTED)[kind](held)
    norm = kit.namespace.clip_grad_norm_(container, 0.5)
    n = calls.check_norm(kit, norm, arrays_of(gradients), 2.0, exact=kit.exact)
    now = held if kit.writable else situations.leaves(container)
    expected = calls.expected_of(CALLS["clip_grad_norm_"], arrays_of(gradients), 0.5, n)
    for tensor, array in zip((each for each in kit.kept(now) if each is not None), expected, strict=True):
        calls.check_gradient(kit, tensor, array, exact=kit.exact)


@given(data=st.data())
def test_axes_clip_each_slice_by_its_own_norm(kit: Kit, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(kit.floating + kit.complex))
    (array,) = [data.draw(situations.numbers(kit, dtype)).copy()]
    if array.ndim == 0 or array.size > 100:
        return
    axes = data.draw(st.sets(st.integers(0, array.ndim - 1)))
    given_axes = data.draw(st.permutations([axis - array.ndim * data.draw(st.booleans()) for axis in axes]))
    limit = data.draw(situations.thresholds(False))(reference.norm([array]))
    if array.size:
        array.reshape(array.shape)[(slice(1),) * array.ndim] *= 0
    expected = array.copy()
    for index in itertools.product(*(range(1 if axis in axes else n) for axis, n in enumerate(array.shape))):
        part = tuple(slice(None) if axis in axes else slice(i, i + 1) for axis, i in enumerate(index))
        (expected[part],) = calls.expected_of(CALLS["clip_by_norm"], [array[part]], limit)
        if not is_certain(kit, CALLS["clip_by_norm"], [array[part]], limit):
            return
    spelled = given_axes[0] if len(given_axes) == 1 and data.draw(st.booleans()) else given_axes
    tensor, _ = kit.placed(array, data.draw(st.booleans()))
    got = kit.namespace.clip_by_norm(tensor, limit, axes=spelled)
    calls.check_gradient(kit, got, expected, exact=kit.exact or limit == math.inf)


FORMS = {
    "int": int, "float": float, "numpy": np.float32, "array": np.array, "one element": lambda one: np.array([one]),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name].scope])
@pytest.mark.parametrize("form", [*FORMS, "tensor", "a tensor of one element"])
def test_a_threshold_may_be_any_number(kit: Kit, name: str, form: str) -> None:
    call, array = CALLS[name], np.array([3.0, 4.0], np.float32)
    limit: Any = kit.tensor([1.0] if "one" in form else 1.0) if "tensor" in form else FORMS[form](1)
    argument = call.prepare(kit, [kit.tensor(array)])
    if name.startswith(("Gradient", "Error")) and "tensor" in form and not kit.reads_tensors:
        with pytest.raises(TypeError, match="is a tensor on a device or in a graph, so its value"):
            call.run(kit, argument, limit)
        return
    (got,), _ = call.read(kit, argument, call.run(kit, argument, limit))
    (expected,) = calls.expected_of(call, [array], 1.0)
    calls.check_gradient(kit, got, expected, exact=kit.exact)


@given(data=st.data(), dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_any_bounds_limit_each_element(kit: Kit, data: st.DataObject, dtype: str) -> None:
    """Bounds may be numbers or tensors, of any sign, and are rounded once. Numbers equal to a bound keep their bits."""
    if dtype not in kit.floating:
        return
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    just = st.sampled_from(
        [1 + step / 2 + 2.0**-50, 1 + 3 * step / 2 - 2.0**-50, 1 + step / 2]
    )  # double rounding shows
    edge = st.sampled_from([0.0, -0.0, 0.3, 1.1, 7e4, 1e-3, math.inf]) | just
    low, high = sorted(data.draw(st.tuples(*[st.tuples(edge, st.sampled_from([1, -1])).map(math.prod)] * 2)))
    beside = [bound + sign * step for bound in (low, high) for sign in (-1, 0, 1) if math.isfinite(bound)]
    array = reference.array([*situations.SPECIAL, -3.0, 0.5, 9.0, *beside], dtype)
    expected = reference.clamped(array, low, high)
    forms = ["numbers", "float64 array", "instance", "rows", *["float64 tensor"] * ("float64" in kit.floating)]
    form = data.draw(st.sampled_from(forms))
    tensor = kit.tensor(array, dtype)
    if form == "instance":
        got = kit.namespace.GradientClipByValue(max=high, min=low)([("name", tensor)])[0][1]
    elif form == "float64 array":
        got = kit.namespace.clip_by_value(tensor, np.full(array.shape, low), high)
    elif form == "float64 tensor":
        got = kit.namespace.clip_by_value(tensor, low, kit.tensor(np.full(array.shape, high), "float64"))
    elif form == "rows":
        rows = kit.namespace.clip_by_value(kit.tensor([array, array], dtype), low, np.full(array.shape, high))
        got = kit.tensor(kit.array(rows)[1], dtype)
    else:
        got = kit.namespace.clip_by_value(tensor, low, high)
    result = kit.array(got)
    nan = np.isnan(expected)
    assert np.where(nan, 0, result).tobytes() == np.where(nan, 0, expected).tobytes(), (low, high, form)
    np.testing.assert_array_equal(np.isnan(result), nan)


@given(data=st.data())
def test_integers_are_clipped_by_whole_bounds(kit: Kit, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(kit.integers))
    info = np.iinfo(dtype)
    values = data.draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=1, max_size=5))
    edge = st.integers(-(2**70), 2**70) | st.integers(-9, 9) | st.sampled_from([-math.inf, math.inf, 5.0])
    low, high = sorted(data.draw(st.tuples(edge, edge)))
    if low > info.max or high < info.min:
        with pytest.raises(ValueError, match=f"no value of {dtype}"):
            kit.namespace.clip_by_value(kit.tensor(np.array(values, dtype), dtype), low, high)
        return
    got = kit.namespace.clip_by_value(kit.tensor(np.array(values, dtype), dtype), low, high)
    assert kit.dtype(got) == dtype
    assert kit.array(got).tolist() == [min(max(value, low), high) for value in values]


def test_the_ends_of_an_integer_dtype_are_bounds(kit: Kit) -> None:
    for dtype in kit.integers:
        for end in (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)):
            clipped = kit.namespace.clip_by_value(kit.tensor(np.array([1, 2], dtype), dtype), end, end)
            assert kit.array(clipped).tolist() == [end, end]
