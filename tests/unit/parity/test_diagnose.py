"""A difference is put down to its cause where the numbers show it, and to none where they do not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.parity.cases import case, dense
from support.parity.faults import Mistake, clipped

from unified_clip.causes.observation import instead
from unified_clip.parity.judge import diagnose, oracle
from unified_clip.parity.judge.judged_result import judge_result
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.known import match
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.outcome import CallOutcome, Failure
from unified_clip.parity.suite.cases import Case
from unified_clip.parity.suite.schema import Framework
from unified_clip.parity.workers.pool import WorkItem
from unified_clip.tensors.arithmetic import rounded
from unified_clip.tensors.norms import exact_norm
from unified_clip.tensors.types import Dense, Sparse, digest

EPS_ROOT = (25e-8 + 1e-6) ** 0.5
"""The norm of 3e-4 and 4e-4, with eps 1e-6 inside the root."""

NAMES = ["embedding", "encoder.weight", "encoder.bias", "head"]


def gradients(seed: int = 0, dtype: str = "float32", scale: float = 0.01) -> list[Any]:
    random = np.random.default_rng(seed)
    return [dense(scale * random.standard_normal(shape), dtype) for shape in ((40, 25), (25, 40), 30, 2000)]


def named(call: str, given: list[Any] | None = None, **arguments: Any) -> Case:
    return dataclasses.replace(case(given or gradients(), call, **arguments), names=NAMES)


GLOBAL = named("clip_grad_norm_", max_norm=0.1)
NO_NORM = named("GradientClipByGlobalNorm", clip_norm=0.1)
EACH = named("clip_by_norm", clip_norm=0.1)
BELOW = named("clip_by_global_norm", clip_norm=9.0)
VALUE = named("clip_grad_value_", clip_value=0.01)


def cause(one: Case, found: CallOutcome) -> tuple[str, str]:
    """Kind and sentence; '' for none."""
    return tuple(diagnose.diagnose(one, oracle.expect(one), found) or ("", ""))  # type: ignore[return-value]


def right(one: Case) -> CallOutcome:
    expected = oracle.expect(one)
    return CallOutcome(expected.norm, None if expected.gradients is None else list(expected.gradients))


def changed(one: Case, change: Callable[[list[Any]], Any]) -> CallOutcome:
    """The right result, but for its gradients."""
    found = right(one)
    tensors = list(found.gradients or [])
    change(tensors)
    return dataclasses.replace(found, gradients=tensors)


def with_element(tensor: Any, value: float) -> Any:
    """The tensor with another number as its third."""
    array = tensor.array.copy()
    array.reshape(-1)[2] = value
    return dataclasses.replace(tensor, array=array)


MISTAKES = {
    "eps": (GLOBAL, Mistake(eps=0.0), "another eps", "as with eps 0 instead of 1e-06"),
    "eps where none is due": (EACH, Mistake(eps=1e-6), "another eps", "as with eps 1e-06 instead of 0"),
    "not counted": (GLOBAL, Mistake(not_counted=2), "left out", "as when 'encoder.bias' is left out of the norm"),
    "not counted, and no norm": (NO_NORM, Mistake(not_counted=0), "left out", "'embedding' is left out of the norm"),
    "dropped": (
        GLOBAL,
        Mistake(not_counted=1, not_scaled=1),
        "left out",
        "the call returned 'encoder.weight' unchanged, and the norm leaves out 'encoder.weight'",
    ),
    "not scaled": (GLOBAL, Mistake(not_scaled=3), "not scaled", "the call returned 'head' unchanged, though"),
    "own norms": (
        GLOBAL,
        Mistake(own_norms=True),
        "per tensor for global",
        "each gradient is clipped by its own norm instead of the total norm",
    ),
    "one norm": (
        EACH,
        Mistake(total_norm=True),
        "global for per tensor",
        "each gradient is clipped by the total norm instead of its own norm",
    ),
    "float32": (GLOBAL, Mistake(float32=True), "float32", "the squares are added up in float32, one after the other"),
    "bfloat16": (GLOBAL, Mistake(rounded_to="bfloat16"), "16 bits", "the norm is rounded to bfloat16"),
    "float16, and no norm": (NO_NORM, Mistake(rounded_to="float16"), "16 bits", "the norm is rounded to float16"),
    "twice": (GLOBAL, Mistake(times=2), "clipped twice", "as when the coefficient multiplies everything twice"),
    "not clipped": (NO_NORM, Mistake(times=0), "not clipped", "nothing is clipped"),
    "threshold": (GLOBAL, Mistake(threshold=2.0), "another threshold", "as with a threshold of 0.2 instead of 0.1"),
    "threshold of each": (EACH, Mistake(threshold=0.5), "another threshold", "a threshold of 0.05 instead of 0.1"),
    "threshold, and no norm": (NO_NORM, Mistake(threshold=0.5), "coefficient", "or with a norm that is 2 times as"),
    "order": (GLOBAL, Mistake(order=math.inf), "another norm type", "as with norm_type inf instead of 2"),
}
"""A case, what a port does wrong there, and the cause that is named."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_a_port_is_named(name: str) -> None:
    one, mistake, kind, words = MISTAKES[name]
    found = cause(one, clipped(one, mistake))
    assert found[0] == kind
    assert words in found[1]


NAN, INF = math.nan, math.inf
COEFFICIENT = 0.1 / (exact_norm(gradients(), 2, "float32") + 1e-6)
WITH_NAN = [dense([1.0, NAN]), dense([3.0])]
WITH_INF = [dense([1.0, INF]), dense([3.0])]
SIGNED = named("clip_by_value", [dense([-0.0, 3.0])], clip_value_min=-1.0, clip_value_max=1.0)
TWO = named("clip_by_global_norm", [dense([3.0, 4.0]), dense([[6.0], [8.0]])], clip_norm=1.0)

SHOWN = {
    "swapped": (
        changed(GLOBAL, lambda t: t.insert(0, t.pop(3))),
        GLOBAL,
        "swapped",
        "'embedding', 'encoder.weight', 'encoder.bias' and 'head' are in another order",
    ),
    "two swapped, of other shapes": (
        changed(TWO, list.reverse),
        TWO,
        "swapped",
        "'embedding' and 'encoder.weight' are swapped",
    ),
    "nothing came back": (
        changed(GLOBAL, lambda t: t.__setitem__(1, None)),
        GLOBAL,
        "left out",
        "'encoder.weight' is missing",
    ),
    "fewer came back": (changed(GLOBAL, lambda t: t.pop(2)), GLOBAL, "left out", "'encoder.bias' is missing"),
    "zeros": (
        changed(GLOBAL, lambda t: t.__setitem__(2, dense(np.zeros(30)))),
        GLOBAL,
        "not scaled",
        "the call returned zeros for 'encoder.bias', though the norm counts",
    ),
    "NaN in one": (
        changed(GLOBAL, lambda t: t.__setitem__(2, with_element(t[2], NAN))),
        GLOBAL,
        "NaN",
        "NaN in 'encoder.bias', where none should be: 1 of the 30 elements of 'encoder.bias', the first at [2]",
    ),
    "NaN everywhere": (
        CallOutcome(dense(NAN), [dense([NAN, NAN]), dense([[NAN], [NAN]])]),
        TWO,
        "NaN",
        "every element is NaN, but none should be",
    ),
    "NaN as the norm": (
        CallOutcome(dense(NAN), right(TWO).gradients),
        TWO,
        "NaN",
        "the norm is NaN, but should not be",
    ),
    "NaN not spread": (
        CallOutcome(dense(NAN), [oracle.scaled(each, 0.5) for each in WITH_NAN]),
        named("clip_by_global_norm", WITH_NAN, clip_norm=1.0),
        "NaN",
        "'embedding' and 'encoder.weight' should become NaN, but did not",
    ),
    "NaN left as it was": (
        CallOutcome(dense(NAN), WITH_NAN),
        named("clip_by_global_norm", WITH_NAN, clip_norm=1.0),
        "not clipped",
        "the gradients are returned unchanged",
    ),
    "another family's infinite norm": (
        CallOutcome(dense(INF), [dense([NAN, NAN]), dense([NAN])]),
        named("clip_grad_norm_", WITH_INF, max_norm=1.0),
        "inf",
        "an infinite norm makes every element NaN, but the coefficient should be 0",
    ),
    "an infinite norm that makes zeros": (
        CallOutcome(dense(INF), [dense([0.0, NAN]), dense([0.0])]),
        named("clip_by_global_norm", WITH_INF, clip_norm=1.0),
        "inf",
        "an infinite norm gives a coefficient of 0, but it should give NaN everywhere",
    ),
    "an infinite norm, and nothing clipped": (
        CallOutcome(dense(INF), WITH_INF),
        named("clip_grad_norm_", WITH_INF, max_norm=1.0),
        "not clipped",
        "nothing is clipped: the gradients are returned unchanged",
    ),
    "an infinite threshold that makes NaN": (
        CallOutcome(dense(INF), [dense([NAN, NAN]), dense([NAN])]),
        named("clip_grad_norm_", WITH_INF, max_norm=INF),
        "NaN",
        "every element is NaN, but none should be",
    ),
    "no eps, and so nothing clipped": (
        CallOutcome(dense(5e-7), [dense([3e-7, 4e-7])]),
        named("clip_grad_norm_", [dense([3e-7, 4e-7])], max_norm=1e-6),
        "another eps",
        "as with eps 0 instead of 1e-06",
    ),
    "squares too large, and no norm": (
        CallOutcome(None, [dense([0.0, 0.0])]),
        named("clip_grad_norm_", [dense([1e20, 1.0])], max_norm=1.0),
        "overflow",
        "every element is 0, as when squares exceed the range of float32 and the norm is inf",
    ),
    "squares too large, and each clipped by its own norm": (
        CallOutcome(None, [dense([0.0, 0.0]), dense([0.6, 0.8])]),
        named("clip_by_norm", [dense([1e20, 1e19]), dense([3.0, 4.0])], clip_norm=1.0),
        "overflow",
        "'embedding' became 0, as when squares exceed the range of float32 and a norm is inf",
    ),
    "a sign of zero": (
        CallOutcome(None, [dense([0.0, 1.0])]),
        SIGNED,
        "zeros",
        "zeros of the wrong sign in 'embedding', and no other difference",
    ),
    "scaled": (
        changed(BELOW, lambda t: t.__setitem__(slice(None), [oracle.scaled(each, 2.0) for each in t])),
        BELOW,
        "scaled gradients",
        "as when every gradient is 2 times as large",
    ),
    "touched": (
        changed(BELOW, lambda t: t.__setitem__(0, oracle.scaled(t[0], 1 - 2.0**-24))),
        BELOW,
        "touched",
        "'embedding' should be unchanged, but changed by up to",
    ),
    "overflow": (
        CallOutcome(dense(INF)),
        named("global_norm", [dense([1e20])]),
        "overflow",
        "the norm is inf instead of 1e+20: squares exceed the range of float32",
    ),
    "NaN of a norm that overflows": (
        CallOutcome(dense(INF), [dense([NAN, NAN]), dense([NAN])]),
        named("clip_by_global_norm", [dense([1e20, 0.0]), dense([1.0])], clip_norm=1.0),
        "overflow",
        "the norm is inf instead of 1e+20",
    ),
    "eps inside the root": (
        CallOutcome(dense(EPS_ROOT), [dense([3e-4 * 1.3e-4 / EPS_ROOT]), dense([4e-4 * 1.3e-4 / EPS_ROOT])]),
        named("clip_by_global_norm", [dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4),
        "another eps",
        "as with eps 1e-06 inside the root of the norm",
    ),
    "eps inside the root of a norm that is returned without it": (
        CallOutcome(dense(5e-4), [dense([3e-4 * 1.3e-4 / EPS_ROOT]), dense([4e-4 * 1.3e-4 / EPS_ROOT])]),
        named("clip_by_global_norm", [dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4),
        "another eps",
        "as with eps 1e-06 inside the root of the norm",
    ),
    "eps inside the root or outside of it": (
        CallOutcome(dense(5e-4), [dense([3e-4 * 1.3e-4 / (5e-4 + 1e-7)]), dense([4e-4 * 1.3e-4 / (5e-4 + 1e-7)])]),
        named("clip_by_global_norm", [dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4),
        "another eps",
        "as with eps 1e-07 instead of 0, or as with eps 1e-10 inside the root of the norm",
    ),
    "one sign": (
        CallOutcome(dense(5.0), [dense([-0.6, 0.8])]),
        named("clip_by_global_norm", [dense([3.0, 4.0])], clip_norm=1.0),
        "signs",
        "wrong signs in 'embedding', and no other difference",
    ),
    "the coefficient in place of the norm": (
        CallOutcome(dense(0.3), [dense([0.9, 1.2])]),
        named("clip_by_global_norm", [dense([3.0, 4.0])], clip_norm=1.5),
        "coefficient",
        "as when the coefficient is returned in place of the norm",
    ),
    "underflow": (
        CallOutcome(dense(0.0)),
        named("global_norm", [dense([1e-30])]),
        "underflow",
        "the norm is 0 instead of 1e-30: squares are too small",
    ),
    "zeros of a norm that underflows": (
        CallOutcome(dense(0.0), [dense([0.0])]),
        named("clip_by_global_norm", [dense([1e-30])], clip_norm=1.0),
        "coefficient",
        "squares are too small for float32, but the gradients do not follow from this norm",
    ),
    "other signs beside a norm that overflows": (
        CallOutcome(dense(INF), [dense([-1e-3])]),
        named("clip_by_global_norm", [dense([1e20])], clip_norm=1.0),
        "coefficient",
        "squares exceed the range of float32, but the gradients do not follow from this norm",
    ),
    "infinite elements": (
        changed(BELOW, lambda t: t.__setitem__(3, with_element(t[3], INF))),
        BELOW,
        "overflow",
        "infinite elements in 'head', which should be finite",
    ),
    "bounds": (
        CallOutcome(None, right(named("clip_grad_value_", clip_value=0.02)).gradients),
        VALUE,
        "another threshold",
        "as with bounds of -0.02 and 0.02 instead of -0.01 and 0.01",
    ),
    "bounds of whole numbers": (
        CallOutcome(None, [Dense("int64", np.array([-3, 1]))]),
        named("clip_by_value", [Dense("int64", np.array([-5, 1]))], clip_value_min=-2, clip_value_max=2),
        "another threshold",
        "as with bounds of -3 and 1 instead of -2 and 2",
    ),
    "a norm that does not show NaN": (
        CallOutcome(dense(3.0), [dense([NAN, NAN]), dense([NAN])]),
        named("clip_by_global_norm", WITH_NAN, clip_norm=1.0),
        "NaN",
        "the norm is not NaN, but the gradients have NaN",
    ),
    "one of them twice": (
        changed(GLOBAL, lambda t: t.__setitem__(1, oracle.scaled(t[1], COEFFICIENT))),
        GLOBAL,
        "clipped twice",
        "as when the coefficient multiplies 'encoder.weight' twice",
    ),
    "the square of the norm": (
        CallOutcome(dense(25.0)),
        named("global_norm", [dense([3.0, 4.0])]),
        "another norm type",
        "as with the square of the norm instead of the norm",
    ),
    "rows that are not summed": (
        CallOutcome(None, [dense([[1.6], [0.0]])]),
        named("clip_by_norm", [Sparse(np.array([0, 0]), dense([[3.0], [4.0]]), (2, 1))], clip_norm=8 / 7),
        "rows",
        "as when repeated rows are not summed before the norm is measured",
    ),
    "float32, by other blocks": (
        CallOutcome(dense(100.001)),
        named("global_norm", [dense(np.ones(10000))]),
        "float32",
        "the norm is off by 1.0e-05. Adding 10000 squares in float32 can cause that (up to 3.0e-04), and no other",
    ),
    "the greatest of all": (
        CallOutcome(dense(2.0)),
        named("get_total_norm", [dense([1.0, 2.0, 2.0, 0.5])]),
        "another norm type",
        "norm_type inf instead of 2",
    ),
    "the norm of each slice": (
        CallOutcome(None, [dense([[0.6, 0.0], [0.8, 0.0]])]),
        named("clip_by_norm", [dense([[3.0, 0.0], [4.0, 0.0]])], clip_norm=1.0, axes=[1]),
        "per tensor for per slice",
        "each gradient is clipped by its own norm instead of the norm of each slice",
    ),
    "groups that are not heeded": (
        right(named("GradientClipByGlobalNorm", clip_norm=0.1)),
        named("append_gradient_clip_ops", call_form={"groups": ("a", "a", "b", "b")}, clip_norm=0.1),
        "global for per group",
        "each gradient is clipped by the total norm instead of the norm of its group",
    ),
    "need_clip that is not heeded": (
        clipped(GLOBAL, Mistake(not_scaled=0)),
        named("clip_grad_norm_", call_form={"need_clip": (False, True, True, True)}, max_norm=0.1),
        "need_clip",
        "the norm counts 'embedding', which it should not",
    ),
    "a norm that is given and measured": (
        CallOutcome(None, right(named("clip_grad_norm_", max_norm=0.1)).gradients),
        named("clip_grads_with_norm_", max_norm=0.1, total_norm=2.0),
        "given norm",
        "as when the norm is measured, although the caller passes one",
    ),
}
"""A result, the case, and the cause that is named."""


@pytest.mark.parametrize("name", SHOWN)
def test_what_shows_in_a_result_is_named(name: str) -> None:
    found, one, kind, words = SHOWN[name]
    diagnosed = cause(one, found)
    assert diagnosed[0] == kind
    assert words in diagnosed[1]


@pytest.mark.parametrize("one", [GLOBAL, NO_NORM, EACH, BELOW, VALUE, SIGNED, TWO], ids=lambda one: one.call_name)
def test_no_cause_is_named_where_nothing_differs(one: Case) -> None:
    assert cause(one, right(one)) == ("", "")


def test_no_cause_is_named_that_does_not_fit() -> None:
    noise = changed(GLOBAL, lambda t: t.__setitem__(1, with_element(t[1], 0.5)))
    assert cause(GLOBAL, noise) == ("", "")


@pytest.mark.parametrize(
    ("max_norm", "sentence"),
    [
        (5e-6, "as with a threshold of 4.28571e-06 instead of 5e-06, or with eps of about 2e-06"),
        (2.5e-6, "as with a threshold of 2.14286e-06 instead of 2.5e-06, or with eps of about 2e-06"),
    ],
)
def test_an_eps_of_any_value_is_named_beside_the_threshold(max_norm: float, sentence: str) -> None:
    one = named("clip_grad_norm_", [dense([3e-6, 4e-6])], max_norm=max_norm)
    coef = np.float32(max_norm / (5e-6 + 2e-6))
    clipped = [dense((each.values().astype(np.float32) * coef).tolist()) for each in one.gradients]
    assert cause(one, CallOutcome(right(one).norm, clipped)) == ("another threshold", sentence)


@pytest.mark.parametrize(
    ("actual", "expected", "texts"),
    [
        (0.26200001, 0.262, "0.26200001 instead of 0.262"),
        ((-1.0, 1.00000005), (-1.0, 1.0), "-1 and 1.00000005 instead of -1 and 1"),
        (0.2620004, 0.262, "0.2620004 instead of 0.262"),
        (1.0, 1.0, "1 instead of 1"),
    ],
)
def test_settings_that_differ_have_enough_digits_to_differ(actual: Any, expected: Any, texts: str) -> None:
    assert instead("a threshold of", actual, expected) == f"as with a threshold of {texts}"


def test_a_threshold_that_hardly_differs_is_named_with_enough_digits() -> None:
    one = named("clip_by_global_norm", [dense([3.0, 4.0])], clip_norm=1.0)
    coef = np.float32((1 + 2e-6) / 5)
    clipped = [dense((each.values().astype(np.float32) * coef).tolist()) for each in one.gradients]
    sentence = "as with a threshold of 1.000002 instead of 1"
    assert cause(one, CallOutcome(right(one).norm, clipped)) == ("another threshold", sentence)


def test_an_eps_that_looks_like_a_second_clip_is_named_beside_it() -> None:
    one = named("clip_grad_norm_", [dense([3e-3, 4e-3])], max_norm=2.5e-3)
    coef = np.float32(2.5e-3 / (5e-3 + 2e-6))
    clipped = [dense((each.values().astype(np.float32) * coef).tolist()) for each in one.gradients]
    sentence = "as when everything is clipped twice, or with eps of about 2e-06"
    assert cause(one, CallOutcome(right(one).norm, clipped)) == ("clipped twice", sentence)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_that_was_taken_after_the_clip_is_named(dtype: str) -> None:
    one = named("clip_grad_norm_", gradients(dtype=dtype), max_norm=0.1)
    result = right(one)
    clipped_norm = dense(exact_norm([each for each in result.gradients or [] if each], 2, "float32"))
    kind, sentence = cause(one, dataclasses.replace(result, norm=clipped_norm))
    assert (kind, "the returned norm is that of the clipped gradients" in sentence) == ("norm after the clip", True)

    def scaled(factor: float) -> CallOutcome:
        tensors = [dense(each.values() * factor, dtype) for each in result.gradients or [] if each]
        return dataclasses.replace(result, norm=clipped_norm, gradients=tensors)

    assert cause(one, scaled(1 + 2.0**-23))[0] == "norm after the clip"
    twice = dense(2 * float(clipped_norm.values()))
    assert cause(one, dataclasses.replace(result, norm=twice))[0] != "norm after the clip"
    assert cause(one, scaled(1.5))[0] != "norm after the clip"


VALUES = [1.0, 0.3, -0.7, 0.11, 0.57]


def in_bfloat16(values: Any) -> Any:
    return rounded(np.asarray(values, np.float64), "bfloat16")


@pytest.mark.parametrize("how", ["divided", "multiplied"])
def test_a_clip_in_bfloat16_is_named_with_a_norm_that_is_added_up_in_it(how: str) -> None:
    """As optax does: the sums of many tensors are added up in bfloat16, which stops at 256."""
    one = named("clip_grad_norm_", [dense(VALUES, "bfloat16")] * 400, max_norm=1.3)
    total = 0.0
    for _ in one.gradients:
        total = float(in_bfloat16(total + in_bfloat16(in_bfloat16(VALUES) ** 2).sum()))
    norm, threshold = float(in_bfloat16(math.sqrt(total))), float(in_bfloat16(1.3))
    assert norm < 0.95 * oracle.counted_norm(one)
    values = in_bfloat16(VALUES)
    if how == "divided":
        clipped, words = (
            in_bfloat16(values / norm) * threshold,
            "are divided by the norm and multiplied by the threshold",
        )
    else:
        clipped, words = values * in_bfloat16(threshold / norm), "are multiplied by the coefficient"
    kind, sentence = cause(one, CallOutcome(None, [dense(clipped, "bfloat16")] * 400))
    assert (kind, words in sentence, "squares are added up in bfloat16" in sentence) == ("16 bits", True, True)
    half = [dense(values / 2, "bfloat16")] * 400
    assert cause(one, CallOutcome(None, half))[0] != "16 bits"


def test_a_clip_of_each_tensor_in_bfloat16_is_named() -> None:
    """As TensorFlow does: it multiplies by the threshold, and then divides by the norm."""
    values, threshold = in_bfloat16(VALUES), float(in_bfloat16(0.71))
    one = named("clip_by_norm", [dense(VALUES, "bfloat16"), dense([0.1, 0.2], "bfloat16")], clip_norm=0.71)
    norm = float(in_bfloat16(np.sqrt((values**2).sum())))
    clipped = in_bfloat16(in_bfloat16(values * threshold) / norm)
    kind, sentence = cause(one, CallOutcome(None, [dense(clipped, "bfloat16"), dense([0.1, 0.2], "bfloat16")]))
    way = "the gradients are multiplied by the threshold and divided by the norm in bfloat16"
    assert (kind, sentence) == ("16 bits", f"as when {way}")


def test_no_cause_is_named_where_two_fit() -> None:
    """The second is below the threshold: either it was left out, or each was clipped by its own norm."""
    one = named("GradientClipByGlobalNorm", [dense([3.0, 4.0]), dense([0.5])], clip_norm=1.0)
    assert cause(one, clipped(one, Mistake(own_norms=True))) == ("", "")


def test_one_of_equal_gradients_is_left_out() -> None:
    one = named("global_norm", [dense([3.0, 4.0]), dense([1.0]), dense([4.0, 3.0])])
    sentence = "as when one of 'embedding' and 'encoder.bias' is left out of the norm"
    assert cause(one, CallOutcome(dense(math.sqrt(26)))) == ("left out", sentence)


def test_all_of_one_rank_are_left_out() -> None:
    n = exact_norm([g for g in gradients() if len(g.shape) == 2], 2, "float32")
    sentence = "as when 'encoder.bias' and 'head' are left out of the norm"
    assert cause(named("global_norm"), CallOutcome(dense(n))) == ("left out", sentence)


def test_a_gradient_too_small_to_tell_from_rounding_is_not_named() -> None:
    one = named("global_norm", [dense(np.full(3000, 0.3)), dense([0.01])])
    assert cause(one, CallOutcome(dense(exact_norm([one.gradients[0]], 2, "float32")))) == ("", "")  # type: ignore[list-item]


def test_frameworks_round_otherwise_and_are_diagnosed_all_the_same() -> None:
    found = clipped(GLOBAL, Mistake(own_norms=True))
    rounded = [g and oracle.scaled(g, 1 + 2.0**-23) for g in found.gradients or []]
    assert cause(GLOBAL, dataclasses.replace(found, gradients=rounded))[0] == "per tensor for global"


def test_a_verdict_has_its_cause() -> None:
    found, expected = clipped(GLOBAL, Mistake(eps=0.0)), oracle.expect(GLOBAL)
    result = judge_result(WorkItem(HOST, GLOBAL), expected, found, Framework(), ()).result
    assert result is not None
    assert (result.verdict, result.cause) == ("different", "another eps")
    assert result.detail.startswith("coefficient off by 1.5")
    assert result.detail.endswith("ULP; as with eps 0 instead of 1e-06")
    crashed = judge_result(WorkItem(HOST, GLOBAL), expected, Failure("crashed", "signal 11"), Framework(), ())
    assert crashed.result is not None
    assert crashed.result.cause == ""


def test_what_is_close_enough_has_no_cause() -> None:
    n = float(np.nextafter(np.float32(oracle.counted_norm(GLOBAL)), np.float32(9)))
    near = CallOutcome(dense(n), list(oracle.clipped(GLOBAL, gradients(), n)))
    expected = oracle.expect(GLOBAL)
    result = judge_result(WorkItem(DEVICE, GLOBAL), expected, near, Framework(), ()).result
    assert result is not None
    assert (result.verdict, result.cause) == ("close", "")


def test_a_natives_difference_that_nobody_knows_has_its_cause() -> None:
    found = dataclasses.replace(clipped(EACH, Mistake(total_norm=True)), name="native")
    native = judge_result(WorkItem(NATIVE, EACH), oracle.expect(EACH), found, Framework(), ()).native
    assert native is not None
    judgements, _ = match.match_deviations([], {("torch", EACH.name): native}, {"torch": {}})
    assert judgements["torch", EACH.name][1].endswith(
        "; not listed as a known difference; as when each gradient is clipped by the total norm instead of its own norm"
        ". Run the command with --accept to list it"
    )
    same = dataclasses.replace(right(EACH), name="native")
    native = judge_result(WorkItem(NATIVE, EACH), oracle.expect(EACH), same, Framework(), ()).native
    assert native is not None
    expected = NativeDeviation("native", norm=None, gradients=0.0)
    assert {key: getattr(native, key) for key in vars(expected)} == vars(expected)


# -- random faults

CALLS = {
    "clip_grad_norm_": "max_norm",
    "clip_by_global_norm": "clip_norm",
    "GradientClipByGlobalNorm": "clip_norm",
    "GradientClipByNorm": "clip_norm",
}

RANDOM_MISTAKES: dict[str, Callable[[Case, int], Mistake]] = {
    "": lambda one, number: Mistake(),
    "another eps": lambda one, number: Mistake(eps=1e-6 - one.call.eps),
    "left out": lambda one, number: Mistake(not_counted=number),
    "not scaled": lambda one, number: Mistake(not_scaled=number),
    "per tensor for global": lambda one, number: Mistake(own_norms=True),
    "global for per tensor": lambda one, number: Mistake(total_norm=True),
    "float32": lambda one, number: Mistake(float32=True),
    "16 bits": lambda one, number: Mistake(rounded_to=("float16", "bfloat16")[number % 2]),
    "clipped twice": lambda one, number: Mistake(times=2),
    "not clipped": lambda one, number: Mistake(times=0),
    "another threshold": lambda one, number: Mistake(threshold=(0.5, 0.9, 1.1, 3.0)[number]),
    "another norm type": lambda one, number: Mistake(order=(1, math.inf)[number % 2]),
}


@st.composite
def random_cases(draw: st.DrawFn) -> tuple[Case, int]:
    """A case, and the number of one of its gradients."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", "float64"]))
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    scale = 10.0 ** draw(st.floats(-3, 2))
    tensors = [dense(scale * 10 ** random.uniform(-1, 1) * random.standard_normal(size), dtype) for size in sizes]
    limit = exact_norm(tensors, 2, "float32") * 10 ** draw(st.floats(-1.5, 0.3))
    call = draw(st.sampled_from(sorted(CALLS)))
    return named(call, tensors, **{CALLS[call]: limit}), draw(st.integers(0, len(sizes) - 1))


ONE_CLIPPED = [dense(0.01 * np.random.default_rng(13).standard_normal(30)), dense([0.01926432])]
"""Only the first tensor is clipped at 0.02, so that one coefficient is all there is to tell a cause by."""

TWO = [dense(0.3 * np.random.default_rng(122).standard_normal(114)), dense([1.4982047])]
"""Each is clipped by its own norm, and both roundings of a norm in float32 look like another eps."""

COARSE = [dense(np.random.default_rng(8).standard_normal(300), "float16")]
"""Another eps shows in few elements, and the norm is the right one."""


FEW = [dense([-0.0007, 0.1046])]
"""The root is what rounds most of so short a sum."""


NEARLY = [dense([-0.2482231]), dense([0.01266844]), dense([1.530252])]
"""Their norm is that threshold, so eps decides whether they are clipped."""
LONE = [dense([-0.002481], "float16")]
"""Clipped once or twice by a coefficient just below 1, it moves by one unit in the last place."""
TWO_EXACTLY = [dense([-2.0], "bfloat16")]
"""The square of its norm is twice the norm, so half the threshold has the same effect as the square of the norm."""


@pytest.mark.parametrize("kind", RANDOM_MISTAKES)
@given(drawn=random_cases())
@example(drawn=(named("GradientClipByNorm", ONE_CLIPPED, clip_norm=0.02), 0))
@example(drawn=(named("GradientClipByNorm", TWO, clip_norm=0.4), 0))
@example(drawn=(named("GradientClipByGlobalNorm", FEW, clip_norm=0.02), 0))
@example(drawn=(named("clip_grad_norm_", COARSE, max_norm=0.5), 0))
@example(drawn=(named("clip_grad_norm_", LONE, max_norm=0.0024814605712890625), 0))
@example(drawn=(named("clip_grad_norm_", NEARLY, max_norm=1.5503052473068237), 2))
@example(drawn=(named("GradientClipByGlobalNorm", TWO_EXACTLY, clip_norm=2.0), 0))
@settings(max_examples=30)
def test_a_random_mistake_is_named_as_what_it_is_or_not_at_all(kind: str, drawn: tuple[Case, int]) -> None:
    one, number = drawn
    found = clipped(one, RANDOM_MISTAKES[kind](one, number))
    if compare_with_exact(one, oracle.expect(one), found, HOST).kind == "equal":
        assert cause(one, found) == ("", "")
        return
    as_given = digest(one.gradients)  # type: ignore[arg-type]
    facts = {"not clipped"} if digest(found.gradients or []) == as_given else set()
    if digest(right(one).gradients or []) == as_given:
        facts.add("touched")
    if kind == "another threshold" and found.norm is None:
        facts.add("coefficient")  # which it cannot be told from
        facts |= {"another norm type"} if exact_norm(one.gradients, 2.0, "float64") == 2 else set()  # type: ignore[arg-type]
    if digest(found.gradients or []) == digest(clipped(one, Mistake(eps=0.0)).gradients or []):
        facts.add("another eps")  # a norm between the threshold and the threshold less eps is not clipped either
    if kind == "left out" and len(one.gradients) == 1:
        facts.add("underflow")  # as the norm of nothing is
    assert cause(one, found)[0] in {kind, "", *facts}
