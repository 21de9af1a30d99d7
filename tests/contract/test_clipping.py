"""Clipping from the norm to the gradient: the coefficient, the product, and gradients that stay unchanged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import reference
from support.kits import Kit

EPS = 1e-6


def lists(kit: Kit) -> dict[str, list[np.ndarray]]:
    random = np.random.default_rng(7)

    def some(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        values = random.standard_normal(shape) * 3
        return reference.array(values + 1j * random.standard_normal(shape) if "complex" in dtype else values, dtype)

    every = kit.floating + kit.complex
    named = {dtype: [some(dtype, (5, 7)), some(dtype, ()), some(dtype, (0, 2)), some(dtype, (300,))] for dtype in every}
    return named | {"mixed": [some(dtype, (11,)) for dtype in every]}


def expected(arrays: list[np.ndarray], limit: float, eps: float) -> list[np.ndarray]:
    coef = reference.coefficient(reference.norm(arrays), limit, eps)
    return [reference.scaled(array, coef) for array in arrays]


def check(kit: Kit, got: list[object], expected_result: list[np.ndarray], *, exact: bool | None = None) -> None:
    """Compare bits. On the device path, the norm can be off by 1 ULP."""
    for tensor, array in zip(got, expected_result, strict=True):
        result = kit.array(tensor)
        assert result.shape == array.shape
        assert result.dtype == array.dtype
        if kit.exact if exact is None else exact:
            assert result.tobytes() == array.tobytes()
        else:
            wide = np.complex128 if np.iscomplexobj(array) else np.float64
            spacing = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 2e-12, "complex128": 2e-12}
            smallest = 2.0**-24 if array.dtype.name == "float16" else 0.0
            np.testing.assert_allclose(
                result.astype(wide), array.astype(wide), rtol=spacing.get(array.dtype.name, 2.0**-22), atol=smallest
            )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "mixed"])
@pytest.mark.parametrize("limit", [0.1, 1.0, 1e-4])
def test_every_family_clips_by_its_own_coefficient(kit: Kit, name: str, limit: float) -> None:
    if name not in lists(kit):
        return
    arrays = lists(kit)[name]
    namespace = kit.namespace

    clipped, norm = namespace.clip_by_global_norm([kit.tensor(a, a.dtype.name) for a in arrays], limit)
    check(kit, clipped, expected(arrays, limit, 0.0))
    if kit.exact:
        assert float(kit.array(norm)) == reference.norm(arrays)

    holders = kit.in_place([kit.tensor(a, a.dtype.name) for a in arrays])
    norm = namespace.clip_grad_norm_(holders, limit)
    check(kit, kit.kept(holders), expected(arrays, limit, EPS))
    if kit.exact:
        assert float(kit.array(norm)) == reference.norm(arrays)

    pairs = [(kit.parameter(), kit.tensor(a, a.dtype.name)) for a in arrays]
    check(kit, [g for _, g in namespace.GradientClipByGlobalNorm(limit)(pairs)], expected(arrays, limit, 0.0))
    alone = [expected([a], limit, 0.0)[0] for a in arrays]
    check(kit, [g for _, g in namespace.GradientClipByNorm(limit)(pairs)], alone)
    check(kit, [namespace.clip_by_norm(kit.tensor(a, a.dtype.name), limit) for a in arrays], alone)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "mixed"])
def test_at_or_below_the_threshold_every_bit_is_kept(kit: Kit, name: str) -> None:
    if name not in lists(kit):
        return
    arrays = [*lists(kit)[name], reference.array([-0.0, 0.0], "float32")]
    n = reference.norm(arrays)
    tensors = [kit.tensor(a, a.dtype.name) for a in arrays]
    for limit in (n, n * 1.5, math.inf) if kit.exact else (n * 1.5, math.inf):
        clipped, _ = kit.namespace.clip_by_global_norm(tensors, limit)
        check(kit, clipped, arrays, exact=True)
        for clip in (kit.namespace.GradientClipByGlobalNorm(limit), kit.namespace.GradientClipByNorm(limit)):
            pairs = [(kit.parameter(), tensor) for tensor in tensors]
            check(kit, [g for _, g in clip(pairs)], arrays, exact=True)
    for limit in (n + EPS, n * 1.5, math.inf) if kit.exact else (n * 1.5, math.inf):
        holders = kit.in_place([kit.tensor(a, a.dtype.name) for a in arrays])
        kit.namespace.clip_grad_norm_(holders, limit)
        check(kit, kit.kept(holders), arrays, exact=True)


def test_only_pytorch_names_add_eps_to_the_norm(kit: Kit) -> None:
    # With a norm of 1e-6, eps halves the result.
    tiny = np.array([1e-6, 0.0], np.float32)
    (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor(tiny)], 1e-7)
    assert float(kit.array(clipped)[0]) == pytest.approx(1e-7, rel=1e-6)
    assert float(kit.array(kit.namespace.clip_by_norm(kit.tensor(tiny), 1e-7))[0]) == pytest.approx(1e-7, rel=1e-6)
    for clip in (kit.namespace.GradientClipByGlobalNorm(1e-7), kit.namespace.GradientClipByNorm(1e-7)):
        ((_, clipped),) = clip([(kit.parameter(), kit.tensor(tiny))])
        assert float(kit.array(clipped)[0]) == pytest.approx(1e-7, rel=1e-6)
        holders = kit.in_place([kit.tensor(tiny)])
        clip.clip_(holders)
        assert float(kit.array(kit.kept(holders)[0])[0]) == pytest.approx(1e-7, rel=1e-6)
    holders = kit.in_place([kit.tensor(tiny)])
    kit.namespace.clip_grad_norm_(holders, 1e-7)
    assert float(kit.array(kit.kept(holders)[0])[0]) == pytest.approx(0.5e-7, rel=1e-6)


def test_the_coefficient_is_not_rounded_to_the_gradients_dtype(kit: Kit) -> None:
    for dtype in ("float16", "bfloat16"):
        array = reference.array(np.arange(1, 200), dtype)
        (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor(array, dtype)], 1.0, use_norm=3.0)
        assert kit.bits(clipped) == reference.scaled(array, 1 / 3).tobytes()


@pytest.mark.parametrize("p", [1, 2, math.inf, 3])
def test_the_norm_after_clipping_is_within_the_limit(kit: Kit, p: float) -> None:
    random = np.random.default_rng(3)
    for limit in (1e-3, 0.5, 7.0):
        holders = kit.in_place([kit.tensor(random.standard_normal(1000)), kit.tensor(random.standard_normal(3))])
        before = float(kit.array(kit.namespace.clip_grad_norm_(holders, limit, p)))
        after = float(kit.array(kit.namespace.get_total_norm(kit.kept(holders), p)))
        assert after <= limit * (1 + 2.0**-22)
        assert after >= min(limit, before) * (1 - 1e-5)


def test_clipping_by_a_measured_norm_is_clip_grad_norm_(kit: Kit) -> None:
    for arrays in lists(kit).values():
        holders, again = (kit.in_place([kit.tensor(a, a.dtype.name) for a in arrays]) for _ in range(2))
        norm = kit.namespace.get_total_norm(kit.kept(holders))
        assert kit.namespace.clip_grads_with_norm_(holders, 0.3, norm) is None
        kit.namespace.clip_grad_norm_(again, 0.3)
        for one, other in zip(kit.kept(holders), kit.kept(again), strict=True):
            if kit.exact or kit.dtype(one) != "complex128":
                assert kit.bits(one) == kit.bits(other)
            else:  # on the device path, a sum of 64-bit numbers depends on where their memory begins
                np.testing.assert_allclose(kit.array(one), kit.array(other), rtol=1e-15)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_given_norm_takes_the_place_of_the_measured_one(kit: Kit, as_tensor: bool) -> None:
    given = kit.tensor(10.0) if as_tensor else 10.0
    (clipped,), norm = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], 5.0, use_norm=given)
    np.testing.assert_array_equal(kit.array(clipped), np.array([1.5, 2.0], np.float32))
    assert float(kit.array(norm)) == 10.0
    holders = kit.in_place([kit.tensor([3.0, 4.0])])
    kit.namespace.clip_grads_with_norm_(holders, 5.0, given)
    np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [1.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize("form", ["int", "float", "numpy", "array", "tensor", "one element"])
def test_a_threshold_may_be_any_number(kit: Kit, form: str) -> None:
    limit = {
        "int": 1, "float": 1.0, "numpy": np.float32(1), "array": np.array(1.0), "tensor": kit.tensor(1.0),
        "one element": kit.tensor([1.0]),
    }[form]  # fmt: skip
    (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], limit)
    np.testing.assert_array_equal(kit.array(clipped), np.array([0.6, 0.8], np.float32))
    holders = kit.in_place([kit.tensor([3.0, 4.0])])
    kit.namespace.clip_grad_norm_(holders, limit)
    np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [0.6, 0.8], rtol=1e-6)
    if kit.reads_tensors or form not in ("tensor", "one element"):
        ((_, clipped),) = kit.namespace.GradientClipByNorm(limit)([(kit.parameter(), kit.tensor([3.0, 4.0]))])
        np.testing.assert_array_equal(kit.array(clipped), np.array([0.6, 0.8], np.float32))
    else:
        with pytest.raises(TypeError, match="clip_norm is a tensor on a device or in a graph, so its value"):
            kit.namespace.GradientClipByNorm(limit)


def test_a_threshold_of_zero_gives_zeros_and_never_nan(kit: Kit) -> None:
    for values in ([3.0, -4.0], [0.0, 0.0]):
        clipped, _ = kit.namespace.clip_by_global_norm([kit.tensor(values)], 0)
        results = [*clipped, kit.namespace.clip_by_norm(kit.tensor(values), 0)]
        results += [kit.namespace.clip_by_value(kit.tensor(values), 0, 0)]
        for clip in (kit.namespace.GradientClipByNorm(0), kit.namespace.GradientClipByGlobalNorm(0)):
            results += [g for _, g in clip([(kit.parameter(), kit.tensor(values))])]
        for function in (kit.namespace.clip_grad_norm_, kit.namespace.clip_grad_value_):
            holders = kit.in_place([kit.tensor(values)])
            function(holders, 0)
            results += kit.kept(holders)
        for result in results:
            np.testing.assert_array_equal(kit.array(result), [0.0, 0.0])


def test_an_infinite_threshold_measures_only(kit: Kit) -> None:
    for values in ([3.0, 4.0], [math.inf, 1.0], [math.nan, 1.0], [1e-40, -0.0]):
        tensor = kit.tensor(values)
        (clipped,), norm = kit.namespace.clip_by_global_norm([tensor], math.inf)
        assert kit.bits(clipped) == kit.bits(tensor)
        expected_norm = reference.norm([np.array(values, np.float32)])
        if kit.exact:
            np.testing.assert_equal(float(kit.array(norm)), expected_norm)
        for result in (
            kit.namespace.clip_by_norm(tensor, math.inf),
            kit.namespace.clip_by_value(tensor, -math.inf, math.inf),
        ):
            assert kit.bits(result) == kit.bits(tensor)
        for function in (kit.namespace.clip_grad_norm_, kit.namespace.clip_grad_value_):
            holders = kit.in_place([kit.tensor(values)])
            function(holders, math.inf)
            assert kit.bits(kit.kept(holders)[0]) == kit.bits(tensor)
        pair = (kit.parameter(), tensor)
        for clip in (
            kit.namespace.GradientClipByNorm,
            kit.namespace.GradientClipByGlobalNorm,
            kit.namespace.GradientClipByValue,
        ):
            assert clip(math.inf)([pair])[0][1] is tensor


def test_a_huge_threshold_is_no_special_case(kit: Kit) -> None:
    for limit in (8.6e37, 1e39, 1e300):
        (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], limit)
        assert kit.array(clipped).tolist() == [3.0, 4.0]


def test_a_coefficient_too_small_for_float32_is_zero(kit: Kit) -> None:
    (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor([2e38, 2e38])], 1e-8)
    assert kit.array(clipped).tolist() == [0.0, 0.0]


def test_16_bit_gradients_below_the_threshold_do_not_overflow(kit: Kit) -> None:
    for values, limit in (([10.0], 7000), ([200.0], 400), ([300.0], 1000), ([60000.0, 60000.0], 1e6)):
        tensor = kit.tensor(values, "float16")
        assert kit.array(kit.namespace.clip_by_norm(tensor, limit)).tolist() == values
        assert kit.array(kit.namespace.clip_by_global_norm([tensor], limit)[0][0]).tolist() == values


def test_subnormal_gradients_are_kept_and_scaled(kit: Kit) -> None:
    if not (kit.exact or kit.keeps_subnormals_on_device):
        return
    array = np.array([1e-40, 3e-41, 1e-45], np.float32)
    for limit in (1.0, 1e-41):
        (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor(array)], limit)
        check(kit, [clipped], expected([array], limit, 0.0))
        holders = kit.in_place([kit.tensor(array)])
        kit.namespace.clip_grad_norm_(holders, limit)
        check(kit, kit.kept(holders), expected([array], limit, EPS))


def test_foreach_name_and_auto_skip_clip_change_nothing(kit: Kit) -> None:
    tensors = [kit.tensor([3.0, 4.0])]
    plain, _ = kit.namespace.clip_by_global_norm(tensors, 1.0)
    assert kit.bits(kit.namespace.clip_by_global_norm(tensors, 1.0, name="scope")[0][0]) == kit.bits(plain[0])
    for foreach in (None, True, False):
        holders = kit.in_place([kit.tensor([3.0, 4.0])])
        kit.namespace.clip_grad_norm_(holders, 1.0, foreach=foreach)
        np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [0.6, 0.8], rtol=1e-6)
    for skip in (False, True):
        clip = kit.namespace.GradientClipByGlobalNorm(1.0, auto_skip_clip=skip)
        assert kit.bits(clip([(kit.parameter(), tensors[0])])[0][1]) == kit.bits(plain[0])


@pytest.mark.parametrize("axes", [0, 1, -1, [0], [1, 2], (0, 2), [0, 1, 2], []])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_axes_clip_each_slice_by_its_own_norm(kit: Kit, axes: object, dtype: str) -> None:
    if dtype not in kit.floating + kit.complex:
        return
    values = np.random.default_rng(5).standard_normal((4, 5, 6))
    array = reference.array(values, dtype)
    array[0] *= 0  # a slice of zeros
    got = kit.array(kit.namespace.clip_by_norm(kit.tensor(array, dtype), 1.5, axes=axes))
    reduced = {axis % 3 for axis in ([axes] if isinstance(axes, int) else axes)}  # type: ignore[union-attr]
    expected_result = array.copy()
    for index in np.ndindex(*(1 if axis in reduced else n for axis, n in enumerate(array.shape))):
        where = tuple(slice(None) if axis in reduced else slice(i, i + 1) for axis, i in enumerate(index))
        expected_result[where] = expected([array[where]], 1.5, 0.0)[0]
    check(kit, [kit.tensor(got, dtype)], [expected_result])


def test_a_slice_on_a_rounding_boundary_is_exact_too(kit: Kit) -> None:
    row = [2.0**24, 2.0**12, 2.0**12] + 70 * [2.0**-3]
    array = np.array([row, row[::-1], [1.0] * len(row)], np.float32)
    got = kit.namespace.clip_by_norm(kit.tensor(array), 3.0, axes=[1])
    check(kit, [got], [np.stack([expected([r], 3.0, 0.0)[0] for r in array])])


def test_results_do_not_share_memory_with_the_input(kit: Kit) -> None:
    if not kit.writable:
        return
    tensor = kit.tensor([0.3, 0.4])
    results = [kit.namespace.clip_by_global_norm([tensor], limit)[0][0] for limit in (1.0, math.inf, 0.1)]
    results += [kit.namespace.clip_by_norm(tensor, limit) for limit in (1.0, math.inf, 0.1)]
    results += [kit.namespace.clip_by_value(tensor, -limit, limit) for limit in (1.0, math.inf, 0.1)]
    before = [kit.bits(result) for result in results]
    kit.namespace.clip_grad_value_(kit.in_place([tensor]), 0.0)
    assert [kit.bits(result) for result in results] == before


def test_a_class_returns_the_object_it_was_given_where_nothing_changes(kit: Kit) -> None:
    if not kit.exact:
        return
    tensor = kit.tensor([0.3, 0.4])
    for clip in (kit.namespace.GradientClipByNorm(1.0), kit.namespace.GradientClipByGlobalNorm(1.0)):
        assert clip([(kit.parameter(), tensor)])[0][1] is tensor


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_slices_of_extreme_float64_neither_overflow_nor_underflow(kit: Kit, scale: float) -> None:
    if "float64" not in kit.floating:
        return
    array = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]) * scale
    got = kit.namespace.clip_by_norm(kit.tensor(array, "float64"), scale, axes=1)
    expected_result = np.array([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]) * scale
    np.testing.assert_allclose(kit.array(got), expected_result, rtol=1e-12)


def test_a_zero_size_gradient_still_counts_for_the_dtype(kit: Kit) -> None:
    if "float64" not in kit.floating:
        return
    norms = []
    for function in (kit.namespace.get_total_norm, lambda g: kit.namespace.clip_grad_norm_(kit.in_place(g), 0.1)):
        norms.append(function([kit.tensor(np.zeros(0), "float64"), kit.tensor([0.1, 0.2])]))
    in_place = "float64" if kit.keeps_empty_gradients else "float32"
    assert [kit.dtype(norm) for norm in norms] == ["float64", in_place]
    assert kit.array(norms[0]).astype(in_place).tobytes() == kit.bits(norms[1])


def test_a_limit_of_zero_gives_zeros_whatever_the_norm_that_is_given(kit: Kit) -> None:
    for limit in (0.0, -0.0):
        (clipped,), norm = kit.namespace.clip_by_global_norm([kit.tensor([3.0, -4.0])], limit, use_norm=0.0)
        assert kit.array(clipped).tobytes() == np.array([0.0, -0.0], np.float32).tobytes()
        assert float(kit.array(norm)) == 0.0
    holders = kit.in_place([kit.tensor([3.0, -4.0])])
    kit.namespace.clip_grad_norm_(holders, -0.0)
    assert kit.bits(kit.kept(holders)[0]) == np.array([0.0, -0.0], np.float32).tobytes()
