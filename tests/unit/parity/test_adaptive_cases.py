"""Cases with an adaptive rule: their exact results, the verdicts on faulty results, and errors of the suite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from support.parity.cases import case, dense

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.types import Dense

GLOBAL, TENSOR, UNIT = (f"adaptive.clip_by_{name}_norm" for name in ("global", "tensor", "unit"))


def numbers(tensors: Any) -> list[Any]:
    return [tensor.values().tolist() for tensor in tensors]


def test_the_total_norms_the_state_and_the_gradients_of_each_step() -> None:
    steps = [dense([3.0, 4.0]), dense([math.nan, 1.0]), dense([0.0, 40.0])]
    expected = oracle.expect(case(steps, GLOBAL, rule="ema_ratio", warmup_steps=1, alpha=0.5, steps=3))
    assert expected.norm
    assert np.array_equal(expected.norm.values(), [5.0, math.nan, 40.0, 2.0, 7.5], equal_nan=True)
    assert numbers(expected.gradients)[::2] == [[3.0, 4.0], [0.0, 10.0]]
    assert all(map(math.isnan, numbers(expected.gradients)[1]))


def test_adagc_has_a_number_for_each_tensor() -> None:
    steps = [dense([3.0]), dense([4.0]), dense([30.0]), None]
    expected = oracle.expect(case(steps, TENSOR, rule="adagc", warmup_steps=1, ratio=1.5, alpha=0.5, steps=2))
    assert expected.norm
    assert expected.norm.values().tolist() == [5.0, 30.0, 2.0, 0.6000000000000001 * 0.5 + 0.9000000000000001 * 0.5, 0.8]
    assert expected.gradients
    assert [tensor and float(tensor.values()[0]) for tensor in expected.gradients] == [
        float(np.float32(0.6)), float(np.float32(0.8)), float(np.float32(0.9)), None
    ]  # fmt: skip


def test_each_unit_is_limited_by_its_parameter() -> None:
    gradient, parameter = dense([[3.0, 4.0], [0.0, 0.125]]), dense([[6.0, 8.0], [0.0, 2.0]])
    expected = oracle.expect(case([gradient, parameter], UNIT, rule="agc", clip_factor=0.25))
    assert numbers(expected.gradients) == [[[1.5, 2.0], [0.0, 0.125]]]
    tensors = [dense([[3.0, 4.0], [0.0, 3.0]]), dense([[6.0, 3.0], [0.0, 4.0]])]
    columns = oracle.expect(case(tensors, UNIT, rule="agc", clip_factor=0.25, convention="optax"))
    assert numbers(columns.gradients) == [[[1.5, 1.0], [0.0, 0.75]]]


# -- verdicts

STEPS = [dense([0.1, 0.7]), dense([0.3, 0.2]), dense([5.0, 0.1])]
ZCLIP = case(STEPS, GLOBAL, rule="zclip", warmup_steps=2, steps=3)
ADAGC = case(STEPS, TENSOR, rule="adagc", warmup_steps=2, steps=3)
AGC = case([STEPS[0], dense([0.1, 0.1])], UNIT, rule="agc")


def outcome_with(clip_case: Case, totals: list[float] | None = None) -> CallOutcome:
    expected = oracle.expect(clip_case) if totals is None else oracle.after_steps(clip_case, totals)
    return CallOutcome(expected.norm, list(expected.gradients or ()))


def judge(clip_case: Case, outcome: CallOutcome, path: str = "device") -> str:
    return compare_with_exact(clip_case, oracle.expect(clip_case), outcome, path).kind


def totals_with(error: float) -> list[float]:
    first, *later_totals = oracle.expect(ZCLIP).norm.values()[:3].tolist()  # type: ignore[union-attr]
    return [first * (1 + error), *later_totals]


def with_state(outcome: CallOutcome, factor: float) -> CallOutcome:
    assert outcome.norm
    outcome.norm = Dense("float64", np.append(outcome.norm.array[:-1], outcome.norm.array[-1] * factor))
    return outcome


def with_gradient(outcome: CallOutcome, factor: float) -> CallOutcome:
    assert outcome.gradients
    last = outcome.gradients[-1]
    assert last
    outcome.gradients = [*outcome.gradients[:-1], Dense("float32", last.array * np.float32(factor))]
    return outcome


def test_exact_results_are_equal() -> None:
    for clip_case in (ZCLIP, ADAGC, AGC):
        assert judge(clip_case, outcome_with(clip_case), "host") == "equal"


def test_a_result_that_follows_from_norms_within_the_contract_is_close_on_the_device_path_only() -> None:
    within = outcome_with(ZCLIP, totals_with(2.0**-24))
    assert (judge(ZCLIP, within), judge(ZCLIP, within, "host")) == ("close", "different")
    assert judge(ZCLIP, outcome_with(ZCLIP, totals_with(2.0**-21))) == "different"
    assert judge(ZCLIP, with_state(outcome_with(ZCLIP), 1 + 2**-52)) == "different"
    assert judge(ZCLIP, with_gradient(outcome_with(ZCLIP), 1 + 2**-23)) == "different"


def test_adagc_may_have_a_few_times_the_error_of_its_norms_on_the_device_path() -> None:
    for change in (with_state, with_gradient):
        assert judge(ADAGC, change(outcome_with(ADAGC), 1 + 2**-22)) == "close"
        assert judge(ADAGC, change(outcome_with(ADAGC), 1 + 2**-22), "host") == "different"
        assert judge(ADAGC, change(outcome_with(ADAGC), 1 + 2**-18)) == "different"


def test_a_unit_may_follow_from_norms_within_the_contract_on_the_device_path() -> None:
    within = CallOutcome(None, oracle.clipped_by_units(AGC, (1, -1)))
    assert oracle.clipped_by_units(AGC, (1, -1))[0].bits().tolist() != oracle.clipped_by_units(AGC)[0].bits().tolist()  # type: ignore[union-attr]
    assert (judge(AGC, within), judge(AGC, within, "host")) == ("close", "different")
    assert judge(AGC, with_gradient(outcome_with(AGC), 1 + 2**-20)) == "different"
