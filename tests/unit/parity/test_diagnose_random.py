"""Random mistakes of clip functions are named by their cause or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.parity.cases import dense
from support.parity.diagnosis import diagnose_outcome, named_case
from support.parity.faults import Mistake, clip_with_mistake
from support.parity.runs import exact_outcome

from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.modes import HOST
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.norms import exact_norm
from unified_clip.tensors.types import digest

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


ONE_CLIPPED = [dense(0.01 * np.random.default_rng(13).standard_normal(30)), dense([0.01926432])]
"""Only the first tensor is clipped at 0.02, so a single coefficient decides the cause."""

BOTH_CLIPPED = [dense(0.3 * np.random.default_rng(122).standard_normal(114)), dense([1.4982047])]
"""Each tensor is clipped by its own norm. Both norms, rounded to float32, look like another eps."""

COARSE = [dense(np.random.default_rng(8).standard_normal(300), "float16")]
"""Another eps shows in few elements, and the norm is the right one."""

FEW = [dense([-0.0007, 0.1046])]
"""In such a short sum, most of the rounding error comes from the root."""

NEARLY = [dense([-0.2482231]), dense([0.01266844]), dense([1.530252])]
"""The norm equals the threshold, so eps decides whether the gradients are clipped."""

TWICE_ROUNDED = [dense(np.random.default_rng(0).standard_normal(40), "float64")]
"""Each element is rounded twice, so no coefficient explains all elements."""

LONE = [dense([-0.002481], "float16")]
"""One or two clips by a coefficient just below 1 change this number by one ULP."""

TWO_EXACTLY = [dense([-2.0], "bfloat16")]
"""The square of its norm is twice the norm, so half the threshold has the same effect as the square of the norm."""


@pytest.mark.parametrize("kind", RANDOM_MISTAKES)
@given(drawn_case=random_cases())
@example(drawn_case=(named_case("GradientClipByNorm", ONE_CLIPPED, clip_norm=0.02), 0))
@example(drawn_case=(named_case("GradientClipByNorm", BOTH_CLIPPED, clip_norm=0.4), 0))
@example(drawn_case=(named_case("GradientClipByGlobalNorm", FEW, clip_norm=0.02), 0))
@example(drawn_case=(named_case("clip_grad_norm_", COARSE, max_norm=0.5), 0))
@example(drawn_case=(named_case("GradientClipByGlobalNorm", TWICE_ROUNDED, clip_norm=0.7), 0))
@example(drawn_case=(named_case("clip_grad_norm_", LONE, max_norm=0.0024814605712890625), 0))
@example(drawn_case=(named_case("clip_grad_norm_", NEARLY, max_norm=1.5503052473068237), 2))
@example(drawn_case=(named_case("GradientClipByGlobalNorm", TWO_EXACTLY, clip_norm=2.0), 0))
@settings(max_examples=30)
def test_a_random_mistake_gets_no_wrong_cause(kind: str, drawn_case: tuple[Case, int]) -> None:
    clip_case, number = drawn_case
    outcome = clip_with_mistake(clip_case, RANDOM_MISTAKES[kind](clip_case, number))
    if compare_with_exact(clip_case, oracle.expect(clip_case), outcome, HOST).kind == "equal":
        assert diagnose_outcome(clip_case, outcome) == ("", "")
        return
    digest_before = digest(clip_case.gradients)  # type: ignore[arg-type]
    facts = {"not clipped"} if digest(outcome.gradients or []) == digest_before else set()
    if digest(exact_outcome(clip_case).gradients or []) == digest_before:
        facts.add("touched")
    if kind == "another threshold" and outcome.norm is None:
        facts.add("coefficient")  # these two causes cannot be distinguished
        facts |= {"another norm type"} if exact_norm(clip_case.gradients, 2.0, "float64") == 2 else set()  # type: ignore[arg-type]
    if digest(outcome.gradients or []) == digest(clip_with_mistake(clip_case, Mistake(eps=0.0)).gradients or []):
        facts.add(
            "another eps of the clip"
        )  # a norm between the threshold and the threshold less eps is not clipped either
    if kind == "left out" and len(clip_case.gradients) == 1:
        facts.add("underflow")  # as the norm of nothing is
    assert diagnose_outcome(clip_case, outcome)[0] in {kind, "", *facts}
