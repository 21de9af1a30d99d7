"""Mistakes of a port are named by their cause if the numbers show it, and otherwise not at all."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from support.parity.cases import dense
from support.parity.diagnosis import (
    GLOBAL,
    NO_NORM,
    PER_TENSOR,
    change_outcome,
    diagnose_outcome,
    gradients,
    named_case,
    with_element,
)
from support.parity.faults import Mistake, clip_with_mistake
from support.parity.runs import exact_outcome

from unified_clip.causes.cause import instead
from unified_clip.parity.call_outcome import CallOutcome, Failure
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.judged_result import judge_result
from unified_clip.parity.known import match
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.suite.call_form import CallForm
from unified_clip.parity.suite.schema import FrameworkTable
from unified_clip.parity.workers.worker_files import WorkItem
from unified_clip.tensors.arithmetic import rounded
from unified_clip.tensors.norms import exact_norm

MISTAKES = {
    "eps": (GLOBAL, Mistake(eps=0.0), "another eps of the clip", "as if eps were 0 instead of 1e-06"),
    "eps where none is due": (
        PER_TENSOR,
        Mistake(eps=1e-6),
        "another eps of the clip",
        "as if eps were 1e-06 instead of 0",
    ),
    "not counted": (GLOBAL, Mistake(not_counted=2), "left out", "as if 'encoder.bias' were left out of the norm"),
    "not counted, and no norm": (NO_NORM, Mistake(not_counted=0), "left out", "'embedding' were left out of the norm"),
    "dropped": (
        GLOBAL,
        Mistake(not_counted=1, not_scaled=1),
        "left out",
        "the call returned 'encoder.weight' unchanged, and the norm leaves out 'encoder.weight'",
    ),
    "not scaled": (GLOBAL, Mistake(not_scaled=3), "not scaled", "the call returned 'head' unchanged, although"),
    "own norms": (
        GLOBAL,
        Mistake(own_norms=True),
        "per tensor for global",
        "each gradient were clipped by its own norm instead of the total norm",
    ),
    "one norm": (
        PER_TENSOR,
        Mistake(total_norm=True),
        "global for per tensor",
        "each gradient were clipped by the total norm instead of its own norm",
    ),
    "float32": (GLOBAL, Mistake(float32=True), "float32", "the squares were added up in float32, one after the other"),
    "bfloat16": (GLOBAL, Mistake(rounded_to="bfloat16"), "16 bits", "the norm were rounded to bfloat16"),
    "float16, and no norm": (NO_NORM, Mistake(rounded_to="float16"), "16 bits", "the norm were rounded to float16"),
    "twice": (GLOBAL, Mistake(times=2), "clipped twice", "as if the coefficient were applied twice"),
    "not clipped": (NO_NORM, Mistake(times=0), "not clipped", "nothing were clipped"),
    "threshold": (GLOBAL, Mistake(threshold=2.0), "another threshold", "as if the threshold were 0.2 instead of 0.1"),
    "threshold of each": (
        PER_TENSOR,
        Mistake(threshold=0.5),
        "another threshold",
        "the threshold were 0.05 instead of 0.1",
    ),
    "threshold, and no norm": (
        NO_NORM,
        Mistake(threshold=0.5),
        "another threshold",
        "or as if the norm were 2 times as",
    ),
    "order": (GLOBAL, Mistake(order=math.inf), "another norm type", "as if norm_type were inf instead of 2"),
}
"""A case, what a port does wrong there, and the cause that is named."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_a_port_is_named(name: str) -> None:
    clip_case, mistake, kind, words = MISTAKES[name]
    diagnosis = diagnose_outcome(clip_case, clip_with_mistake(clip_case, mistake))
    assert diagnosis[0] == kind
    assert words in diagnosis[1]


def test_noise_has_no_cause() -> None:
    noise = change_outcome(GLOBAL, lambda t: t.__setitem__(1, with_element(t[1], 0.5)))
    assert diagnose_outcome(GLOBAL, noise) == ("", "")


@pytest.mark.parametrize(
    ("max_norm", "sentence"),
    [
        (5e-6, "as if the threshold were 4.28572e-06 instead of 5e-06, or as if eps were 2e-06 instead of 1e-06"),
        (2.5e-6, "as if the threshold were 2.14286e-06 instead of 2.5e-06, or as if eps were 2e-06 instead of 1e-06"),
    ],
)
def test_an_eps_of_any_value_is_named_beside_the_threshold(max_norm: float, sentence: str) -> None:
    clip_case = named_case("clip_grad_norm_", [dense([3e-6, 4e-6])], max_norm=max_norm)
    coef = np.float32(max_norm / (5e-6 + 2e-6))
    gradients_out = [dense((each.values().astype(np.float32) * coef).tolist()) for each in clip_case.gradients]
    assert diagnose_outcome(clip_case, CallOutcome(exact_outcome(clip_case).norm, gradients_out)) == (
        "another threshold",
        sentence,
    )


@pytest.mark.parametrize(
    ("actual", "expected", "texts"),
    [
        (0.26200001, 0.262, "0.26200001 instead of 0.262"),
        ((-1.0, 1.00000005), (-1.0, 1.0), "-1 and 1.00000005 instead of -1 and 1"),
        (0.2620004, 0.262, "0.2620004 instead of 0.262"),
        (1.0, 1.0, "1 instead of 1"),
    ],
)
def test_different_settings_are_printed_with_different_digits(actual: Any, expected: Any, texts: str) -> None:
    assert instead("the threshold", actual, expected) == f"as if the threshold were {texts}"


def test_a_nearly_equal_threshold_is_named_with_enough_digits() -> None:
    clip_case = named_case("clip_by_global_norm", [dense([3.0, 4.0])], clip_norm=1.0)
    coef = np.float32((1 + 2e-6) / 5)
    gradients_out = [dense((each.values().astype(np.float32) * coef).tolist()) for each in clip_case.gradients]
    sentence = "as if the threshold were 1.000002 instead of 1"
    assert diagnose_outcome(clip_case, CallOutcome(exact_outcome(clip_case).norm, gradients_out)) == (
        "another threshold",
        sentence,
    )


def test_an_eps_that_looks_like_a_second_clip_is_named_beside_it() -> None:
    clip_case = named_case("clip_grad_norm_", [dense([3e-3, 4e-3])], max_norm=2.5e-3)
    coef = np.float32(2.5e-3 / (5e-3 + 2e-6))
    gradients_out = [dense((each.values().astype(np.float32) * coef).tolist()) for each in clip_case.gradients]
    sentence = "as if all gradients were clipped twice, or as if eps were 2e-06 instead of 1e-06"
    assert diagnose_outcome(clip_case, CallOutcome(exact_outcome(clip_case).norm, gradients_out)) == (
        "clipped twice",
        sentence,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_of_the_clipped_gradients_is_named(dtype: str) -> None:
    clip_case = named_case("clip_grad_norm_", gradients(dtype=dtype), max_norm=0.1)
    result = exact_outcome(clip_case)
    clipped_norm = dense(exact_norm([each for each in result.gradients or [] if each], 2, "float32"))
    kind, sentence = diagnose_outcome(clip_case, dataclasses.replace(result, norm=clipped_norm))
    assert (kind, "the returned norm is the norm of the clipped gradients" in sentence) == ("norm after the clip", True)

    def scaled(factor: float) -> CallOutcome:
        tensors = [dense(each.values() * factor, dtype) for each in result.gradients or [] if each]
        return dataclasses.replace(result, norm=clipped_norm, gradients=tensors)

    assert diagnose_outcome(clip_case, scaled(1 + 2.0**-23))[0] == "norm after the clip"
    twice = dense(2 * float(clipped_norm.values()))
    assert diagnose_outcome(clip_case, dataclasses.replace(result, norm=twice))[0] != "norm after the clip"
    assert diagnose_outcome(clip_case, scaled(1.5))[0] != "norm after the clip"


VALUES = [1.0, 0.3, -0.7, 0.11, 0.57]


def round_to_bfloat16(values: Any) -> Any:
    return rounded(np.asarray(values, np.float64), "bfloat16")


@pytest.mark.parametrize("formula", ["divided", "multiplied"])
def test_a_clip_in_bfloat16_is_named_with_the_rounding_of_its_norm(formula: str) -> None:
    """As optax does: the sums of many tensors are added up in bfloat16, which stops at 256."""
    clip_case = named_case("clip_grad_norm_", [dense(VALUES, "bfloat16")] * 400, max_norm=1.3)
    total = 0.0
    for _ in clip_case.gradients:
        total = float(round_to_bfloat16(total + round_to_bfloat16(round_to_bfloat16(VALUES) ** 2).sum()))
    norm, threshold = float(round_to_bfloat16(math.sqrt(total))), float(round_to_bfloat16(1.3))
    assert norm < 0.95 * oracle.counted_norm(clip_case)
    values = round_to_bfloat16(VALUES)
    if formula == "divided":
        values_out, words = (
            round_to_bfloat16(values / norm) * threshold,
            "were divided by the norm and multiplied by the threshold",
        )
    else:
        values_out, words = values * round_to_bfloat16(threshold / norm), "were multiplied by the coefficient"
    kind, sentence = diagnose_outcome(clip_case, CallOutcome(None, [dense(values_out, "bfloat16")] * 400))
    assert (kind, words in sentence) == ("16 bits", True)
    half = [dense(values / 2, "bfloat16")] * 400
    assert diagnose_outcome(clip_case, CallOutcome(None, half))[0] != "16 bits"


def test_a_clip_per_tensor_in_bfloat16_is_named() -> None:
    """As TensorFlow does: it multiplies by the threshold, and then divides by the norm."""
    values, threshold = round_to_bfloat16(VALUES), float(round_to_bfloat16(0.71))
    clip_case = named_case("clip_by_norm", [dense(VALUES, "bfloat16"), dense([0.1, 0.2], "bfloat16")], clip_norm=0.71)
    norm = float(round_to_bfloat16(np.sqrt((values**2).sum())))
    values_out = round_to_bfloat16(round_to_bfloat16(values * threshold) / norm)
    kind, sentence = diagnose_outcome(
        clip_case, CallOutcome(None, [dense(values_out, "bfloat16"), dense([0.1, 0.2], "bfloat16")])
    )
    steps = "the gradients were multiplied by the threshold and divided by the norm in bfloat16"
    assert (kind, sentence) == ("16 bits", f"as if {steps}")


def test_no_cause_is_named_if_two_fit() -> None:
    """The second gradient is below the threshold. Either it was left out, or each gradient was clipped by its own
    norm."""
    clip_case = named_case("GradientClipByGlobalNorm", [dense([3.0, 4.0]), dense([0.5])], clip_norm=1.0)
    assert diagnose_outcome(clip_case, clip_with_mistake(clip_case, Mistake(own_norms=True))) == ("", "")


def test_one_of_equal_gradients_is_left_out() -> None:
    clip_case = named_case("global_norm", [dense([3.0, 4.0, 0.0]), dense([1.0]), dense([4.0, 0.0, 3.0])])
    sentence = "as if 'embedding' were left out of the norm, or as if 'encoder.bias' were left out of the norm"
    assert diagnose_outcome(clip_case, CallOutcome(dense(math.sqrt(26)))) == ("left out", sentence)


@pytest.mark.parametrize(
    ("times", "words"),
    [(1, "the norm included 'encoder.weight'"), (2, "'encoder.weight' were included in the norm and scaled")],
)
def test_a_gradient_has_an_effect_for_each_time_that_the_list_contains_it(times: int, words: str) -> None:
    clip_case = dataclasses.replace(GLOBAL, call_form=CallForm(listed=[0, 1, 2, 1, 3]))
    norm = exact_norm([g for index in (0, 1, 1, 2, 3) if (g := gradients()[index])], 2, "float32")
    scaled = [oracle.scaled(each, 0.1 / (norm + 1e-6)) for each in gradients()]
    if times == 2:
        scaled[1] = oracle.scaled(scaled[1], 0.1 / (norm + 1e-6))
    sentence = f"as if {words} as often as the list contains 'encoder.weight'"
    assert diagnose_outcome(clip_case, CallOutcome(dense(norm), scaled)) == ("repeated parameter", sentence)


def test_all_gradients_with_one_axis_are_left_out() -> None:
    norm = exact_norm([g for g in gradients() if len(g.shape) == 2], 2, "float32")
    sentence = "as if all gradients with 1 axis were left out of the norm"
    assert diagnose_outcome(named_case("global_norm"), CallOutcome(dense(norm))) == ("left out", sentence)


def test_a_left_out_gradient_below_rounding_is_not_named() -> None:
    clip_case = named_case("global_norm", [dense(np.full(3000, 0.3)), dense([0.01])])
    assert diagnose_outcome(clip_case, CallOutcome(dense(exact_norm([clip_case.gradients[0]], 2, "float32")))) == (
        "",
        "",
    )  # type: ignore[list-item]


def test_a_mistake_is_named_despite_other_rounding() -> None:
    outcome = clip_with_mistake(GLOBAL, Mistake(own_norms=True))
    rounded = [g and oracle.scaled(g, 1 + 2.0**-23) for g in outcome.gradients or []]
    assert diagnose_outcome(GLOBAL, dataclasses.replace(outcome, gradients=rounded))[0] == "per tensor for global"


def test_a_verdict_has_its_cause() -> None:
    outcome, expected = clip_with_mistake(GLOBAL, Mistake(eps=0.0)), oracle.expect(GLOBAL)
    result = judge_result(WorkItem(HOST, GLOBAL), expected, outcome, FrameworkTable(), ()).result
    assert result is not None
    assert (result.verdict, result.cause) == ("different", "another eps of the clip")
    assert result.detail.startswith("as if eps were 0 instead of 1e-06 (coefficient off by 1.5")
    crashed = judge_result(WorkItem(HOST, GLOBAL), expected, Failure("crashed", "signal 11"), FrameworkTable(), ())
    assert crashed.result is not None
    assert crashed.result.cause == ""


def test_a_close_outcome_has_no_cause() -> None:
    next_norm = float(np.nextafter(np.float32(oracle.counted_norm(GLOBAL)), np.float32(9)))
    near = CallOutcome(dense(next_norm), list(oracle.clipped(GLOBAL, gradients(), next_norm)))
    expected = oracle.expect(GLOBAL)
    result = judge_result(WorkItem(DEVICE, GLOBAL), expected, near, FrameworkTable(), ()).result
    assert result is not None
    assert (result.verdict, result.cause) == ("close", "")


def test_an_unlisted_difference_of_a_frameworks_function_has_its_cause() -> None:
    outcome = dataclasses.replace(clip_with_mistake(PER_TENSOR, Mistake(total_norm=True)), name="native")
    native = judge_result(WorkItem(NATIVE, PER_TENSOR), oracle.expect(PER_TENSOR), outcome, FrameworkTable(), ()).native
    assert native is not None
    judgements, _ = match.match_deviations([], {("torch", PER_TENSOR.name): native})
    assert judgements["torch", PER_TENSOR.name][1].startswith(
        "as if each gradient were clipped by the total norm instead of its own norm (numbers differ by "
    )
    exact = dataclasses.replace(exact_outcome(PER_TENSOR), name="native")
    native = judge_result(WorkItem(NATIVE, PER_TENSOR), oracle.expect(PER_TENSOR), exact, FrameworkTable(), ()).native
    assert native is not None
    expected = NativeDeviation("native", norm=None, gradients=0.0)
    assert {key: getattr(native, key) for key in vars(expected)} == vars(expected)
