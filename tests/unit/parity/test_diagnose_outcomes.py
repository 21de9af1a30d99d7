"""Outcomes that differ from the exact result, and the cause that is named for each of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.parity.cases import dense
from support.parity.diagnosis import (
    BELOW_THRESHOLD,
    GLOBAL,
    NO_NORM,
    PER_TENSOR,
    VALUE,
    change_outcome,
    diagnose_outcome,
    gradients,
    named_case,
    with_element,
)
from support.parity.faults import Mistake, clip_with_mistake
from support.parity.runs import exact_outcome

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.norms import exact_norm
from unified_clip.tensors.types import Dense, Sparse

NORM_WITH_EPS = (25e-8 + 1e-6) ** 0.5
"""The norm of 3e-4 and 4e-4, with eps 1e-6 inside the root."""

NAN, INF = math.nan, math.inf

COEFFICIENT = 0.1 / (exact_norm(gradients(), 2, "float32") + 1e-6)

WITH_NAN = [dense([1.0, NAN]), dense([3.0])]

WITH_INF = [dense([1.0, INF]), dense([3.0])]

SIGNED = named_case("clip_by_value", [dense([-0.0, 3.0])], clip_value_min=-1.0, clip_value_max=1.0)

TWO_GRADIENTS = named_case("clip_by_global_norm", [dense([3.0, 4.0]), dense([[6.0], [8.0]])], clip_norm=1.0)

OUTCOMES = {
    "swapped": (
        change_outcome(GLOBAL, lambda t: t.insert(0, t.pop(3))),
        GLOBAL,
        "swapped",
        "'embedding', 'encoder.weight', 'encoder.bias' and 'head' are in another order",
    ),
    "two swapped, of other shapes": (
        change_outcome(TWO_GRADIENTS, list.reverse),
        TWO_GRADIENTS,
        "swapped",
        "'embedding' and 'encoder.weight' are swapped",
    ),
    "nothing came back": (
        change_outcome(GLOBAL, lambda t: t.__setitem__(1, None)),
        GLOBAL,
        "left out",
        "'encoder.weight' is missing",
    ),
    "fewer came back": (change_outcome(GLOBAL, lambda t: t.pop(2)), GLOBAL, "left out", "'encoder.bias' is missing"),
    "zeros": (
        change_outcome(GLOBAL, lambda t: t.__setitem__(2, dense(np.zeros(30)))),
        GLOBAL,
        "not scaled",
        "the call returned zeros for 'encoder.bias', although the norm includes",
    ),
    "NaN in one": (
        change_outcome(GLOBAL, lambda t: t.__setitem__(2, with_element(t[2], NAN))),
        GLOBAL,
        "NaN",
        "unexpected NaN in 'encoder.bias'. 'encoder.bias' has 1 NaN among 30 elements, the first at [2]",
    ),
    "NaN everywhere": (
        CallOutcome(dense(NAN), [dense([NAN, NAN]), dense([[NAN], [NAN]])]),
        TWO_GRADIENTS,
        "NaN",
        "every element is NaN, but none should be",
    ),
    "NaN as the norm": (
        CallOutcome(dense(NAN), exact_outcome(TWO_GRADIENTS).gradients),
        TWO_GRADIENTS,
        "NaN",
        "the norm is NaN, but should not be",
    ),
    "NaN not spread": (
        CallOutcome(dense(NAN), [oracle.scaled(each, 0.5) for each in WITH_NAN]),
        named_case("clip_by_global_norm", WITH_NAN, clip_norm=1.0),
        "NaN",
        "'embedding' and 'encoder.weight' should become NaN, but did not",
    ),
    "NaN left as it was": (
        CallOutcome(dense(NAN), WITH_NAN),
        named_case("clip_by_global_norm", WITH_NAN, clip_norm=1.0),
        "not clipped",
        "the gradients are unchanged",
    ),
    "another family's infinite norm": (
        CallOutcome(dense(INF), [dense([NAN, NAN]), dense([NAN])]),
        named_case("clip_grad_norm_", WITH_INF, max_norm=1.0),
        "inf",
        "every element is NaN, but the coefficient should be 0, because the total norm is infinite",
    ),
    "an infinite norm that makes zeros": (
        CallOutcome(dense(INF), [dense([0.0, NAN]), dense([0.0])]),
        named_case("clip_by_global_norm", WITH_INF, clip_norm=1.0),
        "inf",
        "the coefficient is 0, but should be NaN, because the total norm is infinite",
    ),
    "an infinite norm, and nothing clipped": (
        CallOutcome(dense(INF), WITH_INF),
        named_case("clip_grad_norm_", WITH_INF, max_norm=1.0),
        "not clipped",
        "nothing were clipped: the gradients are unchanged",
    ),
    "an infinite threshold that makes NaN": (
        CallOutcome(dense(INF), [dense([NAN, NAN]), dense([NAN])]),
        named_case("clip_grad_norm_", WITH_INF, max_norm=INF),
        "NaN",
        "every element is NaN, but none should be",
    ),
    "no eps, and so nothing clipped": (
        CallOutcome(dense(5e-7), [dense([3e-7, 4e-7])]),
        named_case("clip_grad_norm_", [dense([3e-7, 4e-7])], max_norm=1e-6),
        "not clipped",
        "as if nothing were clipped",
    ),
    "squares too large, and no norm": (
        CallOutcome(None, [dense([0.0, 0.0])]),
        named_case("clip_grad_norm_", [dense([1e20, 1.0])], max_norm=1.0),
        "overflow",
        "'embedding' became 0: a norm is probably inf, because squares exceed the range of float32",
    ),
    "squares too large, and each clipped by its own norm": (
        CallOutcome(None, [dense([0.0, 0.0]), dense([0.6, 0.8 - 2.0**-24])]),
        named_case("clip_by_norm", [dense([1e20, 1e19]), dense([3.0, 4.0])], clip_norm=1.0),
        "overflow",
        "'embedding' became 0: a norm is probably inf, because squares exceed the range of float32",
    ),
    "a sign of zero": (
        CallOutcome(None, [dense([0.0, 1.0])]),
        SIGNED,
        "zeros",
        "zeros in 'embedding' have the wrong sign",
    ),
    "scaled": (
        change_outcome(BELOW_THRESHOLD, lambda t: t.__setitem__(slice(None), [oracle.scaled(each, 2.0) for each in t])),
        BELOW_THRESHOLD,
        "scaled gradients",
        "as if every gradient were 2 times as large",
    ),
    "touched": (
        change_outcome(BELOW_THRESHOLD, lambda t: t.__setitem__(0, oracle.scaled(t[0], 1 - 2.0**-24))),
        BELOW_THRESHOLD,
        "touched",
        "the call should return 'embedding' unchanged, but changes elements by up to",
    ),
    "overflow": (
        CallOutcome(dense(INF)),
        named_case("global_norm", [dense([1e20])]),
        "overflow",
        "the norm is inf instead of 1e+20: squares exceed the range of float32",
    ),
    "NaN of a norm that overflows": (
        CallOutcome(dense(INF), [dense([NAN, NAN]), dense([NAN])]),
        named_case("clip_by_global_norm", [dense([1e20, 0.0]), dense([1.0])], clip_norm=1.0),
        "overflow",
        "the norm is inf instead of 1e+20",
    ),
    "eps inside the root": (
        CallOutcome(
            dense(NORM_WITH_EPS), [dense([3e-4 * 1.3e-4 / NORM_WITH_EPS]), dense([4e-4 * 1.3e-4 / NORM_WITH_EPS])]
        ),
        named_case("clip_by_global_norm", [dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4),
        "another eps of the clip",
        "as if eps 1e-06 were added inside the root of the norm",
    ),
    "eps inside the root of a norm that is returned without it": (
        CallOutcome(dense(5e-4), [dense([3e-4 * 1.3e-4 / NORM_WITH_EPS]), dense([4e-4 * 1.3e-4 / NORM_WITH_EPS])]),
        named_case("clip_by_global_norm", [dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4),
        "another eps of the clip",
        "as if eps 1e-06 were added inside the root of the norm",
    ),
    "eps inside the root or outside of it": (
        CallOutcome(dense(5e-4), [dense([3e-4 * 1.3e-4 / (5e-4 + 1e-7)]), dense([4e-4 * 1.3e-4 / (5e-4 + 1e-7)])]),
        named_case("clip_by_global_norm", [dense([3e-4]), dense([4e-4])], clip_norm=1.3e-4),
        "another eps of the clip",
        "as if eps 1e-10 were added inside the root of the norm, or as if eps were 1e-07 instead of 0",
    ),
    "one sign": (
        CallOutcome(dense(5.0), [dense([-0.6, 0.8])]),
        named_case("clip_by_global_norm", [dense([3.0, 4.0])], clip_norm=1.0),
        "signs",
        "only the signs of 'embedding' are wrong",
    ),
    "the coefficient in place of the norm": (
        CallOutcome(dense(0.3), [dense([0.9, 1.2])]),
        named_case("clip_by_global_norm", [dense([3.0, 4.0])], clip_norm=1.5),
        "coefficient",
        "as if the coefficient were returned in place of the norm",
    ),
    "underflow": (
        CallOutcome(dense(0.0)),
        named_case("global_norm", [dense([1e-30])]),
        "underflow",
        "the norm is 0 instead of 1e-30: squares are too small",
    ),
    "zeros of a norm that underflows": (
        CallOutcome(dense(0.0), [dense([0.0])]),
        named_case("clip_by_global_norm", [dense([1e-30])], clip_norm=1.0),
        "underflow",
        "squares are too small for float32",
    ),
    "other signs beside a norm that overflows": (
        CallOutcome(dense(INF), [dense([-1e-3])]),
        named_case("clip_by_global_norm", [dense([1e20])], clip_norm=1.0),
        "overflow",
        "squares exceed the range of float32",
    ),
    "infinite elements": (
        change_outcome(BELOW_THRESHOLD, lambda t: t.__setitem__(3, with_element(t[3], INF))),
        BELOW_THRESHOLD,
        "overflow",
        "elements of 'head' are infinite, but should be finite",
    ),
    "bounds": (
        CallOutcome(None, exact_outcome(named_case("clip_grad_value_", clip_value=0.02)).gradients),
        VALUE,
        "another threshold",
        "as if the bounds were -0.02 and 0.02 instead of -0.01 and 0.01",
    ),
    "bounds of whole numbers": (
        CallOutcome(None, [Dense("int64", np.array([-3, 1]))]),
        named_case("clip_by_value", [Dense("int64", np.array([-5, 1]))], clip_value_min=-2, clip_value_max=2),
        "another threshold",
        "as if the bounds were -3 and 1 instead of -2 and 2",
    ),
    "a norm that does not show NaN": (
        CallOutcome(dense(3.0), [dense([NAN, NAN]), dense([NAN])]),
        named_case("clip_by_global_norm", WITH_NAN, clip_norm=1.0),
        "NaN",
        "the norm is not NaN, but the gradients have NaN",
    ),
    "one of them twice": (
        change_outcome(GLOBAL, lambda t: t.__setitem__(1, oracle.scaled(t[1], COEFFICIENT))),
        GLOBAL,
        "clipped twice",
        "as if the coefficient were applied twice to 'encoder.weight'",
    ),
    "the square of the norm": (
        CallOutcome(dense(25.0)),
        named_case("global_norm", [dense([3.0, 4.0])]),
        "another norm type",
        "as if the call used the square of the norm instead of the norm",
    ),
    "rows that are not summed": (
        CallOutcome(None, [dense([[1.6], [0.0]])]),
        named_case("clip_by_norm", [Sparse(np.array([0, 0]), dense([[3.0], [4.0]]), (2, 1))], clip_norm=8 / 7),
        "rows",
        "as if repeated rows were not summed before the norm was measured",
    ),
    "float32, by other blocks": (
        CallOutcome(dense(100.001)),
        named_case("global_norm", [dense(np.ones(10000))]),
        "float32",
        "the norm is off by 1.0e-05. Adding 10000 squares in float32 can cause an error of up to 4.8e-05, and",
    ),
    "the greatest of all": (
        CallOutcome(dense(2.0)),
        named_case("get_total_norm", [dense([1.0, 2.0, 2.0, 0.5])]),
        "another norm type",
        "norm_type were inf instead of 2",
    ),
    "the norm of each slice": (
        CallOutcome(None, [dense([[0.6, 0.0], [0.8, 0.0]])]),
        named_case("clip_by_norm", [dense([[3.0, 0.0], [4.0, 0.0]])], clip_norm=1.0, axes=[1]),
        "per tensor for per slice",
        "each gradient were clipped by its own norm instead of the norm of each slice",
    ),
    "groups that are not heeded": (
        exact_outcome(named_case("GradientClipByGlobalNorm", clip_norm=0.1)),
        named_case("append_gradient_clip_ops", call_form={"groups": ("a", "a", "b", "b")}, clip_norm=0.1),
        "global for per group",
        "each gradient were clipped by the total norm instead of the norm of its group",
    ),
    "need_clip that is not heeded": (
        clip_with_mistake(GLOBAL, Mistake(not_scaled=0)),
        named_case("clip_grad_norm_", call_form={"need_clip": (False, True, True, True)}, max_norm=0.1),
        "need_clip",
        "the norm included 'embedding' by mistake",
    ),
    "a norm that is given and measured": (
        CallOutcome(None, exact_outcome(named_case("clip_grad_norm_", max_norm=0.1)).gradients),
        named_case("clip_grads_with_norm_", max_norm=0.1, total_norm=2.0),
        "given norm",
        "as if the function measured the norm instead of using the passed norm",
    ),
}
"""A result, the case, and the cause that is named."""


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_difference_in_an_outcome_is_named(name: str) -> None:
    outcome, clip_case, kind, words = OUTCOMES[name]
    diagnosis = diagnose_outcome(clip_case, outcome)
    assert diagnosis[0] == kind
    assert words in diagnosis[1]


@pytest.mark.parametrize(
    "clip_case",
    [GLOBAL, NO_NORM, PER_TENSOR, BELOW_THRESHOLD, VALUE, SIGNED, TWO_GRADIENTS],
    ids=lambda clip_case: clip_case.call_name,
)
def test_an_exact_outcome_has_no_cause(clip_case: Case) -> None:
    assert diagnose_outcome(clip_case, exact_outcome(clip_case)) == ("", "")
