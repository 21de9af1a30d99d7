"""Results of unified_clip are compared with the exact result, stage by stage."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from support.parity.cases import case, dense

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import judged_result, oracle, worst_element
from unified_clip.parity.judge.verdict import coefficients, compare_with_exact
from unified_clip.parity.modes import COMPILED, DEVICE, HOST
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.schema import CaseOptions, FrameworkTable
from unified_clip.parity.workers.worker_files import WorkItem
from unified_clip.tensors import ulp
from unified_clip.tensors.types import Sparse


def outcome(norm: float | None, *gradients: Any, dtype: str = "float32") -> CallOutcome:
    return CallOutcome(None if norm is None else dense(norm, dtype), [dense(gradient, dtype) for gradient in gradients])


def verdict_of(clip_case: Case, outcome_: CallOutcome, framework: str = "torch", path: str = DEVICE) -> str:
    flushes = framework == "tensorflow"
    return compare_with_exact(clip_case, oracle.expect(clip_case), outcome_, path, flushes=flushes).kind


def test_ulps_count_the_numbers_between_two_results() -> None:
    def apart(a: float, b: float, dtype: str = "float32") -> float:
        return ulp.ulps([dense([7.0, a], dtype)], [dense([7.0, b], dtype)])

    assert apart(1.0, 1.0 + 2.0**-23) == 1
    assert apart(1.0, 1.0 - 2.0**-23) == 2
    assert apart(0.0, -0.0) == 1
    assert apart(2.0**-149, -(2.0**-149)) == 3
    assert apart(1.0, -1.0, "float64") == float(2 * 0x3FF0000000000000 + 1)
    assert apart(1.0, 1.0078125, "bfloat16") == 1
    assert apart(math.nan, math.nan) == 0
    assert apart(math.nan, 1.0) == math.inf


def test_on_the_device_path_a_norm_may_be_the_next_number() -> None:
    clip_case = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5)
    near, far = 5.0 + 2.0**-21, 5.0 + 2.0**-20
    follows, above = ([v * float(np.float32(2.5 / n)) for v in (3.0, 4.0)] for n in (near, far))
    assert verdict_of(clip_case, outcome(5.0, [1.5, 2.0])) == "equal"
    assert verdict_of(clip_case, outcome(near, follows)) == "close"
    assert verdict_of(clip_case, outcome(near, follows), path=HOST) == "different"
    by_kernels = dataclasses.replace(outcome(near, follows), exact_norm=True)
    assert verdict_of(clip_case, by_kernels, path=COMPILED) == "different"
    assert verdict_of(clip_case, outcome(near, [1.5, 2.0])) == "different"
    assert verdict_of(clip_case, outcome(5.0, follows)) == "different"
    assert verdict_of(clip_case, outcome(far, above)) == "different"


def test_on_the_device_path_a_float64_norm_may_be_off_by_1e_12() -> None:
    clip_case = case([dense([3.0, 4.0], "float64")], "global_norm")
    near, far = (CallOutcome(dense(5.0 * (1 + error), "float64")) for error in (9e-13, 1.1e-12))
    assert [verdict_of(clip_case, near), verdict_of(clip_case, far)] == ["close", "different"]


@pytest.mark.parametrize(("ulps", "kind"), [(0, "equal"), (4, "close"), (5, "different")])
def test_on_the_device_path_a_sum_of_sparse_rows_rounds_once_more(ulps: int, kind: str) -> None:
    clip_case = case([Sparse(np.array([0, 0]), dense([[3.0], [4.0]]), (1, 1))], "clip_by_norm", clip_norm=3.5)
    assert verdict_of(clip_case, outcome(None, [[3.5 + ulps * 2.0**-22]])) == kind


def test_without_a_returned_norm_gradients_may_follow_from_a_norm_one_ulp_away() -> None:
    clip_case = case([dense([3.0, 4.0])], "clip_by_norm", clip_norm=2.5)
    for n, kind in ((5.0 + 2.0**-21, "close"), (5.0 - 2.0**-21, "close"), (5.0 + 2.0**-20, "different")):
        coef = float(np.float32(2.5 / n))
        assert verdict_of(clip_case, outcome(None, [3.0 * coef, 4.0 * coef])) == kind
    half = case([dense([3.0, 4.0], "float16")], "clip_by_norm", clip_norm=0.7)
    coef = float(np.float32(0.7 / (5.0 * 1.0005)))
    assert verdict_of(half, outcome(None, [3.0 * coef, 4.0 * coef], dtype="float16")) == "different"
    wide = case([dense([3.0, 4.0], "float64")], "clip_by_norm", clip_norm=2.5)
    assert verdict_of(wide, outcome(None, [1.5 * (1 + 9e-13), 2.0], dtype="float64")) == "close"
    assert verdict_of(wide, outcome(None, [1.5 * (1 + 3e-12), 2.0], dtype="float64")) == "different"
    by_value = case([dense([3.0, 4.0])], "clip_by_value", clip_value_min=0.0, clip_value_max=2.5)
    assert verdict_of(by_value, outcome(None, [2.5, 2.5 + 2.0**-22])) == "different"


def test_only_frameworks_that_flush_may_flush_in_cases_marked_as_subnormal() -> None:
    gradients = [dense([1e-40, 1.0])]
    marked = case(gradients, "clip_by_norm", subnormal=True, clip_norm=0.5)
    flushed = outcome(None, [0.0, 0.5])
    assert verdict_of(marked, flushed, "tensorflow") == "flushed"
    assert verdict_of(marked, flushed, "torch") == "different"
    assert verdict_of(marked, flushed, "tensorflow", HOST) == "different"
    assert verdict_of(dataclasses.replace(marked, options=CaseOptions()), flushed, "tensorflow") == "different"
    assert verdict_of(marked, outcome(None, [0.0, 0.75]), "tensorflow") == "different"


def test_a_coefficient_is_measured_at_the_largest_element() -> None:
    clip_case = case([dense([3.0, -4.0]), None, dense([0.0, math.inf])], "clip_by_norm", clip_norm=1.0)
    clipped = [dense([1.5, -1.0]), None, dense([0.0, math.nan])]
    assert coefficients(clip_case, clipped) == [0.25, 1.0, 1.0]


def test_stages_are_compared_separately() -> None:
    clip_case = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5, update=True)
    result = dataclasses.replace(outcome(5.0, [1.5, 2.0 + 2.0**-22]), update=[dense([0.25, 0.0])])
    verdict = compare_with_exact(clip_case, oracle.expect(clip_case), result, HOST)
    assert verdict.stages == {"norm": 0.0, "coefficient": 2.0**-23, "tensors": 1.0, "update": 0.0}
    assert verdict.detail == "coefficient off by 1.19e-07 (relative), tensors off by 1 ULP"


@pytest.mark.parametrize(
    ("update", "detail"),
    [
        (None, "0 parameters instead of 1"),
        ([dense([[0.25, 0.0]])], "parameter 0 has the shape [1, 2] instead of [2]"),
    ],
)
def test_an_update_without_parameters_or_with_other_shapes_is_different(update: Any, detail: str) -> None:
    clip_case = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5, update=True)
    result = dataclasses.replace(outcome(5.0, [1.5, 2.0]), update=update)
    verdict = compare_with_exact(clip_case, oracle.expect(clip_case), result, HOST)
    assert (verdict.kind, verdict.detail) == ("different", detail)


@pytest.mark.parametrize(("size", "is_kept"), [(4, True), (1 << 20, False)])
def test_long_lists_keep_verdicts_and_numbers_without_tensors(size: int, is_kept: bool) -> None:
    clip_case = case([dense(np.ones(size))], "clip_grad_norm_", max_norm=0.5)
    expected = oracle.expect(clip_case)
    result = CallOutcome(dense(1.0), list(expected.gradients or ()))
    judged = judged_result.judge_result(WorkItem(HOST, clip_case), expected, result, FrameworkTable(), ())
    assert judged.result
    assert judged.result.verdict == "different"
    assert (judged.outcome is result, judged.outcome is None) == (is_kept, not is_kept)
    numbers = judged.result.details or judged_result.worst_elements(clip_case, expected, {HOST: judged})[HOST]
    assert (numbers.stage, numbers.ours and numbers.ours.value) == ("norm", 1.0)


def test_long_lists_are_compared_tensor_by_tensor() -> None:
    clip_case = case([dense(np.full(1 << 15, number)) for number in range(1, 33)], "clip_grad_norm_", max_norm=1.0)
    expected = oracle.expect(clip_case)
    tensors = [dense(tensor.values() * (1 + 2.0**-20)) for tensor in expected.gradients or () if tensor]
    result = CallOutcome(expected.norm, [*tensors])
    assert oracle.is_long_vector(clip_case)
    assert expected.digests != result.digests
    tracemalloc.start()
    try:
        assert compare_with_exact(clip_case, expected, result, HOST).kind == "different"
        assert worst_element.find_worst_element(clip_case, expected, {HOST: result}, [HOST])
        assert tracemalloc.get_traced_memory()[1] < sum(tensor.array.nbytes for tensor in tensors) / 2
    finally:
        tracemalloc.stop()


def test_on_the_device_path_an_update_has_to_follow_from_the_frameworks_gradients() -> None:
    clip_case = case([dense([3.0, 4.0])], "clip_by_norm", clip_norm=2.5, update=True)
    coef = float(np.float32(2.5 / (5.0 - 2.0**-21)))
    near = outcome(None, [3.0 * coef, 4.0 * coef])
    follows = [oracle.after_sgd_step(gradient) for gradient in near.gradients or []]
    assert verdict_of(clip_case, dataclasses.replace(near, update=follows)) == "close"
    assert verdict_of(clip_case, dataclasses.replace(near, update=[dense([0.5, 0.0])])) == "different"


def test_norms_of_other_types_may_be_the_next_number_even_on_the_host_path() -> None:
    clip_case = case([dense([3.0, 4.0, 5.0])], "get_total_norm", norm_type=3)
    assert verdict_of(clip_case, CallOutcome(dense(6.0)), path=HOST) == "equal"
    assert verdict_of(clip_case, CallOutcome(dense(6.0 + 2.0**-21)), path=HOST) == "close"
    assert verdict_of(clip_case, CallOutcome(dense(6.0 + 2.0**-20)), path=HOST) == "different"
    largest = case([dense([3.0, 4.0])], "get_total_norm", norm_type=math.inf)
    assert verdict_of(largest, CallOutcome(dense(4.0 + 2.0**-21)), path=HOST) == "different"
