"""One outcome that differs from the exact result: the cause that its numbers show, with its place, or no cause."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.parity.cases import case, dense
from support.parity.runs import exact_outcome

from unified_clip.parity.call_outcome import CallOutcome, Failure
from unified_clip.parity.judge import diagnose, oracle
from unified_clip.parity.judge.judged_result import judge_result
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.modes import DEVICE, HOST
from unified_clip.parity.suite.call_form import CallForm
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.schema import FrameworkTable
from unified_clip.parity.workers.worker_files import WorkItem
from unified_clip.tensors.arithmetic import nearest_float, rounded
from unified_clip.tensors.norms import exact_norm, norm_dtype
from unified_clip.tensors.types import Dense, Sparse, digest

NAN, INF = math.nan, math.inf


@dataclass
class Mistake:
    eps: float | None = None
    threshold: float = 1.0
    """The factor of the threshold."""

    order: float = 2
    own_norms: bool = False
    total_norm: bool = False
    not_counted: int | None = None
    not_scaled: int | None = None
    float32: bool = False
    rounded_to: str = ""
    times: int = 1


def clip_with_mistake(clip_case: Case, mistake: Mistake) -> CallOutcome:
    gradients: Sequence[Dense] = [g for g in clip_case.gradients if isinstance(g, Dense)]
    eps = clip_case.call.eps if mistake.eps is None else mistake.eps
    limit = clip_case.call.threshold(clip_case.arguments) * mistake.threshold
    by_total_norm = mistake.total_norm or (clip_case.call.by_total_norm and not mistake.own_norms)
    norms = [mistaken_norm([g], mistake) for g in gradients]
    counted = [g for number, g in enumerate(gradients) if number != mistake.not_counted]
    total_norm = mistaken_norm(counted, mistake)
    gradients_out = []
    for number, gradient in enumerate(gradients):
        norm_used = total_norm if by_total_norm else norms[number]
        coef = min(1.0, limit / (norm_used + eps)) if norm_used + eps else 1.0
        times = 0 if number == mistake.not_scaled else mistake.times
        for _ in range(times):
            gradient = oracle.scaled(gradient, coef)
        gradients_out.append(gradient)
    returned_norm = dense(total_norm, norm_dtype(gradients)) if clip_case.call.returns_norm else None
    return CallOutcome(returned_norm, gradients_out)


def mistaken_norm(gradients: Sequence[Dense], mistake: Mistake) -> float:
    if mistake.float32:
        squares = np.concatenate([g.values().reshape(-1) for g in gradients]).astype(np.float32) ** 2
        return float(np.sqrt(np.add.accumulate(squares)[-1]))
    n = exact_norm(gradients, mistake.order, norm_dtype(gradients))
    return nearest_float(n, mistake.rounded_to) if mistake.rounded_to else n


def named_case(call: str, tensors: list[Any] | None = None, **arguments: Any) -> Case:
    names = ["embedding", "encoder.weight", "encoder.bias", "head"]
    return dataclasses.replace(case(tensors or gradients(), call, **arguments), names=names)


def gradients(dtype: str = "float32") -> list[Any]:
    random = np.random.default_rng(0)
    return [dense(0.01 * random.standard_normal(shape), dtype) for shape in ((40, 25), (25, 40), 30, 2000)]


GLOBAL = named_case("clip_grad_norm_", max_norm=0.1)
NO_NORM = named_case("GradientClipByGlobalNorm", clip_norm=0.1)
PER_TENSOR = named_case("clip_by_norm", clip_norm=0.1)
BELOW_THRESHOLD = named_case("clip_by_global_norm", clip_norm=9.0)
VALUE = named_case("clip_grad_value_", clip_value=0.01)
TWO = named_case("clip_by_global_norm", [dense([3.0, 4.0]), dense([[6.0], [8.0]])], clip_norm=1.0)
HALVES = named_case("clip_by_global_norm", [dense([3.0, 4.0]), dense([[6.0], [8.0]])], clip_norm=2.6)


def total(tensors: list[Any], **arguments: Any) -> Case:
    return named_case("clip_by_global_norm", tensors, **arguments)


def norm_of(*tensors: Any) -> Case:
    return named_case("global_norm", list(tensors))


def got(norm: float | None, *clipped: Any) -> CallOutcome:
    return CallOutcome(None if norm is None else dense(norm), [dense(each) for each in clipped] or None)


def changed(clip_case: Case, change: Callable[[list[Any]], Any]) -> CallOutcome:
    outcome = exact_outcome(clip_case)
    tensors = list(outcome.gradients or [])
    change(tensors)
    return dataclasses.replace(outcome, gradients=tensors)


def put(clip_case: Case, index: int, new: Any) -> CallOutcome:
    """Return the exact outcome with another gradient: a tensor, or the value of its third element."""

    def change(tensors: list[Any]) -> None:
        tensor = new
        if isinstance(new, float):
            array = tensors[index].array.copy()
            array.reshape(-1)[2] = new
            tensor = dataclasses.replace(tensors[index], array=array)
        tensors[index] = tensor

    return changed(clip_case, change)


def scaled_by(clip_case: Case, coef: float) -> CallOutcome:
    scaled = [dense(each.values().astype(np.float32) * np.float32(coef)) for each in clip_case.gradients if each]
    return CallOutcome(exact_outcome(clip_case).norm, scaled)


def times(clip_case: Case, factor: float, index: int | None = None) -> CallOutcome:
    """Return the exact outcome with all gradients, or one of them, times a factor."""
    return changed(clip_case, lambda tensors: tensors.__setitem__(slice(None), [
        oracle.scaled(each, factor) if index in (None, number) else each for number, each in enumerate(tensors)
    ]))  # fmt: skip


TINY, SMALL = total([dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4), [dense([3e-6, 4e-6])]
WITH_EPS = (25e-8 + 1e-6) ** 0.5
"""The norm of 3e-4 and 4e-4, with eps 1e-6 inside the root."""

WITH_NAN, WITH_INF = ([dense([1.0, number]), dense([3.0])] for number in (NAN, INF))
NAN_CASE = total(WITH_NAN, clip_norm=1.0)
SIGNED = named_case("clip_by_value", [dense([-0.0, 3.0])], clip_value_min=-1.0, clip_value_max=1.0)
FIVE = total([dense([3.0, 4.0])], clip_norm=1.0)
LISTED_TWICE = dataclasses.replace(GLOBAL, call_form=CallForm(listed=[0, 1, 2, 1, 3]))
TWICE_IN_NORM = exact_norm([gradients()[index] for index in (0, 1, 1, 2, 3)], 2, "float32")
COUNTED_TWICE = CallOutcome(dense(TWICE_IN_NORM), [oracle.scaled(g, 0.1 / (TWICE_IN_NORM + 1e-6)) for g in gradients()])
MATRICES = exact_norm([each for each in gradients() if len(each.shape) == 2], 2, "float32")
EQUAL = norm_of(dense([3.0, 4.0, 0.0]), dense([1.0]), dense([4.0, 0.0, 3.0]))
NOISY = [dense(np.full(3000, 0.3)), dense([0.01])]
ONE_BELOW = named_case("GradientClipByGlobalNorm", [dense([3.0, 4.0]), dense([0.5])], clip_norm=1.0)
OWN_NORMS = clip_with_mistake(GLOBAL, Mistake(own_norms=True))
COEF = 0.1 / (exact_norm(gradients(), 2, "float32") + 1e-6)

ROWS: dict[str, tuple[Case, CallOutcome | Mistake, str, str]] = {
    # -- places and numbers of gradients
    "another order": (GLOBAL, changed(GLOBAL, lambda t: t.insert(0, t.pop(3))), "swapped", "and 'head' are in another"),
    "two swapped": (TWO, changed(TWO, list.reverse), "swapped", "'embedding' and 'encoder.weight' are swapped"),
    "nothing came back": (GLOBAL, put(GLOBAL, 1, None), "left out", "'encoder.weight' is missing"),
    "fewer came back": (GLOBAL, changed(GLOBAL, lambda t: t.pop(2)), "left out", "'encoder.bias' is missing"),
    "zeros": (GLOBAL, put(GLOBAL, 2, dense(np.zeros(30))), "not scaled", "zeros for 'encoder.bias'"),
    # -- what is not finite
    "NaN in one": (GLOBAL, put(GLOBAL, 2, NAN), "NaN", "'encoder.bias' has 1 NaN among 30 elements, the first at [2]"),
    "NaN everywhere": (TWO, got(NAN, [NAN, NAN], [[NAN], [NAN]]), "NaN", "every element is NaN"),
    "NaN as the norm": (TWO, CallOutcome(dense(NAN), exact_outcome(TWO).gradients), "NaN", "the norm is NaN"),
    "NaN not spread": (
        NAN_CASE, CallOutcome(dense(NAN), [oracle.scaled(each, 0.5) for each in WITH_NAN]), "NaN",
        "'embedding' and 'encoder.weight' should become NaN",
    ),
    "NaN left as it was": (NAN_CASE, CallOutcome(dense(NAN), WITH_NAN), "not clipped", "unchanged"),
    "a norm that does not show NaN": (NAN_CASE, got(3.0, [NAN, NAN], [NAN]), "NaN", "the norm is not NaN"),
    "NaN by another family's infinite norm": (
        named_case("clip_grad_norm_", WITH_INF, max_norm=1.0), got(INF, [NAN, NAN], [NAN]), "inf", "should be 0"
    ),
    "zeros by another family's infinite norm": (
        total(WITH_INF, clip_norm=1.0), got(INF, [0.0, NAN], [0.0]), "inf", "should be NaN"
    ),
    "an infinite norm, and nothing clipped": (
        named_case("clip_grad_norm_", WITH_INF, max_norm=1.0), CallOutcome(dense(INF), WITH_INF), "not clipped", ""
    ),
    "an infinite threshold that makes NaN": (
        named_case("clip_grad_norm_", WITH_INF, max_norm=INF), got(INF, [NAN, NAN], [NAN]), "NaN", "every element"
    ),
    "infinite elements": (BELOW_THRESHOLD, put(BELOW_THRESHOLD, 3, INF), "overflow", "elements of 'head' are infinite"),
    # -- the range of float32
    "overflow": (norm_of(dense([1e20])), got(INF), "overflow", "inf instead of 1e+20: squares exceed the range"),
    "overflow without a norm": (
        named_case("clip_grad_norm_", [dense([1e20, 1.0])], max_norm=1.0), got(None, [0.0, 0.0]), "overflow",
        "'embedding' became 0",
    ),
    "overflow of one of the tensors' norms": (
        named_case("clip_by_norm", [dense([1e20, 1e19]), dense([3.0, 4.0])], clip_norm=1.0),
        got(None, [0.0, 0.0], [0.6, 0.8 - 2.0**-24]), "overflow", "'embedding' became 0",
    ),
    "NaN of a norm that overflows": (
        total([dense([1e20, 0.0]), dense([1.0])], clip_norm=1.0), got(INF, [NAN, NAN], [NAN]), "overflow", "1e+20"
    ),
    "other signs beside a norm that overflows": (
        total([dense([1e20])], clip_norm=1.0), got(INF, [-1e-3]), "overflow", "squares exceed"
    ),
    "underflow": (norm_of(dense([1e-30])), got(0.0), "underflow", "0 instead of 1e-30: squares are too small"),
    "zeros of a norm that underflows": (total([dense([1e-30])], clip_norm=1.0), got(0.0, [0.0]), "underflow", ""),
    # -- eps and threshold
    "no eps": (GLOBAL, Mistake(eps=0.0), "another eps of the clip", "eps were 0 instead of 1e-06"),
    "eps where none is due": (PER_TENSOR, Mistake(eps=1e-6), "another eps of the clip", "eps were 1e-06 instead of 0"),
    "no eps, and so nothing clipped": (
        named_case("clip_grad_norm_", [dense([3e-7, 4e-7])], max_norm=1e-6), got(5e-7, [3e-7, 4e-7]), "not clipped", ""
    ),
    "eps inside the root": (
        TINY, got(WITH_EPS, [3e-4 * 1.3e-4 / WITH_EPS], [4e-4 * 1.3e-4 / WITH_EPS]), "another eps of the clip",
        "1e-06 were added inside the root",
    ),
    "eps inside the root of a norm that is returned without it": (
        TINY, got(5e-4, [3e-4 * 1.3e-4 / WITH_EPS], [4e-4 * 1.3e-4 / WITH_EPS]), "another eps of the clip",
        "1e-06 were added inside the root",
    ),
    "eps inside the root or outside of it": (
        TINY, got(5e-4, [3e-4 * 1.3e-4 / (5e-4 + 1e-7)], [4e-4 * 1.3e-4 / (5e-4 + 1e-7)]), "another eps of the clip",
        "1e-10 were added inside the root of the norm, or as if eps were 1e-07 instead of 0",
    ),
    "eps or threshold": (
        named_case("clip_grad_norm_", SMALL, max_norm=5e-6),
        scaled_by(named_case("clip_grad_norm_", SMALL, max_norm=5e-6), 5e-6 / 7e-6), "another threshold",
        "4.28572e-06 instead of 5e-06, or as if eps were 2e-06 instead of 1e-06",
    ),
    "eps or a second clip": (
        named_case("clip_grad_norm_", [dense([3e-3, 4e-3])], max_norm=2.5e-3),
        scaled_by(named_case("clip_grad_norm_", [dense([3e-3, 4e-3])], max_norm=2.5e-3), 2.5e-3 / (5e-3 + 2e-6)),
        "clipped twice", "all gradients were clipped twice, or as if eps were 2e-06 instead of 1e-06",
    ),
    "threshold": (GLOBAL, Mistake(threshold=2.0), "another threshold", "0.2 instead of 0.1"),
    "threshold of each": (PER_TENSOR, Mistake(threshold=0.5), "another threshold", "0.05 instead of 0.1"),
    "threshold, and no norm": (NO_NORM, Mistake(threshold=0.5), "another threshold", "the norm were 2 times as"),
    "integer part": (HALVES, Mistake(threshold=2 / 2.6), "another threshold", "the integer part of the threshold"),
    "rounded threshold": (HALVES, Mistake(threshold=3 / 2.6), "another threshold", "threshold were rounded to an"),
    "square": (HALVES, Mistake(threshold=2.6), "another threshold", "the square of the threshold"),
    "a nearly equal threshold": (FIVE, scaled_by(FIVE, (1 + 2e-6) / 5), "another threshold", "1.000002 instead of 1"),
    "bounds": (
        VALUE, CallOutcome(None, exact_outcome(named_case("clip_grad_value_", clip_value=0.02)).gradients),
        "another threshold", "-0.02 and 0.02 instead of -0.01 and 0.01",
    ),
    "bounds beside NaN": (
        named_case("clip_grad_value_", [dense([NAN, -3.0, 3.0])], clip_value=1.0), got(None, [NAN, -2.0, 2.0]),
        "another threshold", "-2 and 2 instead of -1 and 1",
    ),
    "bounds of whole numbers": (
        named_case("clip_by_value", [Dense("int64", np.array([-5, 1]))], clip_value_min=-2, clip_value_max=2),
        CallOutcome(None, [Dense("int64", np.array([-3, 1]))]), "another threshold", "-3 and 1 instead of -2 and 2",
    ),
    # -- which gradients a norm has, and which are scaled
    "not counted": (GLOBAL, Mistake(not_counted=2), "left out", "'encoder.bias' were left out of the norm"),
    "not counted, and no norm": (NO_NORM, Mistake(not_counted=0), "left out", "'embedding' were left out"),
    "dropped": (GLOBAL, Mistake(not_counted=1, not_scaled=1), "left out", "the norm leaves out 'encoder.weight'"),
    "one of two equal gradients": (
        EQUAL, got(math.sqrt(26)), "left out", "'embedding' were left out of the norm, or as if 'encoder.bias'"
    ),
    "gradients with one axis": (norm_of(*gradients()), got(MATRICES), "left out", "all gradients with 1 axis"),
    "a gradient below rounding": (norm_of(*NOISY), got(exact_norm(NOISY[:1], 2, "float32")), "", ""),
    "not scaled": (GLOBAL, Mistake(not_scaled=3), "not scaled", "'head' unchanged, although"),
    "counted as often as it is listed": (
        LISTED_TWICE, COUNTED_TWICE, "repeated parameter", "the norm included 'encoder.weight' as often as"
    ),
    "scaled as often as it is listed": (
        LISTED_TWICE, dataclasses.replace(COUNTED_TWICE, gradients=[
            oracle.scaled(each, 0.1 / (TWICE_IN_NORM + 1e-6)) if number == 1 else each
            for number, each in enumerate(COUNTED_TWICE.gradients or [])
        ]), "repeated parameter", "'encoder.weight' were included in the norm and scaled as often as",
    ),
    "need_clip that is not heeded": (
        named_case("clip_grad_norm_", call_form={"need_clip": (False, True, True, True)}, max_norm=0.1),
        clip_with_mistake(GLOBAL, Mistake(not_scaled=0)), "need_clip", "'embedding' by mistake",
    ),
    # -- the rule and the norm
    "own norms": (GLOBAL, Mistake(own_norms=True), "per tensor for global", "its own norm instead of the total norm"),
    "own norms, rounded otherwise": (
        GLOBAL, dataclasses.replace(OWN_NORMS, gradients=[
            each and oracle.scaled(each, 1 + 2.0**-23) for each in OWN_NORMS.gradients or []
        ]), "per tensor for global", "",
    ),
    "own norms, or one gradient left out": (
        ONE_BELOW, clip_with_mistake(ONE_BELOW, Mistake(own_norms=True)), "", ""
    ),
    "one norm": (PER_TENSOR, Mistake(total_norm=True), "global for per tensor", "the total norm instead of its own"),
    "the norm of each slice": (
        named_case("clip_by_norm", [dense([[3.0, 0.0], [4.0, 0.0]])], clip_norm=1.0, axes=[1]),
        got(None, [[0.6, 0.0], [0.8, 0.0]]), "per tensor for per slice", "instead of the norm of each slice",
    ),
    "groups that are not heeded": (
        named_case("append_gradient_clip_ops", call_form={"groups": ("a", "a", "b", "b")}, clip_norm=0.1),
        exact_outcome(named_case("GradientClipByGlobalNorm", clip_norm=0.1)), "global for per group", "of its group",
    ),
    "order": (GLOBAL, Mistake(order=INF), "another norm type", "norm_type were inf instead of 2"),
    "the greatest of all": (
        named_case("get_total_norm", [dense([1.0, 2.0, 2.0, 0.5])]), got(2.0), "another norm type", "inf instead of 2"
    ),
    "the square of the norm": (norm_of(dense([3.0, 4.0])), got(25.0), "another norm type", "the square of the norm"),
    "a norm that is given and measured": (
        named_case("clip_grads_with_norm_", max_norm=0.1, total_norm=2.0),
        CallOutcome(None, exact_outcome(GLOBAL).gradients), "given norm", "instead of using the passed norm",
    ),
    "rows that are not summed": (
        named_case("clip_by_norm", [Sparse(np.array([0, 0]), dense([[3.0], [4.0]]), (2, 1))], clip_norm=8 / 7),
        got(None, [[1.6], [0.0]]), "rows", "repeated rows were not summed",
    ),
    "float32": (GLOBAL, Mistake(float32=True), "float32", "one after the other"),
    "float32, by other blocks": (norm_of(dense(np.ones(10000))), got(100.001), "float32", "10000 squares"),
    "bfloat16": (GLOBAL, Mistake(rounded_to="bfloat16"), "16 bits", "the norm were computed in bfloat16"),
    "float16, and no norm": (NO_NORM, Mistake(rounded_to="float16"), "16 bits", "the norm were computed in float16"),
    # -- the products
    "twice": (GLOBAL, Mistake(times=2), "clipped twice", "the coefficient were applied twice"),
    "one of them twice": (GLOBAL, times(GLOBAL, COEF, 1), "clipped twice", "twice to 'encoder.weight'"),
    "not clipped": (NO_NORM, Mistake(times=0), "not clipped", "nothing were clipped"),
    "scaled": (BELOW_THRESHOLD, times(BELOW_THRESHOLD, 2.0), "scaled gradients", "2 times as large"),
    "touched": (BELOW_THRESHOLD, times(BELOW_THRESHOLD, 1 - 2.0**-24, 0), "touched", "'embedding' unchanged, but"),
    "one sign": (FIVE, got(5.0, [-0.6, 0.8]), "signs", "only the signs of 'embedding'"),
    "a sign of zero": (SIGNED, got(None, [0.0, 1.0]), "zeros", "zeros in 'embedding' have the wrong sign"),
    "the coefficient in place of the norm": (
        total([dense([3.0, 4.0])], clip_norm=1.5), got(0.3, [0.9, 1.2]), "coefficient", "in place of the norm"
    ),
    "noise": (GLOBAL, put(GLOBAL, 1, 0.5), "", ""),
}  # fmt: skip
"""What is wrong: the case, its outcome, and the cause that is named, with its place."""


def diagnose_outcome(clip_case: Case, outcome: CallOutcome) -> tuple[str, str]:
    """Return (kind, sentence) of the diagnosis, or ('', '')."""
    return tuple(diagnose.diagnose(clip_case, oracle.expect(clip_case), outcome) or ("", ""))  # type: ignore[return-value]


def test_the_causes_of_outcomes_are_named_with_their_places() -> None:
    """One test, because the change tier runs only a third of many variants."""
    wrong = {}
    for what, (clip_case, outcome, kind, place) in ROWS.items():
        outcome = clip_with_mistake(clip_case, outcome) if isinstance(outcome, Mistake) else outcome
        named, sentence = diagnose_outcome(clip_case, outcome)
        if named != kind or place not in sentence:
            wrong[what] = named, sentence
    assert wrong == {}


@pytest.mark.parametrize(
    "clip_case", [GLOBAL, NO_NORM, PER_TENSOR, BELOW_THRESHOLD, VALUE, SIGNED, TWO], ids=lambda each: each.call_name
)
def test_an_exact_outcome_has_no_cause(clip_case: Case) -> None:
    assert diagnose_outcome(clip_case, exact_outcome(clip_case)) == ("", "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_of_the_clipped_gradients_is_named(dtype: str) -> None:
    clip_case = named_case("clip_grad_norm_", gradients(dtype), max_norm=0.1)
    result = exact_outcome(clip_case)
    clipped = [each for each in result.gradients or [] if each]
    norm = exact_norm(clipped, 2, "float32")
    kinds = []
    for returned, factor in ((norm, 1.0), (norm, 1 + 2.0**-23), (2 * norm, 1.0), (norm, 1.5)):
        tensors = [dense(each.values() * factor, dtype) for each in clipped]
        kinds.append(diagnose_outcome(clip_case, CallOutcome(dense(returned), tensors))[0] == "norm after the clip")
    assert kinds == [True, True, False, False]


VALUES = [1.0, 0.3, -0.7, 0.11, 0.57]


def in_bfloat16(values: Any) -> Any:
    return rounded(np.asarray(values, np.float64), "bfloat16")


@pytest.mark.parametrize(
    ("products", "place"),
    [
        (lambda values, norm, limit: in_bfloat16(values / norm) * limit, "divided by the norm and multiplied by"),
        (lambda values, norm, limit: values * in_bfloat16(limit / norm), "were multiplied by the coefficient"),
    ],
)
def test_a_clip_in_bfloat16_is_named_with_the_rounding_of_its_norm(products: Callable[..., Any], place: str) -> None:
    """As optax does: the sums of many tensors are added up in bfloat16, which stops at 256."""
    clip_case = named_case("clip_grad_norm_", [dense(VALUES, "bfloat16")] * 400, max_norm=1.3)
    square = 0.0
    for _ in clip_case.gradients:
        square = float(in_bfloat16(square + in_bfloat16(in_bfloat16(VALUES) ** 2).sum()))
    norm = float(in_bfloat16(math.sqrt(square)))
    assert norm < 0.95 * oracle.counted_norm(clip_case)
    clipped = products(in_bfloat16(VALUES), norm, float(in_bfloat16(1.3)))
    kind, sentence = diagnose_outcome(clip_case, CallOutcome(None, [dense(clipped, "bfloat16")] * 400))
    assert (kind, place in sentence) == ("16 bits", True)
    half = [dense(in_bfloat16(VALUES) / 2, "bfloat16")] * 400
    assert diagnose_outcome(clip_case, CallOutcome(None, half))[0] != "16 bits"


def test_a_clip_per_tensor_in_bfloat16_is_named() -> None:
    """As TensorFlow does: it multiplies by the threshold, and then divides by the norm."""
    values, small = in_bfloat16(VALUES), dense([0.1, 0.2], "bfloat16")
    clip_case = named_case("clip_by_norm", [dense(VALUES, "bfloat16"), small], clip_norm=0.71)
    norm = float(in_bfloat16(np.sqrt((values**2).sum())))
    clipped = in_bfloat16(in_bfloat16(values * float(in_bfloat16(0.71))) / norm)
    kind, sentence = diagnose_outcome(clip_case, CallOutcome(None, [dense(clipped, "bfloat16"), small]))
    assert (kind, "multiplied by the threshold and divided by the norm" in sentence) == ("16 bits", True)


def test_a_verdict_has_its_cause_if_the_outcome_is_neither_close_nor_missing() -> None:
    def judged(mode: str, outcome: CallOutcome | Failure) -> tuple[str, str]:
        result = judge_result(WorkItem(mode, GLOBAL), oracle.expect(GLOBAL), outcome, FrameworkTable(), ()).result
        assert result is not None
        return result.verdict, result.cause

    next_norm = float(np.nextafter(np.float32(oracle.counted_norm(GLOBAL)), np.float32(9)))
    near = CallOutcome(dense(next_norm), list(oracle.clipped(GLOBAL, gradients(), next_norm)))
    assert judged(HOST, clip_with_mistake(GLOBAL, Mistake(eps=0.0))) == ("different", "another eps of the clip")
    assert judged(DEVICE, near) == ("close", "")
    assert judged(HOST, Failure("crashed", "signal 11")) == ("crashed", "")


# -- random mistakes

THRESHOLD_ARGUMENTS = {
    "clip_grad_norm_": "max_norm",
    "clip_by_global_norm": "clip_norm",
    "GradientClipByGlobalNorm": "clip_norm",
    "GradientClipByNorm": "clip_norm",
}

RANDOM_MISTAKES: dict[str, Callable[[Case, int], Mistake]] = {
    "": lambda clip_case, number: Mistake(),
    "another eps of the clip": lambda clip_case, number: Mistake(eps=1e-6 - clip_case.call.eps),
    "left out": lambda clip_case, number: Mistake(not_counted=number),
    "not scaled": lambda clip_case, number: Mistake(not_scaled=number),
    "per tensor for global": lambda clip_case, number: Mistake(own_norms=True),
    "global for per tensor": lambda clip_case, number: Mistake(total_norm=True),
    "float32": lambda clip_case, number: Mistake(float32=True),
    "16 bits": lambda clip_case, number: Mistake(rounded_to=("float16", "bfloat16")[number % 2]),
    "clipped twice": lambda clip_case, number: Mistake(times=2),
    "not clipped": lambda clip_case, number: Mistake(times=0),
    "another threshold": lambda clip_case, number: Mistake(threshold=(0.5, 0.9, 1.1, 3.0)[number]),
    "another norm type": lambda clip_case, number: Mistake(order=(1, math.inf)[number % 2]),
}


@st.composite
def random_cases(draw: st.DrawFn) -> tuple[Case, int]:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", "float64"]))
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    scale = 10.0 ** draw(st.floats(-3, 2))
    tensors = [dense(scale * 10 ** random.uniform(-1, 1) * random.standard_normal(size), dtype) for size in sizes]
    threshold = exact_norm(tensors, 2, "float32") * 10 ** draw(st.floats(-1.5, 0.3))
    call = draw(st.sampled_from(sorted(THRESHOLD_ARGUMENTS)))
    return named_case(call, tensors, **{THRESHOLD_ARGUMENTS[call]: threshold}), draw(st.integers(0, len(sizes) - 1))


def normal(seed: int, size: int, scale: float = 1.0, dtype: str = "float32") -> Any:
    return dense(scale * np.random.default_rng(seed).standard_normal(size), dtype)


# Only the first tensor is clipped, so a single coefficient decides the cause.
ONE_CLIPPED = named_case("GradientClipByNorm", [normal(13, 30, 0.01), dense([0.01926432])], clip_norm=0.02)
# Both norms, rounded to float32, look like another eps.
BOTH_CLIPPED = named_case("GradientClipByNorm", [normal(122, 114, 0.3), dense([1.4982047])], clip_norm=0.4)
# In such a short sum, most of the rounding error comes from the root.
FEW = named_case("GradientClipByGlobalNorm", [dense([-0.0007, 0.1046])], clip_norm=0.02)
# Another eps shows in few elements, and the norm is the right one.
COARSE = named_case("clip_grad_norm_", [normal(8, 300, dtype="float16")], max_norm=0.5)
# Each element is rounded twice, so no coefficient explains all elements.
TWICE_ROUNDED = named_case("GradientClipByGlobalNorm", [normal(0, 40, dtype="float64")], clip_norm=0.7)
# One or two clips by a coefficient just below 1 change this number by one ULP.
LONE = named_case("clip_grad_norm_", [dense([-0.002481], "float16")], max_norm=0.0024814605712890625)
# The norm equals the threshold, so eps decides whether the gradients are clipped.
NEARLY = named_case(
    "clip_grad_norm_", [dense([-0.2482231]), dense([0.01266844]), dense([1.530252])], max_norm=1.5503052473068237
)
# The square of its norm is twice the norm, so half the threshold has the same effect as the square of the norm.
TWO_EXACTLY = named_case("GradientClipByGlobalNorm", [dense([-2.0], "bfloat16")], clip_norm=2.0)


@pytest.mark.parametrize("kind", RANDOM_MISTAKES)
@given(drawn_case=random_cases())
@example(drawn_case=(ONE_CLIPPED, 0))
@example(drawn_case=(BOTH_CLIPPED, 0))
@example(drawn_case=(FEW, 0))
@example(drawn_case=(COARSE, 0))
@example(drawn_case=(TWICE_ROUNDED, 0))
@example(drawn_case=(LONE, 0))
@example(drawn_case=(NEARLY, 2))
@example(drawn_case=(TWO_EXACTLY, 0))
@settings(max_examples=30)
def test_a_random_mistake_gets_no_wrong_cause(kind: str, drawn_case: tuple[Case, int]) -> None:
    clip_case, number = drawn_case
    tensors: Any = clip_case.gradients
    outcome = clip_with_mistake(clip_case, RANDOM_MISTAKES[kind](clip_case, number))
    if compare_with_exact(clip_case, oracle.expect(clip_case), outcome, HOST).kind == "equal":
        assert diagnose_outcome(clip_case, outcome) == ("", "")
        return
    facts = {"not clipped"} if digest(outcome.gradients or []) == digest(tensors) else set()
    if digest(exact_outcome(clip_case).gradients or []) == digest(tensors):
        facts.add("touched")
    if kind == "another threshold" and outcome.norm is None:
        facts.add("coefficient")  # these two causes cannot be distinguished
        facts |= {"another norm type"} if exact_norm(tensors, 2.0, "float64") == 2 else set()
    # a norm between the threshold and the threshold less eps is not clipped either
    if digest(outcome.gradients or []) == digest(clip_with_mistake(clip_case, Mistake(eps=0.0)).gradients or []):
        facts.add("another eps of the clip")
    if kind == "left out" and len(tensors) == 1:
        facts.add("underflow")  # as the norm of nothing is
    assert diagnose_outcome(clip_case, outcome)[0] in {kind, "", *facts}
