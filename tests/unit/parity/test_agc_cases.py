"""Cases of adaptive gradient clipping: the exact result, and the verdicts on faulty results."""

from __future__ import annotations

import numpy as np
import pytest
from support.parity.cases import case, dense

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.tensors.types import Dense

UNIT = "adaptive.clip_by_unit_norm"


def test_each_unit_is_limited_by_its_parameter() -> None:
    gradient, parameter = dense([[3.0, 4.0], [0.0, 0.125]]), dense([[6.0, 8.0], [0.0, 2.0]])
    expected = oracle.expect(case([gradient, parameter], UNIT, rule="agc", clip_factor=0.25))
    assert [each.values().tolist() for each in expected.gradients] == [[[1.5, 2.0], [0.0, 0.125]]]
    tensors = [dense([[3.0, 4.0], [0.0, 3.0]]), dense([[6.0, 3.0], [0.0, 4.0]])]
    columns = oracle.expect(case(tensors, UNIT, rule="agc", clip_factor=0.25, convention="optax"))
    assert [each.values().tolist() for each in columns.gradients] == [[[1.5, 1.0], [0.0, 0.75]]]


AGC = case([dense([0.1, 0.7]), dense([0.1, 0.1])], UNIT, rule="agc")


@pytest.mark.parametrize(("shape", "count"), [((1, 2), 1), ((2, 3), 3), ((2, 3, 4), 12), ((2, 3, 4, 5), 5)])
def test_a_unit_of_optax_spans_the_first_axis_or_the_first_three_of_four(shape: tuple[int, ...], count: int) -> None:
    """As in `optax.adaptive_grad_clip`. A vector is one unit."""
    assert len([*oracle.units(shape, "optax")]) == count


def judge(gradients: list[Dense | None], path: str = "device") -> str:
    return compare_with_exact(AGC, oracle.expect(AGC), CallOutcome(None, gradients), path).kind


def test_a_unit_may_follow_from_norms_within_the_contract_on_the_device_path_only() -> None:
    right, within = (oracle.clipped_by_units(AGC, extremes) for extremes in ((0, 0), (1, -1)))
    assert right[0]
    assert within[0]
    assert right[0].bits().tolist() != within[0].bits().tolist()
    assert (judge(right, "host"), judge(within), judge(within, "host")) == ("equal", "close", "different")
    assert judge([Dense("float32", right[0].array * np.float32(1 + 2**-20))]) == "different"
