"""Causes of a norm that leaves out gradients or counts a gradient twice, and of gradients that are not scaled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.parity.cases import case, dense

from unified_clip.causes.explain import find_causes
from unified_clip.causes.observation import Observation
from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import diagnose, oracle

Arrays = list[np.ndarray[Any, Any]]
Function = Callable[[Arrays, float], tuple[Arrays, float | None]]


def random_arrays(seed: int, *shapes: tuple[int, ...]) -> Arrays:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape) * 10 ** random.uniform(-0.5, 0.5) for shape in shapes]


BLOCK = ((6, 5), (6,))
NONE = np.empty(0)
LISTS = {
    "model": random_arrays(1, *BLOCK * 12, (3, 6)),
    "next step": random_arrays(2, *BLOCK * 12, (3, 6)),
    "one axis": random_arrays(3, (4,), (2,), (1,), (5,)),
    "scalar": random_arrays(4, (), (3,), (2, 2)),
    "one": random_arrays(5, (4,)),
    "None is last": [*random_arrays(6, (4,)), NONE],
}


def total(grads: Arrays) -> float:
    return math.hypot(*(float(np.linalg.norm(each)) for each in grads))


def clip(grads: Arrays, limit: float, norm: float) -> Arrays:
    coef = min(1.0, limit / norm) if norm else 1.0
    return [np.float32(each) * np.float32(coef) for each in grads]


def by_norm_of(counted: Callable[[Arrays], Arrays], *, returns_it: bool = True) -> Function:
    """Clip by the norm of some of the gradients, and return this norm or the correct norm."""
    return lambda grads, limit: (
        clip(grads, limit, total(counted(grads))),
        total(counted(grads)) if returns_it else total(grads),
    )


def unscaled(is_left_out: Callable[[np.ndarray[Any, Any]], bool], *, counts_it: bool) -> Function:
    """Do not scale some of the gradients."""

    def function(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        norm = total([each for each in grads if counts_it or not is_left_out(each)])
        return [each if is_left_out(each) else clip([each], limit, norm)[0] for each in grads], norm

    return function


def causes(function: Function, *lists: str, thresholds: tuple[float, ...] = (0.7, 3.1)) -> dict[str, tuple[str, str]]:
    calls, differing = dict[str, Observation](), []
    for name in lists:
        for threshold in thresholds:
            tensors = [dense(each) if each.size else None for each in LISTS[name]]
            this = dataclasses.replace(case(tensors, "clip_by_global_norm", clip_norm=threshold), names=[])
            clipped, norm = function([each.values() if each else NONE for each in tensors], threshold)
            results = [dense(each) if each.size else None for each in clipped]
            outcome = CallOutcome(None if norm is None else dense(norm), results)
            call = diagnose.observe(this, oracle.expect(this), outcome)
            assert call
            calls[f"{name} at {threshold}"] = call
            differing += [] if call.is_rounding(1e-6) else [f"{name} at {threshold}"]
    assert differing
    return {name: tuple(each.cause or ("", "")) for name, each in find_causes(calls, differing).items()}


FLAT = "all gradients with 1 axis"
LAST = "as if 'gradient 24' were {} the norm"


@pytest.mark.parametrize("returns_it", [True, False])
@pytest.mark.parametrize(
    ("counted", "lists", "cause"),
    [
        (
            lambda grads: [each for each in grads if each.ndim != 1],
            ("model", "next step", "one axis"),
            ("left out", f"as if {FLAT} were left out of the norm"),
        ),
        (
            lambda grads: [each for each in grads if each.ndim > 1],
            ("model", "one axis", "scalar"),
            ("left out", "as if all gradients with at most 1 axis were left out of the norm"),
        ),
        (
            lambda grads: grads[: len(grads) // 8 * 8],
            ("model", "next step"),
            ("left out", LAST.format("left out of")),
        ),
        (
            lambda grads: grads[: len(grads) // 7 * 7],
            ("model", "next step"),
            ("left out", "as if the last 4 gradients were left out of the norm"),
        ),
        (
            lambda grads: grads[3:],
            ("model",),
            ("left out", "as if the first 3 gradients were left out of the norm"),
        ),
        (
            lambda grads: [*grads, grads[-1]],
            ("model", "next step"),
            ("repeated parameter", LAST.format("counted twice in")),
        ),
        (
            lambda grads: [each / math.sqrt(2) for each in grads],
            ("model",),
            ("another norm type", "as if the call used the norm divided by the square root of 2 instead of the norm"),
        ),
        (
            lambda grads: [*grads, *grads],
            ("model",),
            ("another norm type", "as if the call used the norm times the square root of 2 instead of the norm"),
        ),
    ],
)
def test_the_gradients_that_a_norm_leaves_out_or_counts_twice_are_named(
    counted: Callable[[Arrays], Arrays], lists: tuple[str, ...], cause: tuple[str, str], returns_it: bool
) -> None:
    named = causes(by_norm_of(counted, returns_it=returns_it), *lists)
    assert {name.partition(" at ")[0] for name in named} == {*lists}
    assert set(named.values()) == {cause}


@pytest.mark.parametrize(
    ("counts_it", "cause"),
    [
        (True, ("not scaled", f"the call returned {FLAT} unchanged, although the norm includes {FLAT}")),
        (False, ("left out", f"the call returned {FLAT} unchanged, and the norm leaves out {FLAT}")),
    ],
)
def test_gradients_with_one_axis_that_are_not_scaled_are_named(counts_it: bool, cause: tuple[str, str]) -> None:
    function = unscaled(lambda each: each.ndim == 1, counts_it=counts_it)
    assert set(causes(function, "model", "next step").values()) == {cause}
    assert causes(function, "model", "one axis")["model at 0.7"] == cause


def test_a_gradient_below_rounding_that_is_not_scaled_is_named_without_the_norm() -> None:
    def function(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        return [*clip(grads[:1], limit, total(grads[:1])), grads[1]], total(grads[:1])

    LISTS["tiny bias"] = [np.full(3000, 0.3), np.array([1e-4])]
    named = causes(function, "tiny bias", thresholds=(1e-5, 2e-5))
    assert set(named.values()) == {("not scaled", "the call returned 'gradient 1' unchanged")}


def test_an_unchanged_result_alone_shows_no_gradients_that_the_norm_leaves_out() -> None:
    """A clip by value changes nothing if all elements are below the threshold, but the norm is above."""

    def by_value(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        return [np.clip(each, -limit, limit) for each in grads], total(grads)

    largest = max(float(np.abs(each).max()) for each in LISTS["model"])
    named = causes(by_value, "model", "one axis", thresholds=(0.7, largest + 0.1))
    assert largest + 0.1 < total(LISTS["model"])
    assert f"model at {largest + 0.1}" in named
    assert {kind for kind, _ in named.values()} == {"another rule"}


@pytest.mark.parametrize(("eps", "words"), [(0.0, ""), (1e-6, ", and as if eps were 1e-06 instead of 0")])
def test_an_eps_beside_the_norm_of_each_gradient_is_named_if_it_is_visible(eps: float, words: str) -> None:
    def function(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        return [clip([each], limit, total([each]) + eps)[0] for each in grads], total(grads)

    LISTS["small"] = [each * 1e-4 for each in LISTS["model"]]
    sentence = "as if each gradient were clipped by its own norm instead of the total norm"
    named = causes(function, "model", "small", thresholds=(1e-5, 3e-5))
    assert {name: sentence for name, (_, sentence) in named.items()} == {
        f"{name} at {limit}": f"{sentence}{words if name == 'small' else ''}"
        for name in ("model", "small")
        for limit in (1e-5, 3e-5)
    }


def test_a_gradient_is_named_that_explains_all_lists() -> None:
    """In one list, another gradient has the same norm."""
    LISTS["equal norms"] = [-each for each in LISTS["model"]]
    LISTS["equal norms"][4] = LISTS["equal norms"][4] * total(LISTS["model"][-1:]) / total(LISTS["model"][4:5])
    function = by_norm_of(lambda grads: grads[:-1])
    both = {f"{LAST.format('left out of').replace('24', '4')}, or {LAST.format('left out of')}"}
    assert {sentence for _, sentence in causes(function, "equal norms").values()} == both
    named = causes(function, "equal norms", "model")
    assert set(named.values()) == {("left out", LAST.format("left out of"))}


def test_a_correct_list_with_none_in_place_of_the_gradient_that_is_left_out_contradicts_nothing() -> None:
    named = causes(by_norm_of(lambda grads: grads[:-1]), "one", "model", "None is last")
    assert {name.partition(" at ")[0] for name in named} == {"one", "model"}
    assert named["one at 0.7"] == ("left out", "as if 'gradient 0' were left out of the norm")


def test_unchanged_gradients_are_not_clipped_although_the_norm_is_rounded_otherwise() -> None:
    named = causes(lambda grads, limit: ([*grads], total(grads) * (1 + 2.0**-23)), "one axis", "one")
    assert set(named.values()) == {("not clipped", "as if nothing were clipped: the gradients are unchanged")}


def rounded_otherwise(change: Callable[[np.ndarray[Any, Any], float], np.ndarray[Any, Any]]) -> Function:
    """Change the first gradient. The other gradients differ only by rounding."""

    def function(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        coef = min(1.0, limit / total(grads)) * (1 + 2.0**-23)
        scaled = [np.float32(each) * np.float32(coef) for each in grads]
        return [change(scaled[0], coef), *scaled[1:]], total(grads)

    return function


def test_a_gradient_that_is_scaled_twice_is_named_beside_gradients_that_are_rounded_otherwise() -> None:
    function = rounded_otherwise(lambda gradient, coef: gradient * np.float32(coef))
    sentence = "as if the coefficient were applied twice"
    assert set(causes(function, "one", thresholds=(0.2,)).values()) == {("clipped twice", sentence)}
    named = causes(function, "model", "one axis", "one", "None is last", thresholds=(0.1, 0.2))
    assert set(named.values()) == {("clipped twice", f"{sentence} to 'gradient 0'")}
    assert len(named) == 8


def test_wrong_signs_are_named_without_the_gradients_that_are_rounded_otherwise() -> None:
    named = causes(rounded_otherwise(lambda gradient, coef: -gradient), "model")
    assert set(named.values()) == {("signs", "as if 'gradient 0' were multiplied by -1")}


def test_a_norm_that_is_off_by_more_than_rounding_is_not_explained_by_float32() -> None:
    LISTS["long"] = [np.ones(100_000), *(np.full((1, 10), 1 + number / 10) for number in range(6))]
    named = causes(by_norm_of(lambda grads: [grads[0], *grads[2::2]]), "long", thresholds=(0.7,))
    assert set(named.values()) == {("", "")}


def test_results_in_16_bits_do_not_show_that_one_of_many_gradients_is_counted_twice() -> None:
    tensors = [dense(each, "bfloat16") for each in random_arrays(7, *[(3,)] * 60)]
    this = dataclasses.replace(case(tensors, "clip_by_global_norm", clip_norm=0.7), names=[])
    coef = 0.98 * 0.7 / total([each.values() for each in tensors])
    outcome = CallOutcome(None, [dense(np.float32(each.values()) * np.float32(coef), "bfloat16") for each in tensors])
    cause = diagnose.diagnose(this, oracle.expect(this), outcome)
    assert cause is None or cause.kind != "repeated parameter"


def test_a_list_in_another_order_is_named_in_spite_of_rounding() -> None:
    tensors = [dense(each) for each in LISTS["model"]]
    this = dataclasses.replace(case(tensors, "clip_by_global_norm", clip_norm=3.1), names=[])
    exact = oracle.expect(this)
    results = [
        dense(np.nextafter(np.float32(each.values()), np.float32(9)))
        for index in sorted(range(25), key=str)
        if (each := (exact.gradients or [])[index])
    ]
    cause = diagnose.diagnose(this, exact, CallOutcome(exact.norm, results))
    assert cause
    assert cause.sentence == "'gradient 2', 'gradient 3', 'gradient 4' and 20 others are in another order"
