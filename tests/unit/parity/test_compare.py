"""Ours is judged by the contract, stage by stage; natives by a list of known differences that has to be true."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from support.parity.cases import case, dense
from support.parity.reports import native, one_case

from unified_clip.parity.judge import judged_result, oracle, worst_element
from unified_clip.parity.judge.verdict import coefficients, compare_with_exact
from unified_clip.parity.known import match, measure
from unified_clip.parity.known.entries import KnownDifference, NativeDeviation, recorded_cause, size_in_words
from unified_clip.parity.modes import COMPILED, DEVICE, HOST
from unified_clip.parity.outcome import CallOutcome
from unified_clip.parity.report import baseline, build
from unified_clip.parity.results import FrameworkResult, KnownDifferenceResult
from unified_clip.parity.suite.cases import Case
from unified_clip.parity.suite.schema import CaseOptions, Framework
from unified_clip.parity.workers.pool import WorkItem
from unified_clip.tensors import ulp
from unified_clip.tensors.types import Sparse


def outcome(norm: float | None, *gradients: Any, dtype: str = "float32") -> CallOutcome:
    return CallOutcome(None if norm is None else dense(norm, dtype), [dense(gradient, dtype) for gradient in gradients])


def kind_of(one: Case, found: CallOutcome, framework: str = "torch", path: str = DEVICE) -> str:
    flushes = framework == "tensorflow"
    return compare_with_exact(one, oracle.expect(one), found, path, flushes=flushes).kind


def test_ulps_count_the_numbers_between() -> None:
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
    one = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5)
    near, far = 5.0 + 2.0**-21, 5.0 + 2.0**-20
    follows, above = ([v * float(np.float32(2.5 / n)) for v in (3.0, 4.0)] for n in (near, far))
    assert kind_of(one, outcome(5.0, [1.5, 2.0])) == "equal"
    assert kind_of(one, outcome(near, follows)) == "close"
    assert kind_of(one, outcome(near, follows), path=HOST) == "different"
    by_kernels = dataclasses.replace(outcome(near, follows), exact_norm=True)
    assert kind_of(one, by_kernels, path=COMPILED) == "different"
    assert kind_of(one, outcome(near, [1.5, 2.0])) == "different"
    assert kind_of(one, outcome(5.0, follows)) == "different"
    assert kind_of(one, outcome(far, above)) == "different"


def test_on_the_device_path_a_float64_norm_may_be_off_by_1e_12() -> None:
    one = case([dense([3.0, 4.0], "float64")], "global_norm")
    near, far = (CallOutcome(dense(5.0 * (1 + error), "float64")) for error in (9e-13, 1.1e-12))
    assert [kind_of(one, near), kind_of(one, far)] == ["close", "different"]


def test_without_a_returned_norm_gradients_are_what_a_norm_one_ulp_away_makes_of_them() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_norm", clip_norm=2.5)
    for n, kind in ((5.0 + 2.0**-21, "close"), (5.0 - 2.0**-21, "close"), (5.0 + 2.0**-20, "different")):
        coef = float(np.float32(2.5 / n))
        assert kind_of(one, outcome(None, [3.0 * coef, 4.0 * coef])) == kind
    half = case([dense([3.0, 4.0], "float16")], "clip_by_norm", clip_norm=0.7)
    coef = float(np.float32(0.7 / (5.0 * 1.0005)))
    assert kind_of(half, outcome(None, [3.0 * coef, 4.0 * coef], dtype="float16")) == "different"
    wide = case([dense([3.0, 4.0], "float64")], "clip_by_norm", clip_norm=2.5)
    assert kind_of(wide, outcome(None, [1.5 * (1 + 9e-13), 2.0], dtype="float64")) == "close"
    assert kind_of(wide, outcome(None, [1.5 * (1 + 3e-12), 2.0], dtype="float64")) == "different"
    by_value = case([dense([3.0, 4.0])], "clip_by_value", clip_value_min=0.0, clip_value_max=2.5)
    assert kind_of(by_value, outcome(None, [2.5, 2.5 + 2.0**-22])) == "different"


def test_only_a_framework_that_flushes_may_flush_and_only_where_marked() -> None:
    given = [dense([1e-40, 1.0])]
    marked = case(given, "clip_by_norm", subnormal=True, clip_norm=0.5)
    flushed = outcome(None, [0.0, 0.5])
    assert kind_of(marked, flushed, "tensorflow") == "flushed"
    assert kind_of(marked, flushed, "torch") == "different"
    assert kind_of(marked, flushed, "tensorflow", HOST) == "different"
    assert kind_of(dataclasses.replace(marked, options=CaseOptions()), flushed, "tensorflow") == "different"
    assert kind_of(marked, outcome(None, [0.0, 0.75]), "tensorflow") == "different"


def test_a_coefficient_is_what_the_greatest_element_shows() -> None:
    one = case([dense([3.0, -4.0]), None, dense([0.0, math.inf])], "clip_by_norm", clip_norm=1.0)
    clipped = [dense([1.5, -1.0]), None, dense([0.0, math.nan])]
    assert coefficients(one, clipped) == [0.25, 1.0, 1.0]


def test_stages_are_compared_apart() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5, update=True)
    found = dataclasses.replace(outcome(5.0, [1.5, 2.0 + 2.0**-22]), update=[dense([0.25, 0.0])])
    verdict = compare_with_exact(one, oracle.expect(one), found, HOST)
    assert verdict.stages == {"norm": 0.0, "coefficient": 2.0**-23, "tensors": 1.0, "update": 0.0}
    assert verdict.detail == "coefficient off by 1.19e-07 relatively, tensors off by 1 ULP"


@pytest.mark.parametrize(
    ("update", "detail"),
    [
        (None, "0 parameters instead of 1"),
        ([dense([[0.25, 0.0]])], "parameter 0 is float32[1, 2] instead of float32[2]"),
    ],
)
def test_a_step_that_gives_no_parameters_or_other_shapes_is_different(update: Any, detail: str) -> None:
    one = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5, update=True)
    found = dataclasses.replace(outcome(5.0, [1.5, 2.0]), update=update)
    verdict = compare_with_exact(one, oracle.expect(one), found, HOST)
    assert (verdict.kind, verdict.detail) == ("different", detail)


@pytest.mark.parametrize(("size", "is_kept"), [(4, True), (1 << 20, False)])
def test_of_long_lists_verdicts_and_numbers_are_kept_and_no_tensors(size: int, is_kept: bool) -> None:
    one = case([dense(np.ones(size))], "clip_grad_norm_", max_norm=0.5)
    right = oracle.expect(one)
    result = CallOutcome(dense(1.0), list(right.gradients or ()))
    found = judged_result.judge_result(WorkItem(HOST, one), right, result, Framework(), ())
    assert found.result
    assert found.result.verdict == "different"
    assert (found.outcome is result, found.outcome is None) == (is_kept, not is_kept)
    numbers = found.result.details or judged_result.worst_elements(one, right, {HOST: found})[HOST]
    assert (numbers.stage, numbers.ours and numbers.ours.value) == ("norm", 1.0)


def test_long_lists_are_compared_tensor_by_tensor() -> None:
    one = case([dense(np.full(1 << 15, number)) for number in range(1, 33)], "clip_grad_norm_", max_norm=1.0)
    right = oracle.expect(one)
    found = [dense(tensor.values() * (1 + 2.0**-20)) for tensor in right.gradients or () if tensor]
    result = CallOutcome(right.norm, [*found])
    assert oracle.is_long(one)
    assert right.digests != result.digests
    tracemalloc.start()
    try:
        assert compare_with_exact(one, right, result, HOST).kind == "different"
        assert worst_element.find(one, right, {HOST: result}, [HOST])
        assert tracemalloc.get_traced_memory()[1] < sum(tensor.array.nbytes for tensor in found) / 2
    finally:
        tracemalloc.stop()


def test_a_step_has_to_follow_from_the_frameworks_own_gradients_on_the_device_path() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_norm", clip_norm=2.5, update=True)
    coef = float(np.float32(2.5 / (5.0 - 2.0**-21)))
    near = outcome(None, [3.0 * coef, 4.0 * coef])
    follows = [oracle.after_sgd_step(gradient) for gradient in near.gradients or []]
    assert kind_of(one, dataclasses.replace(near, update=follows)) == "close"
    assert kind_of(one, dataclasses.replace(near, update=[dense([0.5, 0.0])])) == "different"


def test_other_orders_may_be_the_next_number_even_on_the_host_path() -> None:
    one = case([dense([3.0, 4.0, 5.0])], "get_total_norm", norm_type=3)
    assert kind_of(one, CallOutcome(dense(6.0)), path=HOST) == "equal"
    assert kind_of(one, CallOutcome(dense(6.0 + 2.0**-21)), path=HOST) == "close"
    assert kind_of(one, CallOutcome(dense(6.0 + 2.0**-20)), path=HOST) == "different"


# -- natives


ONE = case([dense([3.0, 4.0]), None], "clip_by_global_norm", clip_norm=2.5)


def measured(found: CallOutcome, one: Case = ONE) -> tuple[str, float]:
    difference = measure.measure(one, oracle.expect(one), dataclasses.replace(found, name="native"))
    assert difference is not None
    assert difference.function == "native"
    return difference.kind, difference.finite_size


def test_a_native_is_measured() -> None:
    assert measure.measure(ONE, oracle.expect(ONE), CallOutcome()) is None
    assert measured(CallOutcome(dense(5.0), [dense([1.5, 2.0]), None])) == ("", 0.0)
    assert measured(CallOutcome(dense(5.0 + 2.0**-21), [dense([1.5, 2.0]), None])) == ("", 0.0)
    assert measured(CallOutcome(dense(6.0), [dense([1.5, 1.0]), None])) == ("value", 0.5)
    assert measured(CallOutcome(dense(6.0), [dense([1.5, 2.0]), None])) == ("value", 0.2)
    assert measured(CallOutcome(dense(math.inf), [dense([math.nan, 2.0]), None])) == ("value", 0.0)
    assert measured(CallOutcome(dense(math.inf), [dense([3.0, 4.0]), None])) == ("value", 1.0)
    assert measured(CallOutcome(None, [dense([1.5, 2.0]), None])) == ("", 0.0)


def deviation(norm: float, *results: list[Any] | None, one: Case = ONE, fault: str = "") -> NativeDeviation:
    tensors = [None if values is None else dense(values) for values in results]
    found = measure.measure(one, oracle.expect(one), CallOutcome(dense(norm), tensors, name="native", fault=fault))
    assert found is not None
    return found


def test_inf_and_nan_are_measured_apart_from_finite_numbers() -> None:
    inf, nan = math.inf, math.nan
    found = {
        "norm": deviation(inf, [1.5, 2.0], None),
        "gradients": deviation(5.0, [nan, 4.0], None),
        "norm and gradients": deviation(nan, [inf, 2.0], None),
        "": deviation(6.0, [1.5, 2.0], None),
    }
    assert all(each.not_finite == where for where, each in found.items())
    assert [each.finite_size for each in found.values()] == [0.0, 1.0, 0.0, 0.2]


def test_the_difference_of_a_gradient_is_relative_to_that_gradient() -> None:
    two = case([dense([3e4, 4e4]), dense([0.1, 0.2])], "clip_by_global_norm", clip_norm=25.0)
    small = [float(value) for value in dense([5e-5, 1e-4]).values()]
    lost = deviation(5e4, [15.0, 20.0], [0.0, 0.0], one=two)
    assert (lost.kind, lost.finite_size, lost.gradients) == ("value", 1.0, 1.0)
    assert deviation(5e4, [15.0, 20.0], [small[1], small[1]], one=two).finite_size == pytest.approx(0.5)
    assert deviation(5e4, [15.0, 20.0], small, one=two).kind == ""


def test_a_zeroed_gradient_differs_even_if_the_exact_one_underflows() -> None:
    one = case([dense([3.0, 4.0]), dense([1e-45])], "clip_by_global_norm", clip_norm=0.01)
    assert [oracle.expect(one).gradients[1].values().tolist()] == [[0.0]]
    assert deviation(5.0, [0.006, 0.008], [1e-45], one=one).finite_size == 1.0  # relative to the input
    one = case([dense([3.0, 4.0]), dense([1e-9])], "clip_by_global_norm", clip_norm=1e-36)
    kept = deviation(5.0, [6e-37, 8e-37], [1e-9], one=one)
    assert kept.finite_size > 1e26  # relative to the other gradients, which are smaller than the input


def test_a_number_in_a_gradient_of_zeros_is_no_rounding() -> None:
    one = case([dense([3.0, 4.0]), dense([0.0])], "clip_by_global_norm", clip_norm=2.5)
    found = deviation(5.0, [1.5, 2.0], [1e-6], one=one)
    assert found.kind == "value"
    assert found.finite_size == pytest.approx(5e-7)
    assert deviation(5.0, [1.5, 2.0], [-0.0], one=one).kind == ""


def test_a_number_in_place_of_an_exact_zero_has_a_finite_size() -> None:
    zero = dataclasses.replace(ONE, arguments={"clip_norm": 0.0})
    assert deviation(5.0, [0.0, 1e-20], None, one=zero).finite_size == 0.0
    assert deviation(5.0, [0.0, 2.0], None, one=zero).finite_size == 0.5  # relative to the gradients
    nothing = case([dense([0.0])], "clip_by_global_norm", clip_norm=1.0)
    absolute = deviation(1e-6, [0.0], one=nothing)
    assert (absolute.kind, absolute.not_finite) == ("value", "")
    assert 0 < absolute.finite_size < 1e-5


def test_a_native_that_returns_other_shapes_differs_in_form_and_its_numbers_are_compared() -> None:
    expected = {
        "form": [
            deviation(5.0, [[1.5, 2.0]], None),
            deviation(5.0, [1.5, 2.0]),
            deviation(5.0, [1.5, 2.0], [0.0]),
            deviation(5.0, [1.5, 2.0], None, fault="gradient 0 is float64 instead of float32"),
        ],
        "elements": [deviation(5.0, [1.5, 2.0, 0.0], None), deviation(5.0, [1.5, 2.0], [1.0])],
    }
    for kind, found in expected.items():
        assert [(each.kind, each.finite_size) for each in found] == [(kind, 0.0)] * len(found)
    assert deviation(5.0, [[10.5, 14.0]], None).finite_size == 6.0
    assert deviation(5.0, [[math.nan, 2.0]], None).not_finite == "gradients"
    assert deviation(5.0, [10.5, 14.0], [0.0]).finite_size == 6.0
    assert deviation(6.0, [1.5, 2.0, 0.0], None).finite_size == 0.2


def test_a_native_that_changes_what_should_be_left_alone_has_touched_it() -> None:
    below = dataclasses.replace(ONE, arguments={"clip_norm": 7.0})
    assert measured(CallOutcome(dense(5.0), [dense([3.0, 4.0]), None]), below) == ("", 0.0)
    assert measured(CallOutcome(dense(5.0), [dense([3.0, 4.0 + 2.0**-21]), None]), below) == ("touched", 2.0**-23)


def test_a_native_that_raises_returns_or_is_silent_where_ours_does_otherwise() -> None:
    raised = CallOutcome(raised=["ValueError"], message="ValueError: so", name="native")
    refused = dataclasses.replace(ONE, options=CaseOptions(raises="ValueError"))
    warned = dataclasses.replace(ONE, options=CaseOptions(warns=True))
    right = CallOutcome(dense(5.0), [dense([1.5, 2.0]), None], name="native")
    kinds = {}
    for name, one, found in (
        ("raises", ONE, raised),
        ("both raise", refused, raised),
        ("returns", refused, right),
        ("silent", warned, right),
    ):
        difference = measure.measure(one, oracle.expect(one), found)
        assert difference is not None
        kinds[name] = difference.kind
    assert kinds == {name: "" if name == "both raise" else name for name in kinds}


KNOWN = KnownDifference(
    framework="torch",
    function="torch.*",
    kind="value",
    cases=["long *"],
    reason="a short accumulator",
    size=0.1,
    within=2.0,
)
SHOWING = {("torch", "long tensor"): NativeDeviation("torch.norm", "value", 0.09)}
UNLISTED = (
    "numbers differ, by 9 %; not listed as a known difference; the cause is unknown. "
    "Run the command with --accept to list it"
)
STALE = "no case shows this difference. Run the command with --accept to remove the entry"


def judged_as(
    known: list[KnownDifference], found: dict[tuple[str, str], NativeDeviation]
) -> tuple[dict[str, str], list[str]]:
    """Judgements by case, and everything that is wrong."""
    judgements, entries = match.match_deviations(known, found, {"torch": {"torch": "2.13.0+cpu"}, "paddle": {}})
    problems = [*(problem for _, problem in judgements.values()), *(entry.problem for entry in entries)]
    return {name: judgement for (_, name), (judgement, _) in judgements.items()}, list(filter(None, problems))


def test_a_known_difference_is_known() -> None:
    assert judged_as([KNOWN], SHOWING) == ({"long tensor": "known"}, [])


def test_an_entry_of_a_renamed_function_of_the_user_names_the_key_to_change() -> None:
    entry = KNOWN.model_copy(update={"function": "clip.py:clip"})
    found = {("torch", "long tensor"): NativeDeviation("clip.py:clip_grads", "value", 0.09)}
    renamed = f"{STALE}. The run did not call this function: if it has a new name, write this name into the entry"
    assert judged_as([entry], found)[1][1] == renamed
    called = {("torch", "long tensor"): NativeDeviation("clip.py:clip", "", 0.0)}
    assert judged_as([entry], called)[1] == [STALE]


def test_a_difference_that_nobody_knows_is_wrong() -> None:
    found, problems = judged_as([], SHOWING)
    assert found == {"long tensor": "different"}
    assert problems == [UNLISTED]


@pytest.mark.parametrize(
    "other",
    [
        {"framework": "paddle"},
        {"function": "torch.nn.*"},
        {"kind": "touched"},
        {"cases": ["short *"]},
        {"cases": ["*long"]},
    ],
)
def test_a_known_difference_of_something_else_does_not_count(other: dict[str, Any]) -> None:
    _, problems = judged_as([KNOWN.model_copy(update=other)], SHOWING)
    assert problems == [UNLISTED, STALE]


def test_a_known_difference_that_no_longer_shows_is_wrong() -> None:
    nothing = {("torch", "long tensor"): NativeDeviation("torch.norm")}
    assert judged_as([KNOWN], nothing) == ({"long tensor": "equal"}, [STALE])
    patterns = KNOWN.model_copy(update={"cases": ["long *", "wide *"]})
    assert judged_as([patterns], SHOWING)[1] == [
        "no case that matches 'wide *' shows this difference. Run the command with --accept to update `cases`"
    ]


def test_an_entry_that_would_accept_any_size_is_rejected() -> None:
    fields = KNOWN.model_dump(exclude={"versions"})
    assert KnownDifference.model_validate(fields | {"within": 10.0}).within == 10.0
    with pytest.raises(ValueError, match=r"1e\+09 is above 10, so the entry would accept another order of magnitude"):
        KnownDifference.model_validate(fields | {"within": 1e9})


def test_a_size_that_has_grown_or_shrunk_a_lot_is_wrong() -> None:
    larger = {("torch", "long tensor"): NativeDeviation("torch.norm", "value", 0.5)}
    assert judged_as([KNOWN], larger) == (
        {"long tensor": "different"},
        [
            "numbers differ, by 50 %: more than the listed 10 %; the cause is unknown. "
            "Run the command with --accept to list the new size"
        ],
    )
    smaller = {("torch", "long tensor"): NativeDeviation("torch.norm", "value", 0.02)}
    assert judged_as([KNOWN], smaller)[1] == [
        "the difference is 2 %, less than the listed 10 %. Run the command with --accept to list the new size"
    ]


@pytest.mark.parametrize("versions", ["torch>=2.13", "torch>=2.8,<3", "torch==2.13.*"])
def test_an_entry_about_the_installed_versions_counts(versions: str) -> None:
    entry = KNOWN.model_copy(update={"versions": versions})
    assert judged_as([entry], SHOWING) == ({"long tensor": "known"}, [])
    assert judged_as([entry], {})[1] == [STALE]


@pytest.mark.parametrize("versions", ["torch<2.13", "torch>2.13", "torch>=2.8,<2.10"])
def test_an_entry_about_other_versions_covers_nothing_and_need_not_show(versions: str) -> None:
    entry = KNOWN.model_copy(update={"versions": versions})
    limited = f"difference of these versions: the entry 'a short accumulator' is limited to {versions};"
    assert judged_as([entry], SHOWING)[1] == [UNLISTED.replace("difference;", limited)]
    assert judged_as([entry], {})[1] == []


def test_an_entry_about_versions_counts_before_they_are_released() -> None:
    entry = KNOWN.model_copy(update={"versions": "torch>=2.12"})
    assert entry.applies({"torch": "2.13.0.dev20260101"})


def test_an_entry_about_versions_of_what_the_worker_does_not_report_is_wrong() -> None:
    entry = KNOWN.model_copy(update={"versions": "pytorch<2.13"})
    (problem,) = judged_as([entry], SHOWING)[1]
    unreported = "the worker of torch does not report the version of that package"
    assert problem == f"`versions` names pytorch, but {unreported}. Give versions of torch instead"


def test_what_two_entries_say_is_wrong() -> None:
    twice = KNOWN.model_copy(update={"reason": "a long tensor"})
    assert (
        "2 known differences cover it ('a short accumulator' and 'a long tensor')"
        in judged_as([KNOWN, twice], SHOWING)[1][0]
    )


def test_rounding_is_close_and_needs_no_entry() -> None:
    rounding = NativeDeviation("torch.norm", norm=1e-7)
    assert judged_as([], {("torch", "a"): rounding, ("torch", "b"): NativeDeviation("torch.norm", norm=0.0)}) == (
        {"a": "close", "b": "equal"},
        [],
    )


def listed(**fields: Any) -> KnownDifference:
    same = {"framework": "torch", "function": "torch.norm", "cases": ["long *"], "reason": "inf / inf"}
    return KnownDifference.model_validate({"kind": "value", **same, **fields})


def showing(size: float, not_finite: Any = "", kind: Any = "value") -> dict[tuple[str, str], NativeDeviation]:
    return {("torch", "long tensor"): NativeDeviation("torch.norm", kind, size, not_finite=not_finite)}


def test_an_entry_for_inf_and_nan_covers_no_finite_difference_and_the_other_way_round() -> None:
    nan, finite = listed(not_finite="gradients"), listed(size=4.0)
    assert judged_as([nan], showing(0.0, "gradients")) == ({"long tensor": "known"}, [])
    problem, stale = judged_as([nan], showing(4.0))[1]
    assert stale == STALE
    assert problem == (
        "numbers differ, by 400 %; the known difference 'inf / inf' lists only a difference with inf or NaN in the "
        "gradients; the cause is unknown. Run the command with --accept to list this one"
    )
    for where in ("norm", "norm and gradients"):
        assert STALE in judged_as([nan], showing(0.0, where))[1]
    assert "lists only a difference of finite numbers" in judged_as([finite], showing(4.0, "gradients"))[1][0]
    assert "more than rounding, as listed" in judged_as([nan], showing(0.5, "gradients"))[1][0]


def test_an_entry_of_shapes_or_dtypes_bounds_the_numbers() -> None:
    form = listed(kind="form")
    assert judged_as([form], showing(0.0, kind="form")) == ({"long tensor": "known"}, [])
    (problem,) = judged_as([form], showing(6.0, kind="form"))[1]
    assert problem.endswith(
        "by 600 %: more than rounding, as listed. Run the command with --accept to list the new size"
    )
    assert judged_as([listed(kind="form", size=6.0)], showing(6.0, kind="form")) == ({"long tensor": "known"}, [])
    assert STALE in judged_as([form], showing(0.0, "gradients", kind="form"))[1]
    assert STALE in judged_as([form], showing(0.0, kind="elements"))[1]


def test_an_error_is_known_by_the_function_that_raised_it() -> None:
    raises = KNOWN.model_copy(update={"kind": "raises"})
    assert judged_as([raises], {("torch", "long tensor"): NativeDeviation("torch.norm", "raises")}) == (
        {"long tensor": "known"},
        [],
    )
    assert judged_as([raises], {("torch", "long tensor"): NativeDeviation("norm", "raises")})[0] == {
        "long tensor": "different"
    }


def test_a_sum_of_rows_that_is_rounded_otherwise_is_no_changed_gradient() -> None:
    def deviation(rows: list[int]) -> NativeDeviation | None:
        sparse = Sparse(np.array(rows, np.int64), dense([[0.1], [0.2]]), (3, 1))
        one = case([sparse], "clip_by_global_norm", clip_norm=10.0)
        expected = oracle.expect(one)
        off = [dense(each.values() * (1 + 2.0**-23)) for each in expected.gradients or [] if each]
        return measure.measure(one, expected, CallOutcome(expected.norm, off, name="clip"))

    repeated, single = deviation([1, 1]), deviation([0, 1])
    assert repeated
    assert single
    assert (repeated.kind, bool(repeated.gradients)) == ("", True)
    assert single.kind == "touched"


def with_cause(cause: str, size: float = 1.0) -> dict[tuple[str, str], NativeDeviation]:
    return {("torch", "long tensor"): NativeDeviation("torch.norm", "value", size, cause=cause, cause_kind=cause)}


def test_an_entry_with_a_cause_covers_no_other_and_no_unknown_cause() -> None:
    entry = listed(size=1.0, cause="not clipped")
    assert judged_as([entry], with_cause("not clipped")) == ({"long tensor": "known"}, [])
    other, stale = judged_as([entry], with_cause("coefficient"))[1]
    assert (
        "the known difference 'inf / inf' has the cause 'not clipped'; coefficient. Run the command with --accept"
        in other
    )
    assert stale == STALE
    unknown = judged_as([entry], with_cause(""))[1][0]
    assert (
        "has the cause 'not clipped'; the cause is unknown. Run the command with --accept to list this one" in unknown
    )
    for cause in ("any", ["not clipped", "coefficient"]):
        assert judged_as([listed(size=1.0, cause=cause)], with_cause("coefficient")) == ({"long tensor": "known"}, [])
    several, _ = judged_as([listed(size=1.0, cause=["a", "b"])], with_cause("coefficient"))[1]
    assert "has the cause 'a' or 'b'; coefficient." in several
    assert judged_as([listed(size=1.0, cause="unknown")], with_cause("")) == ({"long tensor": "known"}, [])
    other = judged_as([listed(size=1.0, cause="unknown")], with_cause("coefficient"))[1][0]
    assert "has the cause 'unknown'; coefficient. Run the command with --accept" in other


def test_an_entry_without_a_cause_is_reported_with_the_line_that_it_lacks() -> None:
    def result(entry: KnownDifference, **causes: str) -> KnownDifferenceResult:
        found = {("torch", name): with_cause(cause)["torch", "long tensor"] for name, cause in causes.items()}
        (only,) = match.match_deviations([entry], found, {"torch": {}})[1]
        assert only.problem == ""
        return only

    entry = listed(size=1.0, cases=["*"])
    assert result(entry, one="16 bits").incomplete == 'cause = "16 bits"'
    assert result(entry, one="").incomplete == 'cause = "unknown"'
    assert result(entry, one="16 bits", two="", three="16 bits").incomplete == 'cause = ["16 bits", "unknown"]'
    for cause in ("any", "16 bits"):
        assert result(listed(size=1.0, cases=["*"], cause=cause), one="16 bits").incomplete == ""
    lacking = build.report(
        ["torch"], [one_case(torch=FrameworkResult(native=native()))], [result(entry, one="16 bits")]
    )
    assert lacking.verdict.endswith("1 difference of the frameworks' functions, all known, 1 entry has no `cause`.")
    (note,) = build.incomplete(lacking.known)
    assert note.startswith(
        "1 entry has no `cause` in the list of known differences: it accepts every mistake of its size"
    )
    assert f'add the lines: cause = "16 bits" (torch, torch.norm, {entry.reason!r}).' in note
    strict = build.strict(lacking)
    assert (lacking.exit_code, strict.exit_code) == (0, 1)
    assert strict.verdict == "FAIL: 1 case on torch: 1 known difference without `cause`."
    assert [each.detail for each in strict.problems] == [
        'the entry has no `cause`, so it accepts every mistake of its size. Add the line cause = "16 bits", or run '
        "the command with --accept"
    ]
    assert build.against(strict, baseline.changes(lacking, strict)).exit_code == 1


def test_entries_about_calls_without_numbers_need_no_cause() -> None:
    for kind in ("silent", "returns"):
        assert not listed(kind=kind).lacks_cause
        assert recorded_cause(NativeDeviation("torch.norm", kind)) == ""


def test_an_entry_of_an_error_covers_no_other_class() -> None:
    error = {("torch", "long tensor"): NativeDeviation("torch.norm", "raises", detail="ValueError: empty")}
    assert judged_as([listed(kind="raises", cause="ValueError")], error) == ({"long tensor": "known"}, [])
    assert "has the cause 'TypeError'" in judged_as([listed(kind="raises", cause="TypeError")], error)[1][0]


def test_an_entry_about_other_versions_is_named_beside_the_cause() -> None:
    entry = listed(size=1.0, versions="torch<2.13")
    (problem,) = judged_as([entry], with_cause("coefficient"))[1]
    versions = "of these versions: the entry 'inf / inf' is limited to torch<2.13"
    assert (
        f"not listed as a known difference {versions}; coefficient. Run the command with --accept to list it" in problem
    )


def test_a_huge_size_is_readable() -> None:
    assert [size_in_words(size) for size in (12.0, 7.07e21)] == ["12 times", "7.1e+21 times"]
