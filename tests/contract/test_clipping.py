"""Clipping from the norm to the gradient: given norms, unchanged gradients, numbers that are not finite, and bounds."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_given_norm_takes_the_place_of_the_measured_one(kit: Kit, as_tensor: bool) -> None:
    given = kit.tensor(10.0) if as_tensor else 10.0
    (clipped,), norm = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], 5.0, use_norm=given)
    np.testing.assert_array_equal(kit.array(clipped), np.array([1.5, 2.0], np.float32))
    assert float(kit.array(norm)) == 10.0
    holders = kit.in_place([kit.tensor([3.0, 4.0])])
    kit.namespace.clip_grads_with_norm_(holders, 5.0, given)
    np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [1.5, 2.0], rtol=1e-6)


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


def test_a_limit_of_zero_gives_zeros_whatever_the_norm_that_is_given(kit: Kit) -> None:
    for limit in (0.0, -0.0):
        (clipped,), norm = kit.namespace.clip_by_global_norm([kit.tensor([3.0, -4.0])], limit, use_norm=0.0)
        assert kit.array(clipped).tobytes() == np.array([0.0, -0.0], np.float32).tobytes()
        assert float(kit.array(norm)) == 0.0
    holders = kit.in_place([kit.tensor([3.0, -4.0])])
    kit.namespace.clip_grad_norm_(holders, -0.0)
    assert kit.bits(kit.kept(holders)[0]) == np.array([0.0, -0.0], np.float32).tobytes()


INF, NAN = math.inf, math.nan


def test_an_infinite_norm_that_is_passed_makes_everything_nan_in_clip_by_global_norm(kit: Kit) -> None:
    (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], 1.0, use_norm=INF)
    np.testing.assert_equal(kit.array(clipped).tolist(), [NAN, NAN])


def test_error_if_nonfinite_names_the_tensors_and_changes_nothing(kit: Kit) -> None:
    from unified_clip import NonFiniteNormError

    lists = [[1.0, 2.0], [NAN, INF, NAN], [3.0, -INF]]
    holders = kit.in_place([kit.tensor(values) for values in lists])
    before = [kit.bits(gradient) for gradient in kit.kept(holders)]
    with pytest.raises(NonFiniteNormError) as caught:
        kit.namespace.clip_grad_norm_(holders, 1.0, error_if_nonfinite=True)
    assert isinstance(caught.value, RuntimeError)
    named = r"(?: \(parameter '[^']+'\))?"  # where parameters have names
    result = rf"position 1{named} has 2 NaN and 1 inf; position 2{named} has 0 NaN and 1 inf"
    assert re.search(result, str(caught.value))
    assert "position 0" not in str(caught.value)
    assert [kit.bits(gradient) for gradient in kit.kept(holders)] == before
    named = dict(zip(("first", "second"), kit.in_place([kit.tensor([1.0]), kit.tensor([INF])]), strict=True))
    with pytest.raises(NonFiniteNormError, match=r"position 1 \(parameter 'second'\) has 0 NaN and 1 inf"):
        kit.namespace.clip_grad_norm_(named, 1.0, error_if_nonfinite=True)
    with pytest.raises(NonFiniteNormError, match="position 1 has 1 NaN"):
        kit.namespace.get_total_norm([kit.tensor([1.0]), kit.tensor([NAN])], error_if_nonfinite=True)
    with pytest.raises(NonFiniteNormError, match="the total norm overflows its dtype"):
        kit.namespace.get_total_norm([kit.tensor([3e38, 3e38])], error_if_nonfinite=True)


@where(lambda kit: kit.differentiates and kit.name != "jax")  # JAX's are tested in its own graphs
@pytest.mark.parametrize("values", [[math.inf, 1.0], [math.nan, 1.0], [3.0, 4.0]])
def test_an_infinite_threshold_that_is_not_read_measures_only(kit: Kit, values: list[float]) -> None:
    gradient = kit.tensor(values)
    result = []

    def function(threshold: Any) -> Any:
        clipped, norm = kit.namespace.clip_by_global_norm([gradient], threshold)
        result.extend([clipped[0], kit.namespace.clip_by_norm(gradient, threshold)])
        return norm * threshold

    kit.derivative(function, kit.tensor(math.inf))
    for clipped in result:
        assert kit.bits(clipped) == kit.bits(gradient)


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


def test_tensor_bounds_of_integers_have_their_dtype(kit: Kit) -> None:
    tensor = kit.tensor([1, 2], "int8")
    got = kit.namespace.clip_by_value(tensor, kit.tensor([2, 0], "int8"), 5)
    assert kit.array(got).tolist() == [2, 2]
    if "int64" in kit.integers:
        got = kit.namespace.clip_by_value(kit.tensor([2**60], "int64"), 0, kit.tensor(2**53 + 1, "int64"))
        assert kit.array(got).tolist() == [2**53 + 1]
