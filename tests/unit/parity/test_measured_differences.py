"""The distance of a framework's function from the exact result: its kind and its size."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from support.parity.cases import case, dense

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle
from unified_clip.parity.known import measure
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.schema import CaseOptions
from unified_clip.tensors.types import Sparse

GLOBAL = case([dense([3.0, 4.0]), None], "clip_by_global_norm", clip_norm=2.5)


def measure_outcome(result: CallOutcome, clip_case: Case = GLOBAL) -> tuple[str, float]:
    difference = measure.measure(clip_case, oracle.expect(clip_case), dataclasses.replace(result, name="native"))
    assert difference is not None
    assert difference.function == "native"
    return difference.kind, difference.finite_size


def test_the_distance_of_a_frameworks_function_is_measured() -> None:
    assert measure.measure(GLOBAL, oracle.expect(GLOBAL), CallOutcome()) is None
    assert measure_outcome(CallOutcome(dense(5.0), [dense([1.5, 2.0]), None])) == ("", 0.0)
    assert measure_outcome(CallOutcome(dense(5.0 + 2.0**-21), [dense([1.5, 2.0]), None])) == ("", 0.0)
    for size, kind in ((0.8e-5, ""), (1.2e-5, "value")):
        assert measure_outcome(CallOutcome(dense(5.0 * (1 + size)), [dense([1.5, 2.0]), None]))[0] == kind
    assert measure_outcome(CallOutcome(dense(6.0), [dense([1.5, 1.0]), None])) == ("value", 0.5)
    assert measure_outcome(CallOutcome(dense(6.0), [dense([1.5, 2.0]), None])) == ("value", 0.2)
    assert measure_outcome(CallOutcome(dense(math.inf), [dense([math.nan, 2.0]), None])) == ("value", 0.0)
    assert measure_outcome(CallOutcome(dense(math.inf), [dense([3.0, 4.0]), None])) == ("value", 1.0)
    assert measure_outcome(CallOutcome(None, [dense([1.5, 2.0]), None])) == ("", 0.0)


def deviation_of(norm: float, *results: list[Any] | None, clip_case: Case = GLOBAL, fault: str = "") -> NativeDeviation:
    tensors = [None if values is None else dense(values) for values in results]
    difference = measure.measure(
        clip_case, oracle.expect(clip_case), CallOutcome(dense(norm), tensors, name="native", fault=fault)
    )
    assert difference is not None
    return difference


def test_inf_and_nan_are_measured_separately_from_finite_numbers() -> None:
    inf, nan = math.inf, math.nan
    deviations = {
        "norm": deviation_of(inf, [1.5, 2.0], None),
        "gradients": deviation_of(5.0, [nan, 4.0], None),
        "norm and gradients": deviation_of(nan, [inf, 2.0], None),
        "": deviation_of(6.0, [1.5, 2.0], None),
    }
    assert all(each.not_finite == where for where, each in deviations.items())
    assert [each.finite_size for each in deviations.values()] == [0.0, 1.0, 0.0, 0.2]
    equal = [[np.array([inf, nan, 1.0])] for _ in range(2)]
    assert measure.measured_difference(*equal, inputs=[]) == measure.MeasuredDifference()


def test_the_distance_of_a_gradient_is_relative_to_that_gradient() -> None:
    two_gradients = case([dense([3e4, 4e4]), dense([0.1, 0.2])], "clip_by_global_norm", clip_norm=25.0)
    small = [float(value) for value in dense([5e-5, 1e-4]).values()]
    lost = deviation_of(5e4, [15.0, 20.0], [0.0, 0.0], clip_case=two_gradients)
    assert (lost.kind, lost.finite_size, lost.gradients) == ("value", 1.0, 1.0)
    assert deviation_of(5e4, [15.0, 20.0], [small[1], small[1]], clip_case=two_gradients).finite_size == pytest.approx(
        0.5
    )
    assert deviation_of(5e4, [15.0, 20.0], small, clip_case=two_gradients).kind == ""


def test_a_zeroed_gradient_differs_even_if_the_exact_one_underflows() -> None:
    clip_case = case([dense([3.0, 4.0]), dense([1e-45])], "clip_by_global_norm", clip_norm=0.01)
    assert [oracle.expect(clip_case).gradients[1].values().tolist()] == [[0.0]]
    assert deviation_of(5.0, [0.006, 0.008], [1e-45], clip_case=clip_case).finite_size == 1.0  # relative to the input
    clip_case = case([dense([3.0, 4.0]), dense([1e-9])], "clip_by_global_norm", clip_norm=1e-36)
    kept = deviation_of(5.0, [6e-37, 8e-37], [1e-9], clip_case=clip_case)
    assert kept.finite_size > 1e26  # relative to the other gradients, which are smaller than the input


def test_a_number_in_a_gradient_of_zeros_is_no_rounding() -> None:
    clip_case = case([dense([3.0, 4.0]), dense([0.0])], "clip_by_global_norm", clip_norm=2.5)
    difference = deviation_of(5.0, [1.5, 2.0], [1e-6], clip_case=clip_case)
    assert difference.kind == "value"
    assert difference.finite_size == pytest.approx(5e-7)
    assert deviation_of(5.0, [1.5, 2.0], [-0.0], clip_case=clip_case).kind == ""


def test_a_function_that_returns_other_shapes_differs_in_form_and_its_numbers_are_compared() -> None:
    expected = {
        "form": [
            deviation_of(5.0, [[1.5, 2.0]], None),
            deviation_of(5.0, [1.5, 2.0]),
            deviation_of(5.0, [1.5, 2.0], [0.0]),
            deviation_of(5.0, [1.5, 2.0], None, fault="gradient 0 is float64 instead of float32"),
        ],
        "elements": [deviation_of(5.0, [1.5, 2.0, 0.0], None), deviation_of(5.0, [1.5, 2.0], [1.0])],
    }
    for kind, deviations in expected.items():
        assert [(each.kind, each.finite_size) for each in deviations] == [(kind, 0.0)] * len(deviations)
    assert deviation_of(5.0, [[10.5, 14.0]], None).finite_size == 6.0
    assert deviation_of(5.0, [[math.nan, 2.0]], None).not_finite == "gradients"
    assert deviation_of(5.0, [10.5, 14.0], [0.0]).finite_size == 6.0
    assert deviation_of(6.0, [1.5, 2.0, 0.0], None).finite_size == 0.2
    details = [each.detail for each in (*expected["form"], *expected["elements"])]
    assert details == [
        "gradient 0 has the shape [1, 2] instead of [2]",
        "1 gradient instead of 2",
        "gradient 1 is float32[1] instead of None",
        "gradient 0 is float64 instead of float32",
        "gradient 0 has the shape [3] instead of [2]",
        "gradient 1 is float32[1] instead of None",
    ]


def test_a_function_that_changes_unclipped_gradients_has_the_kind_touched() -> None:
    below = dataclasses.replace(GLOBAL, arguments={"clip_norm": 7.0})
    assert measure_outcome(CallOutcome(dense(5.0), [dense([3.0, 4.0]), None]), below) == ("", 0.0)
    assert measure_outcome(CallOutcome(dense(5.0), [dense([3.0, 4.0 + 2.0**-21]), None]), below) == (
        "touched",
        2.0**-23,
    )


def test_a_function_that_raises_returns_or_does_not_warn_as_unified_clip_has_its_kind() -> None:
    raised = CallOutcome(raised=["ValueError"], message="ValueError: so", name="native")
    rejected = dataclasses.replace(GLOBAL, options=CaseOptions(raises="ValueError"))
    warned = dataclasses.replace(GLOBAL, options=CaseOptions(warns=True))
    exact = CallOutcome(dense(5.0), [dense([1.5, 2.0]), None], name="native")
    kinds = {}
    for name, clip_case, outcome_ in (
        ("raises", GLOBAL, raised),
        ("both raise", rejected, raised),
        ("returns", rejected, exact),
        ("silent", warned, exact),
    ):
        difference = measure.measure(clip_case, oracle.expect(clip_case), outcome_)
        assert difference is not None
        kinds[name] = difference.kind
    assert kinds == {name: "" if name == "both raise" else name for name in kinds}


def test_a_differently_rounded_sum_of_rows_is_no_touched_gradient() -> None:
    def deviation_of_rows(rows: list[int]) -> NativeDeviation | None:
        sparse = Sparse(np.array(rows, np.int64), dense([[0.1], [0.2]]), (3, 1))
        clip_case = case([sparse], "clip_by_global_norm", clip_norm=10.0)
        expected = oracle.expect(clip_case)
        off = [dense(each.values() * (1 + 2.0**-23)) for each in expected.gradients or [] if each]
        return measure.measure(clip_case, expected, CallOutcome(expected.norm, off, name="clip"))

    repeated, single = deviation_of_rows([1, 1]), deviation_of_rows([0, 1])
    assert repeated
    assert single
    assert (repeated.kind, bool(repeated.gradients)) == ("", True)
    assert single.kind == "touched"
