"""The numbers of a difference in the report: its first stage, its element, its size, and which side is nearer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from support.parity.cases import case, dense
from support.parity.reports import native, one_case, report
from support.parity.runs import exact_outcome

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle, worst_element
from unified_clip.parity.modes import DEVICE, HOST, NATIVE
from unified_clip.parity.report import page, view
from unified_clip.parity.results import FrameworkResult, Number, WorstElement
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.types import Dense

GRADIENTS = [dense([[3.0, 4.0], [1.0, 2.0]]), None, dense([8.0, 1.0])]
CLIPPED = case(GRADIENTS, "clip_grad_norm_", max_norm=1.0)
NAMED = dataclasses.replace(CLIPPED, names=["weight", "frozen", "bias"])
EPSILON = 2.0**-23


def worst_elements(clip_case: Case, **outcomes: CallOutcome) -> dict[str, WorstElement]:
    return worst_element.find_worst_element(clip_case, oracle.expect(clip_case), outcomes, outcomes)


def worst_element_of_change(clip_case: Case, **changes: Any) -> WorstElement:
    (element,) = worst_elements(clip_case, device=dataclasses.replace(exact_outcome(clip_case), **changes)).values()
    return element


def scaled_gradients(clip_case: Case, factor: float) -> list[Dense | None]:
    gradients = exact_outcome(clip_case).gradients or []
    return [None if each is None else dense(each.values() * factor, each.dtype) for each in gradients]


def test_a_wrong_coefficient_has_the_gradient_that_shows_it_most() -> None:
    element = worst_element_of_change(NAMED, gradients=scaled_gradients(NAMED, 1 + 8 * EPSILON))
    assert element.stage == "coefficient"
    assert element.ours is not None
    assert 7 <= element.ours.ulps <= 17  # in float32, whose numbers are closer together below a power of two
    assert math.isclose(element.ours.value, element.exact.value * (1 + 8 * EPSILON), rel_tol=1e-7)
    assert element.place.startswith("the coefficient of gradient ")


def test_a_wrong_element_has_the_name_of_its_gradient_and_its_index() -> None:
    weight, frozen, bias = exact_outcome(NAMED).gradients or []
    assert weight is not None
    assert bias is not None
    values = weight.values().copy()
    values[1, 0] *= 1 + 4 * EPSILON
    values[0, 0] *= 1 + EPSILON
    nearer = dense(bias.values() * [1.0, 1 + EPSILON])
    element = worst_element_of_change(NAMED, gradients=[dense(values), frozen, nearer])
    assert (element.stage, element.gradient, element.name, element.element) == ("tensors", 0, "weight", [1, 0])
    assert element.place == "gradient 0 (weight), element [1, 0]"
    assert (element.apart, element.compared) == (3, 6)
    assert element.ours is not None
    assert element.ours.value == float(np.float32(values[1, 0]))
    assert 4 <= element.ours.ulps <= 8


def test_stages_without_numbers_and_numbers_without_order() -> None:
    """The update differs after exact gradients, NaN is infinitely far, and other shapes cannot be compared."""
    assert worst_elements(NAMED, host=exact_outcome(NAMED), native=exact_outcome(NAMED)) == {}
    assert worst_elements(CLIPPED, native=CallOutcome(None, [dense([1.0])])) == {}
    clip_case = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=5.0, update=True)
    element = worst_element_of_change(clip_case, update=[dense([-0.5, -2.0])])
    assert (element.stage, element.exact.value, element.element) == ("update", -1.0, [1])
    clip_case = case([dense([3.0, 4.0])], "clip_by_value", clip_value_min=-1.0, clip_value_max=3.5)
    element = worst_element_of_change(clip_case, gradients=[dense([math.nan, 3.0])])
    assert (element.element, element.ours and element.ours.ulps) == ([0], math.inf)


def test_the_frameworks_result_is_shown_beside_unified_clips_and_the_nearer_one_is_named() -> None:
    clip_case = case([dense([3.0, 4.0])], "global_norm")
    near, far = CallOutcome(dense(5.0 + 2.0**-21)), CallOutcome(dense(5.0 + 2.0**-20))
    element = worst_elements(clip_case, device=near, native=far)[DEVICE]
    assert element.ours == Number(value=5.0 + 2.0**-21, ulps=1.0)
    assert element.native == Number(value=5.0 + 2.0**-20, ulps=2.0)
    assert element.nearer == "ours"
    assert worst_elements(clip_case, device=far, native=near)[DEVICE].nearer == "native"
    assert worst_elements(clip_case, device=far, native=far)[DEVICE].nearer is None
    beside_host = worst_elements(clip_case, device=near, host=exact_outcome(clip_case), native=far)[NATIVE]
    assert beside_host.ours == Number(value=5.0, ulps=0.0)


def test_the_stage_of_a_function_that_exceeds_the_tolerance_is_shown() -> None:
    """Rounding of the norm does not hide a wrong coefficient. Noise in small numbers does not hide a wrong tensor."""
    norm = exact_outcome(NAMED).norm
    assert norm is not None
    rounding = dense(np.nextafter(np.float32(norm.values()), np.float32(np.inf)))
    inexact = CallOutcome(rounding, scaled_gradients(NAMED, 1.01))
    assert worst_elements(NAMED, native=inexact)[NATIVE].stage == "coefficient"
    assert (
        worst_elements(
            NAMED,
            host=dataclasses.replace(exact_outcome(NAMED), norm=rounding, gradients=scaled_gradients(NAMED, 1.01)),
        )[HOST].stage
        == "norm"
    )
    assert worst_elements(NAMED, native=CallOutcome(rounding, scaled_gradients(NAMED, 1.0)))[NATIVE].stage == "norm"
    noisy = case(
        [dense([1.0, 1e-9]), dense([1.0, 1.0], "bfloat16")], "clip_by_value", clip_value_min=-2, clip_value_max=2
    )
    result = CallOutcome(None, [dense([1.0, 1.01e-9]), dense([1.0, 1.0078125], "bfloat16")])
    element = worst_elements(noisy, native=result)[NATIVE]
    assert (element.gradient, element.element) == (1, [1])


def test_a_norm_in_another_dtype_is_measured_in_the_dtype_of_the_exact_norm() -> None:
    clip_case = case([dense([1.0, 1.0], "bfloat16")], "global_norm")
    (element,) = worst_elements(clip_case, native=CallOutcome(dense(1.4140625, "bfloat16"))).values()
    assert element.dtype == "float32"
    assert element.native is not None
    assert element.native.value == 1.4140625
    assert element.native.ulps == round((2**0.5 - 1.4140625) * 2**23)


def test_the_numbers_are_printed_in_decimal_and_hex() -> None:
    sides = {"host": CallOutcome(dense(7.0)), "native": CallOutcome(dense(5.5))}
    details = worst_elements(case([dense([3.0, 4.0])], "global_norm"), **sides)
    assert str(details[HOST]).splitlines() == [
        "first differs at the norm; 1 of 1 numbers differ",
        "exact         5.0                      0x1.4000000000000p+2  float32",
        "unified_clip  7.0                      0x1.c000000000000p+2  4.19e+06 ULP",
        "framework     5.5                      0x1.6000000000000p+2  1.05e+06 ULP",
        "nearer        framework",
    ]
    result = native("different", function="clip.py:f").model_copy(update={"details": details[NATIVE]})
    assert view.numbers(result)[-2:] == [
        "your function 5.5                      0x1.6000000000000p+2  1.05e+06 ULP",
        "nearer        your function",
    ]
    run = report(one_case("a", torch=FrameworkResult(native=result)))
    assert '<th scope="row">your function</th><td>5.5</td>' in page.render(run)
