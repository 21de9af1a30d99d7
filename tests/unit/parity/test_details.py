"""Of a result that differs the report has the numbers: where it begins, how far off it is, and which side is nearer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from support.parity.cases import case, dense
from support.parity.runs import right

from unified_clip.parity.elements import Number, WorstElement
from unified_clip.parity.judge import oracle, worst_element
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.outcome import CallOutcome
from unified_clip.parity.suite.cases import Case
from unified_clip.tensors.types import Dense

GIVEN = [dense([[3.0, 4.0], [1.0, 2.0]]), None, dense([8.0, 1.0])]
CLIPPED = case(GIVEN, "clip_grad_norm_", max_norm=1.0)
NAMED = dataclasses.replace(CLIPPED, names=["weight", "frozen", "bias"])
AFTER_ONE = 2.0**-23


def test_the_distance_of_equal_nan_is_zero() -> None:
    nan = worst_element._number(dense(math.nan, "float64"), dense(math.nan, "float64"), 0, "float32")
    assert nan is not None
    assert nan.ulps == 0.0
    far = worst_element._number(dense(1.0, "float64"), dense(math.nan, "float64"), 0, "float32")
    assert far is not None
    assert far.ulps == math.inf


def find(one: Case, **outcomes: CallOutcome) -> dict[str, WorstElement]:
    return worst_element.find(one, oracle.expect(one), outcomes, outcomes)


def ours(one: Case, **changed: Any) -> WorstElement:
    """Of a result that is right but for what is changed."""
    (found,) = find(one, device=dataclasses.replace(right(one), **changed)).values()
    return found


def scaled(one: Case, factor: float) -> list[Dense | None]:
    given = right(one).gradients or []
    return [None if each is None else dense(each.values() * factor, each.dtype) for each in given]


def test_nothing_is_said_of_what_is_right() -> None:
    assert find(NAMED, host=right(NAMED), native=right(NAMED)) == {}


def test_a_wrong_norm_is_where_a_difference_begins_whatever_comes_after() -> None:
    norm = right(NAMED).norm
    assert norm is not None
    next_one = float(np.nextafter(np.float32(norm.values()), np.float32(np.inf)))
    found = ours(NAMED, norm=dense(next_one), gradients=scaled(NAMED, 2.0))
    assert (found.stage, found.gradient, found.place) == ("norm", None, "the norm")
    assert (found.exact.value, found.ours) == (float(norm.values()), Number(value=next_one, ulps=1.0))
    assert (found.apart, found.compared) == (1, 1)


def test_a_wrong_coefficient_is_told_of_the_gradient_that_shows_it_most() -> None:
    found = ours(NAMED, gradients=scaled(NAMED, 1 + 8 * AFTER_ONE))
    assert found.stage == "coefficient"
    assert found.ours is not None
    assert 7 <= found.ours.ulps <= 17  # in float32, whose numbers are closer together below a power of two
    assert math.isclose(found.ours.value, found.exact.value * (1 + 8 * AFTER_ONE), rel_tol=1e-7)
    assert found.place.startswith("the coefficient of gradient ")


def test_a_wrong_element_is_told_with_its_gradients_name_and_its_index() -> None:
    weight, frozen, bias = right(NAMED).gradients or []
    assert weight is not None
    assert bias is not None
    values = weight.values().copy()
    values[1, 0] *= 1 + 4 * AFTER_ONE
    values[0, 0] *= 1 + AFTER_ONE
    nearer = dense(bias.values() * [1.0, 1 + AFTER_ONE])
    found = ours(NAMED, gradients=[dense(values), frozen, nearer])
    assert (found.stage, found.gradient, found.name, found.element) == ("tensors", 0, "weight", [1, 0])
    assert found.place == "gradient 0 (weight), element [1, 0]"
    assert (found.apart, found.compared) == (3, 6)
    assert found.ours is not None
    assert found.ours.value == float(np.float32(values[1, 0]))
    assert 4 <= found.ours.ulps <= 8


def test_a_wrong_step_is_told_where_the_gradients_are_right() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=5.0, update=True)
    found = ours(one, update=[dense([-0.5, -2.0])])
    assert (found.stage, found.exact.value, found.element) == ("update", -1.0, [1])


def test_nan_is_infinitely_far_from_a_number() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_value", clip_value_min=-1.0, clip_value_max=3.5)
    found = ours(one, gradients=[dense([math.nan, 3.0])])
    assert found.element == [0]
    assert found.ours is not None
    assert (math.isnan(found.ours.value), found.ours.ulps) == (True, math.inf)


def test_the_native_is_shown_beside_ours_and_the_nearer_side_is_named() -> None:
    one = case([dense([3.0, 4.0])], "global_norm")
    near, far = CallOutcome(dense(5.0 + 2.0**-21)), CallOutcome(dense(5.0 + 2.0**-20))
    found = find(one, device=near, native=far)[DEVICE]
    assert found.ours == Number(value=5.0 + 2.0**-21, ulps=1.0)
    assert found.native == Number(value=5.0 + 2.0**-20, ulps=2.0)
    assert found.nearer == "ours"
    assert find(one, device=far, native=near)[DEVICE].nearer == "native"
    assert find(one, device=far, native=far)[DEVICE].nearer is None
    beside_host = find(one, device=near, host=right(one), native=far)[NATIVE]
    assert beside_host.ours == Number(value=5.0, ulps=0.0)


def test_of_a_function_the_stage_that_exceeds_the_tolerance_is_shown() -> None:
    """A norm that is rounded otherwise hides no wrong coefficient, and noise in small numbers no wrong tensor."""
    norm = right(NAMED).norm
    assert norm is not None
    rounding = dense(np.nextafter(np.float32(norm.values()), np.float32(np.inf)))
    wrong = CallOutcome(rounding, scaled(NAMED, 1.01))
    assert find(NAMED, native=wrong)[NATIVE].stage == "coefficient"
    assert (
        find(NAMED, host=dataclasses.replace(right(NAMED), norm=rounding, gradients=scaled(NAMED, 1.01)))[HOST].stage
        == "norm"
    )
    assert find(NAMED, native=CallOutcome(rounding, scaled(NAMED, 1.0)))[NATIVE].stage == "norm"
    noisy = case(
        [dense([1.0, 1e-9]), dense([1.0, 1.0], "bfloat16")], "clip_by_value", clip_value_min=-2, clip_value_max=2
    )
    result = CallOutcome(None, [dense([1.0, 1.01e-9]), dense([1.0, 1.0078125], "bfloat16")])
    found = find(noisy, native=result)[NATIVE]
    assert (found.gradient, found.element) == (1, [1])


def test_a_norm_in_another_dtype_is_measured_in_that_of_the_right_one() -> None:
    one = case([dense([1.0, 1.0], "bfloat16")], "global_norm")
    (found,) = find(one, native=CallOutcome(dense(1.4140625, "bfloat16"))).values()
    assert found.dtype == "float32"
    assert found.native is not None
    assert found.native.value == 1.4140625
    assert found.native.ulps == round((2**0.5 - 1.4140625) * 2**23)


def test_results_of_another_form_have_no_numbers_to_compare() -> None:
    assert find(CLIPPED, native=CallOutcome(None, [dense([1.0])])) == {}


def test_the_numbers_are_printed_in_decimal_and_hex() -> None:
    text = str(find(case([dense([3.0, 4.0])], "global_norm"), host=CallOutcome(dense(7.0)))[HOST])
    assert text.splitlines() == [
        "first differs at the norm: the norm; 1 of 1 numbers differ",
        "exact        5.0                      0x1.4000000000000p+2  float32",
        "unified_clip 7.0                      0x1.c000000000000p+2  4.19e+06 ULP",
    ]
