"""`unified_clip.testing`: the messages of the assertions, and rejected arguments."""

from __future__ import annotations

import doctest
import importlib.util
import math
import re
import sys
from pathlib import Path
from typing import Any
from unittest import SkipTest

import ml_dtypes
import numpy as np
import pytest

import unified_clip
from unified_clip import testing
from unified_clip._kit.install import command
from unified_clip.parity.workers import run_worker
from unified_clip.testing import assert_clip_parity, assert_gradients_equal, assert_suite_passes


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def failures(a: Any, b: Any, max_ulp: float = 0, rtol: float = 0) -> list[str]:
    with pytest.raises(AssertionError) as error:
        assert_gradients_equal(a, b, max_ulp, rtol=rtol)
    first, *lines = str(error.value).splitlines()
    assert first == "the gradients differ"
    return lines


# -- two containers


def test_every_gradient_that_differs_is_reported_with_its_first_and_its_greatest_difference() -> None:
    a = {"weight": f32(1, 2, 3, 4).reshape(2, 2), "bias": f32(1), "same": f32(5)}
    b = {"weight": f32(1, 2.0000002, 3.000001, 4).reshape(2, 2), "bias": f32(-1), "same": f32(5)}
    assert failures(a, b) == [
        "bias differs",
        "  first at [0]: a is 1.0 (0x1p+0), b is -1.0 (-0x1p+0), 2130706433 ulp apart",
        "weight: 2 of 4 elements differ",
        "  first at [0, 1]: a is 2.0 (0x1p+1), b is 2.0000002 (0x1.000002p+1), 1 ulp apart",
        "  greatest at [1, 0]: a is 3.0 (0x1.8p+1), b is 3.000001 (0x1.800008p+1), 4 ulp apart",
    ]


def test_only_what_is_further_apart_than_max_ulp_counts() -> None:
    a, b = [f32(1, 2, 3)], [f32(1, 2.0000002, 3.000001)]
    assert_gradients_equal(a, b, max_ulp=4)
    assert failures(a, b, 3) == [
        "gradient 0: 1 of 3 elements differ by more than 3 ulp",
        "  first at [2]: a is 3.0 (0x1.8p+1), b is 3.000001 (0x1.800008p+1), 4 ulp apart",
    ]
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="Pass a finite number that is at least 0"):
            assert_gradients_equal(a, b, wrong)


def test_differences_are_measured_relative_to_the_largest_element_of_their_gradient() -> None:
    """Sums that cancel can differ by many ULP, although they agree up to rounding."""
    a, b = [f32(1, 1e-6), f32(0)], [f32(1.000001, 1.5e-6), f32(0)]
    assert_gradients_equal(a, b, rtol=1e-5)
    assert_gradients_equal(a, b, 8, rtol=6e-7)  # the first element is within max_ulp, and the second within rtol
    assert (
        failures(a, b, rtol=5e-7)[0] == "gradient 0: 1 of 2 elements differ by more than 5e-07 of the largest element"
    )
    assert failures(a, b, 3, rtol=1e-8)[0].endswith("differ by more than 3 ulp and 1e-08 of the largest element")
    assert failures([f32(1e-9)], [f32(0)], rtol=0.1)
    assert failures([f32(1, math.nan)], [f32(1, 1)], rtol=0.1)
    assert failures([f32(math.inf, 1)], [f32(1, 1)], rtol=0.1)
    for wrong in (-1, math.nan, 0.2):
        with pytest.raises(ValueError, match=r"Pass a number from 0 to 0\.1"):
            assert_gradients_equal(a, b, rtol=wrong)


def test_what_has_no_element_or_is_one_object_is_refused() -> None:
    empty = np.zeros((0, 3), np.float32)
    for a, b in (([empty], [empty.copy()]), ([None, empty], [None, empty.copy()])):
        with pytest.raises(ValueError, match="a and b have only empty gradients, so nothing can be compared"):
            assert_gradients_equal(a, b)
    assert_gradients_equal([empty, f32(1)], [empty.copy(), f32(1)])
    with pytest.raises(ValueError, match="grads has only empty gradients"):
        assert_clip_parity([empty], "global_norm", ["numpy"])
    grads = [f32(1)]
    with pytest.raises(ValueError, match="`a` and `b` are the same object, so nothing can differ"):
        assert_gradients_equal(grads, grads)


@pytest.mark.parametrize(
    ("a", "b"), [([], []), ({}, []), ([None], [None]), ({"w": None}, {"w": None}), ((x for x in ()), [])]
)
def test_containers_without_any_gradient_are_refused(a: Any, b: Any) -> None:
    with pytest.raises(ValueError, match="a and b have no gradient, so nothing can be compared"):
        assert_gradients_equal(a, b)
    with pytest.raises(ValueError, match="grads has no gradient, so nothing can be compared"):
        assert_clip_parity(b, "global_norm", ["numpy"])


def test_nan_equals_nan_and_nothing_else_and_the_zeros_are_1_ulp_apart() -> None:
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert_gradients_equal([f32(math.nan)], [other_nan])
    assert failures([f32(math.nan)], [f32(1)], 1e300)[1].endswith("a is nan, b is 1.0 (0x1p+0), only one is NaN")
    assert failures([f32(1)], [f32(math.nan)], 1e300)
    assert failures([f32(0.0)], [f32(-0.0)])[1].endswith("a is 0.0 (0x0p+0), b is -0.0 (-0x0p+0), 1 ulp apart")
    assert_gradients_equal([f32(0.0)], [f32(-0.0)], max_ulp=1)


def test_other_dtypes_shapes_and_missing_gradients_are_told() -> None:
    assert failures([f32(1), f32(1), f32(1)], [f32(1).astype(np.float64), f32(1, 1), None]) == [
        "gradient 0: a is float32[1], b is float64[1]",
        "gradient 1: a is float32[1], b is float32[2]",
        "gradient 2: a is float32[1], b is None",
    ]


def test_containers_of_other_names_or_lengths_are_told() -> None:
    assert failures([f32(1)], [f32(1), None]) == ["a has 1 gradient, b has 2. Only b has: gradient 1"]
    assert failures({"w": f32(1)}, [f32(1)]) == ["a has 1 gradient, b has 1. Only a has: w. Only b has: gradient 0"]
    many = {f"w{index}": f32(1) for index in range(9)}
    assert failures(many, {}) == ["a has 9 gradients, b has 0. Only a has: w0, w1, w2, w3, w4, ..."]


def test_of_many_gradients_that_differ_five_are_reported_and_the_rest_is_counted() -> None:
    lines = failures([f32(1)] * 9, [f32(2)] * 9)
    assert lines[0] == "a is 0.5 times b in all 9 gradients that differ"
    assert lines[1:] == [*failures([f32(1)], [f32(2)]), "and 8 more gradients differ"]
    lines = failures([f32(number) for number in range(2, 11)], [f32(1)] * 9)
    assert (len(lines), lines[-1]) == (2 * 5 + 1, "and 4 more gradients differ")
    assert failures([f32(number) for number in range(2, 8)], [f32(1)] * 6)[-1] == "and 1 more gradient differs"


def test_the_gradient_with_the_largest_relative_difference_comes_first() -> None:
    a = {f"w{number}": f32(1, 1 + number * 2**-10) for number in range(9)} | {"cast": f32(1).astype(np.float64)}
    lines = failures(a, {**{name: f32(1, 1) for name in a}, "cast": f32(1)})
    assert lines[0].startswith("cast: a is float64[1]")
    assert [line.split(":")[0] for line in lines[1::2]] == ["w8", "w7", "w6", "w5", "and 4 more gradients differ"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_gradients_without_the_common_factor_come_before_one_gradient_with_it(dtype: Any) -> None:
    random = np.random.default_rng(0)
    grads = [random.standard_normal((3, 4)) for _ in range(20)]
    a, b = ([(factor * grad).astype(dtype) for grad in grads] for factor in (0.3, 0.9))
    first, _, *examples, last = failures(a, b)
    assert re.fullmatch(r"a is 0\.33\d+ times b in all 20 gradients that differ", first)
    assert len(examples) <= 2
    assert last == "and 19 more gradients differ"
    a[17] = (0.8 * grads[17]).astype(dtype)
    a[18] = b[18]
    first, second, *_ = failures(a, b)
    assert re.fullmatch(r"a is 0\.33\d+ times b in 18 of 19 gradients that differ", first)
    assert second.startswith("gradient 17: 12 of 12 elements differ")
    assert re.fullmatch(r"a is 0\.33\d+ times b", failures(a[:1], b[:1])[0])
    a[0][0, 0] = -a[0][0, 0]
    assert "times" not in failures(a[:1], b[:1])[0]


def test_complex_numbers_differ_in_one_of_their_parts() -> None:
    a, b = np.array([[1 + 2j]], np.complex64), np.array([[1 + 4j]], np.complex64)
    assert failures([a], [b]) == [
        "gradient 0: 1 of 2 parts differ",
        "  first at [0, 0], the imaginary part: a is 2.0 (0x1p+1), b is 4.0 (0x1p+2), 8388608 ulp apart",
    ]


def test_integers_are_as_far_apart_as_their_difference() -> None:
    assert failures([np.array(-3)], [np.array(2)])[1] == "  first at []: a is -3, b is 2, 5 ulp apart"


# -- a rule on frameworks


GRADS = {"weight": f32(3, 4), "bias": f32(1, 2), "unused": None}


def worker(code: str) -> Any:
    lines = "import sys, numpy as np; framework = sys.argv.pop(1); sys.argv.insert(1, 'numpy')\n"
    lines += f"import unified_clip.numpy as uc\n{code}\nfrom unified_clip.parity.workers import worker; worker.main()"
    return lambda framework, python: [sys.executable, "-c", lines, framework]


def parity_told(code: str, monkeypatch: pytest.MonkeyPatch, rule: Any = "clip_grad_norm_", **options: Any) -> list[str]:
    monkeypatch.setattr(run_worker, "command", worker(code))
    return clip_parity_told(rule, **({"max_norm": 5.0} | options))


def clip_parity_told(rule: Any = "clip_grad_norm_", **options: Any) -> list[str]:
    """Return the lines of the failure message. A skip is an error here, because pytest would skip this test."""
    with pytest.raises((AssertionError, SkipTest)) as error:
        assert_clip_parity(GRADS, rule, **({"frameworks": ["numpy", "torch"]} | options))
    assert error.type is AssertionError
    return str(error.value).splitlines()


WRONG = "right = uc.clip_grad_norm_\ndef changed(given, *args, **kwargs):\n    norm = right(given, *args, **kwargs)\n"


def test_a_framework_that_clips_otherwise_is_named_with_tensor_index_and_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = WRONG + "    given[1][1] *= 2 if framework == 'torch' else 1\n    return norm\nuc.clip_grad_norm_ = changed"
    assert parity_told(code, monkeypatch) == [
        "clip_grad_norm_(max_norm=5.0) differs between frameworks, or from the exact result",
        "torch: bias: 1 of 2 elements differ",
        "  first at [1]: torch is 3.6514828 (0x1.d363cap+1), the exact result is 1.8257414 (0x1.d363cap+0), "
        "8388608 ulp apart",
    ]


def test_a_wrong_norm_is_reported_as_a_gradient_is(monkeypatch: pytest.MonkeyPatch) -> None:
    code = WRONG + "    return np.float32(norm * 2)\nuc.clip_grad_norm_ = changed"
    assert parity_told(code, monkeypatch)[1] == "numpy: the norm differs"


def test_frameworks_that_are_each_right_have_to_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    code = WRONG + "    return np.nextafter(norm, norm * 2) if framework == 'torch' else norm\n"
    code += "uc.clip_grad_norm_ = changed"
    lines = parity_told(code, monkeypatch, norm_type=3.0, max_norm=math.inf)
    assert lines[1] == "the norm differs"
    assert lines[2].startswith("  first at []: torch is ")
    assert lines[2].endswith("1 ulp apart")
    assert ", numpy is " in lines[2]


def test_a_framework_that_raises_or_crashes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def changed(*_, **__): raise RuntimeError('no')\nuc.clip_grad_norm_ = changed"
    assert parity_told(code, monkeypatch)[1] == "numpy: different: raised RuntimeError: no"
    lines = parity_told("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", monkeypatch)
    assert lines[0] == "clip_grad_norm_(max_norm=5.0) failed on a framework"
    assert lines[1].startswith("numpy: crashed: signal 9 (SIGKILL)")
    assert lines[2].startswith("torch: crashed: signal 9 (SIGKILL)")


def test_a_framework_that_is_not_there_fails_with_what_to_install_or_skips() -> None:
    options: dict[str, Any] = {"max_norm": 5.0, "interpreters": {"torch": "/absent/python"}}
    missing = (
        "torch is missing: /absent/python cannot be started: No such file or directory. "
        "Install torch for /absent/python, or correct this path in interpreters= or --clip-interpreter."
    )
    assert clip_parity_told(**options) == ["clip_grad_norm_(max_norm=5.0) failed on a framework", missing]
    with pytest.raises(SkipTest) as skip:
        assert_clip_parity(GRADS, "clip_grad_norm_", ["numpy", "torch"], missing="skip", **options)
    assert str(skip.value) == missing


def test_frameworks_in_one_text_are_an_error(tmp_path: Path) -> None:
    for check in (lambda: assert_clip_parity(GRADS, "clip_grad_norm_", "numpy", max_norm=1.0),
                  lambda: assert_suite_passes(tmp_path, "numpy")):  # fmt: skip
        with pytest.raises(TypeError, match=r"^frameworks is 'numpy'\. Pass a list of names, such as \['numpy'\]$"):
            check()


def test_a_difference_fails_though_a_framework_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def absent(): raise ModuleNotFoundError('No module named torch', name='torch')\n"
    code += "from unified_clip.parity.adapters import numpy as adapter\n"
    code += "if framework == 'torch': adapter.FrameworkAdapter = absent\n"
    code += WRONG + "    return np.float32(1)\nuc.clip_grad_norm_ = changed"
    lines = parity_told(code, monkeypatch, missing="skip")
    assert [line.partition(":")[0] for line in lines[1:]] == ["numpy", "  first at []"]


def test_rules_are_named_by_strings_functions_or_classes() -> None:
    for rule in ("ClipGradByNorm", unified_clip.ClipGradByNorm, "GradientClipByNorm.clip_"):
        assert_clip_parity(GRADS, rule, ["numpy"], clip_norm=np.float32(1.0))
    assert_clip_parity(GRADS, unified_clip.clip_by_norm, ["numpy"], clip_norm=1.0)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("clip_grad_norm_", {}, "^clip_grad_norm_: it lacks max_norm. Add max_norm"),
        (
            "clip_grad_norm_",
            {"max_norm": 1.0, "clip_norm": 1.0},
            "clip_norm: there is no such argument. Use one of max_norm",
        ),
        ("clip_grad_norm_", {"max_norm": "1"}, "Give a number"),
        ("clip_grad_norm_", {"max_norm": math.nan}, "^clip_grad_norm_: max_norm is nan. Give 0 or more$"),
        ("native_available", {}, "^call: .* there is no such function. Use one of clip_grad_norm_"),
        (np.clip, {}, "is not a rule of unified_clip.*To test your own function, list .* the fixture clip_suite"),
        ("clip_grad_norm_", {"max_norm": 1.0, "frameworks": ["caffe"]}, "The framework 'caffe' is unknown"),
        ("clip_grad_norm_", {"max_norm": 1.0, "frameworks": []}, "frameworks is empty"),
        ("clip_grad_norm_", {"max_norm": 1.0, "interpreters": {"caffe": "x"}}, "The framework 'caffe' is unknown"),
        ("clip_grad_norm_", {"max_norm": 1.0, "missing": "ignore"}, "is 'ignore'. Pass 'fail' or 'skip'"),
    ],
)
def test_what_cannot_be_run_is_refused(rule: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assert_clip_parity(GRADS, rule, **({"frameworks": ["numpy"]} | options))


def test_an_error_has_no_advice_that_only_a_suite_can_follow() -> None:
    with pytest.raises(ValueError, match=r"only clip_by_value supports int64\. Choose another dtype$"):
        assert_clip_parity([np.arange(3)], "clip_grad_norm_", ["numpy"], max_norm=1.0)


def test_both_name_the_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic" else object())
    for call in (lambda: assert_gradients_equal([], []), lambda: assert_clip_parity([], "global_norm", ["numpy"])):
        with pytest.raises(ModuleNotFoundError, match=re.escape(command("cli"))):
            call()


@pytest.mark.parametrize("name", testing.__all__)
def test_the_docstrings_say_what_is_needed_and_their_examples_run(name: str) -> None:
    function = getattr(testing, name)
    for part in ("Args:", "Raises:", "Example:"):
        assert part in function.__doc__
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert doctest.DocTestRunner().run(test).failed == 0
