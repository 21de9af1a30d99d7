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
