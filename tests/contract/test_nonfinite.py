"""Gradients and norms that are NaN or infinite."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

INF, NAN = math.inf, math.nan


def results(kit: Kit, lists: list[list[float]], name: str) -> list[list[float]]:
    tensors = [kit.tensor(values) for values in lists]
    if name == "clip_by_global_norm":
        clipped, _ = kit.namespace.clip_by_global_norm(tensors, 1.0)
    elif name == "clip_by_norm":
        clipped = [kit.namespace.clip_by_norm(tensor, 1.0) for tensor in tensors]
    elif name.endswith("clip_"):
        holders = kit.in_place(tensors)
        getattr(kit.namespace, name.removesuffix(".clip_"))(1.0).clip_(holders)
        clipped = kit.kept(holders)
    elif name.startswith("Gradient"):
        clip = getattr(kit.namespace, name)(1.0)
        clipped = [g for _, g in clip([(kit.parameter(), tensor) for tensor in tensors])]
    else:
        holders = kit.in_place(tensors)
        kit.namespace.clip_grad_norm_(holders, 1.0)
        clipped = kit.kept(holders)
    return [kit.array(tensor).tolist() for tensor in clipped]


GLOBAL = ["clip_grad_norm_", "GradientClipByGlobalNorm", "GradientClipByGlobalNorm.clip_"]
EACH = ["clip_by_norm", "GradientClipByNorm", "GradientClipByNorm.clip_"]


@pytest.mark.parametrize("name", GLOBAL)
def test_an_infinite_norm_makes_finite_gradients_zero_and_infinite_ones_nan(kit: Kit, name: str) -> None:
    np.testing.assert_equal(results(kit, [[INF, 1.0], [3.0, -4.0]], name), [[NAN, 0.0], [0.0, -0.0]])


def test_an_infinite_norm_makes_everything_nan_in_clip_by_global_norm(kit: Kit) -> None:
    np.testing.assert_equal(results(kit, [[INF, 1.0], [3.0, -4.0]], "clip_by_global_norm"), [[NAN, NAN], [NAN, NAN]])
    (clipped,), _ = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], 1.0, use_norm=INF)
    np.testing.assert_equal(kit.array(clipped).tolist(), [NAN, NAN])


@pytest.mark.parametrize("name", [*GLOBAL, "clip_by_global_norm"])
def test_a_nan_norm_makes_everything_nan(kit: Kit, name: str) -> None:
    np.testing.assert_equal(results(kit, [[NAN, 1.0], [3.0, INF]], name), [[NAN, NAN], [NAN, NAN]])


@pytest.mark.parametrize("name", EACH)
def test_by_norm_each_gradient_answers_for_itself(kit: Kit, name: str) -> None:
    got = results(kit, [[NAN, 1.0], [INF, 1.0], [3.0, 4.0]], name)
    np.testing.assert_equal(got[:2], [[NAN, NAN], [NAN, 0.0]])
    np.testing.assert_allclose(got[2], [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("name", [*GLOBAL, "clip_by_global_norm"])
def test_finite_gradients_whose_squares_overflow_are_clipped(kit: Kit, name: str) -> None:
    np.testing.assert_allclose(results(kit, [[1e20, 1e20]], name), [[math.sqrt(0.5)] * 2], rtol=1e-6)


@pytest.mark.parametrize("name", GLOBAL)
def test_a_norm_beyond_float32_is_treated_as_infinite(kit: Kit, name: str) -> None:
    assert results(kit, [[3e38, 3e38]], name) == [[0.0, 0.0]]


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


def test_error_if_nonfinite_says_nothing_of_finite_gradients(kit: Kit) -> None:
    holders = kit.in_place([kit.tensor([3.0, 4.0])])
    assert float(kit.array(kit.namespace.clip_grad_norm_(holders, 1.0, error_if_nonfinite=True))) == 5.0


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
