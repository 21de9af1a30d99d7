"""The cause of a difference agrees with all cases of a function: no case contradicts a cause that is named."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parity.cases import case, dense, suite

from unified_clip import cli
from unified_clip.causes.explain import Diagnosis, find_causes
from unified_clip.causes.observation import Observation
from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import diagnose, judged_result, oracle
from unified_clip.parity.judge.judged_result import JudgedResult
from unified_clip.parity.known import measure
from unified_clip.parity.modes import NATIVE
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.schema import FrameworkTable
from unified_clip.tensors.arithmetic import rounded
from unified_clip.tensors.types import densify

Norms = Sequence[float]
Arrays = list[np.ndarray[Any, Any]]

LISTS = {
    "two": [[3.0, 4.0], [1.0, 2.0]],
    "one element each": [[3.0], [4.0]],
    "one element": [[3.0]],
    "one tensor": [[3.0, -4.0, 1.5]],
    "all equal": [[0.5] * 4, [0.5] * 4],
    "three": [[3.0, -4.0, 1.0], [1.0, 2.0], [0.5, -0.25, 0.125, 1.5]],
    "tiny": [[3e-4], [4e-4]],
}
FLOAT16 = {"float16": [[300.0, 300.0]], "large float16": [[300.0], [450.0, 20.0]]}

THRESHOLDS = (0.7, 1.23, 100.0)


def norms(gradients: Arrays) -> list[float]:
    return [float(np.sqrt((each**2).sum())) for each in gradients]


def by_norm(norm: float, threshold: float) -> tuple[float, float]:
    return (min(1.0, threshold / norm) if norm else 1.0), norm


Function = Callable[[Arrays, float], tuple[float, float]]
"""Returns (coefficient, returned norm)."""

FUNCTIONS: dict[str, tuple[Function, str, str]] = {
    "sum of norms": (
        lambda g, c: by_norm(sum(norms(g)), c),
        "another norm type",
        "as if the call used the sum of the tensors' norms instead of the norm",
    ),
    "norm_type 1": (
        lambda g, c: by_norm(sum(np.abs(each).sum() for each in g), c),
        "another norm type",
        "as if norm_type were 1 instead of 2",
    ),
    "largest norm": (
        lambda g, c: by_norm(max(norms(g)), c),
        "another norm type",
        "as if the call used the largest norm of a tensor instead of the norm",
    ),
    "square": (
        lambda g, c: by_norm(math.hypot(*norms(g)) ** 2, c),
        "another norm type",
        "as if the call used the square of the norm instead of the norm",
    ),
    "root of the mean": (
        lambda g, c: by_norm(math.hypot(*norms(g)) / math.sqrt(sum(each.size for each in g)), c),
        "another norm type",
        "as if the call used the root mean square of all elements instead of the norm",
    ),
    "without min": (
        lambda g, c: (c / math.hypot(*norms(g)), math.hypot(*norms(g))),
        "scaled gradients",
        "as if gradients with a small norm were scaled up to the threshold",
    ),
    "eps": (
        lambda g, c: (min(1.0, c / (math.hypot(*norms(g)) + 1e-3)), math.hypot(*norms(g))),
        "another eps of the clip",
        "as if eps were 0.001 instead of 0",
    ),
    **{
        f"every coefficient times {factor}": (
            lambda g, c, factor=factor: (factor * min(1.0, c / math.hypot(*norms(g))), math.hypot(*norms(g))),  # type: ignore[misc]
            "scaled gradients",
            f"as if every gradient were {factor} times as large",
        )
        for factor in (0.5, 0.99, 1.00005, 1.01, 2)
    },
    "norm / threshold": (
        lambda g, c: (min(1.0, math.hypot(*norms(g)) / c), math.hypot(*norms(g))),
        "coefficient",
        "as if the coefficient were min(1, norm / threshold) instead of min(1, threshold / norm)",
    ),
    "the square is returned": (
        lambda g, c: (min(1.0, c / math.hypot(*norms(g))), sum(each**2 for each in norms(g))),
        "another norm type",
        "as if the square of the norm were returned in place of the norm",
    ),
    "a norm that is twice as large": (
        lambda g, c: by_norm(2 * math.hypot(*norms(g)), c),
        "coefficient",
        "as if the norm were 2 times as large",
    ),
    "the same threshold everywhere": (
        lambda g, c: by_norm(math.hypot(*norms(g)), 0.3),
        "another threshold",
        "as if the threshold were 0.3 in all calls",
    ),
}
"""A wrong function, and the cause of all its differences."""


def diagnose_function(function: Function, lists: dict[str, list[list[float]]] = LISTS) -> dict[str, Diagnosis]:
    calls, differing = dict[str, Observation](), []
    for name, values in lists.items():
        for threshold in THRESHOLDS if name != "tiny" else (1.3e-4,):
            dtype = "float16" if name in FLOAT16 else name if name == "bfloat16" else "float32"
            clip_case = case([dense(each, dtype) for each in values], "clip_by_global_norm", clip_norm=threshold)
            outcome = outcome_of(clip_case, function, threshold)
            call = diagnose.observe(clip_case, oracle.expect(clip_case), outcome)
            deviation = measure.measure(clip_case, oracle.expect(clip_case), outcome)
            assert call
            assert deviation
            calls[f"{name} at {threshold}"] = call
            if deviation.kind:
                differing.append(f"{name} at {threshold}")
    return find_causes(calls, differing)


def outcome_of(clip_case: Case, function: Function, threshold: float) -> CallOutcome:
    gradients = [each for each in map(densify, clip_case.gradients) if each]
    coef, norm = function([each.values() for each in gradients], threshold)
    clipped = [dense(np.float32(each.values()) * np.float32(coef), each.dtype) for each in gradients]
    return CallOutcome(dense(norm), clipped, name="clip.py:f")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_differences_of_a_function_have_the_cause_that_agrees_with_all_its_cases(name: str) -> None:
    function, kind, sentence = FUNCTIONS[name]
    diagnoses = diagnose_function(function)
    assert len(diagnoses) > 3
    assert {each.cause for each in diagnoses.values()} == {(kind, sentence)}


def test_a_threshold_that_explains_unchanged_gradients_of_another_case_is_named() -> None:
    diagnoses = diagnose_function(lambda g, c: by_norm(math.hypot(*norms(g)), 2 * c))
    assert {each.cause.kind for each in diagnoses.values() if each.cause} == {"another threshold"}
    assert diagnoses["all equal at 1.23"].cause == (
        "another threshold",
        "as if the threshold were 2.46 instead of 1.23",
    )


MEANS = ("of the tensors' root mean squares", "of all elements")


def test_a_threshold_is_named_beside_a_mean_that_is_not_returned() -> None:
    lists = {"two": [[3.0, 4.0], [1.0, 2.0]], "one": [[3.0, -4.0, 1.5, 2.0]]}
    diagnoses = diagnose_function(lambda g, c: by_norm(math.hypot(*norms(g)), 2 * c), lists)
    means = "".join(f", or as if the call used the root mean square {of_what} instead of the norm" for of_what in MEANS)
    for threshold in THRESHOLDS[:2]:
        sentence = f"as if the threshold were {2 * threshold} instead of {threshold}{means}"
        assert diagnoses[f"two at {threshold}"].cause == ("another threshold", sentence)


@pytest.mark.parametrize("factors", [(1.00018, 1.00088, 1.0007), (1.0002, 1.0002, 1.0009)])
def test_factors_that_differ_between_cases_have_no_cause(factors: Sequence[float]) -> None:
    by_threshold = dict(zip(THRESHOLDS, factors, strict=True))

    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = math.hypot(*norms(gradients))
        return by_threshold[threshold] * min(1.0, threshold / norm), norm

    diagnoses = diagnose_function(clip, {"two": LISTS["two"]})
    assert [each.cause for each in diagnoses.values()] == [None, None, None]


def test_an_eps_is_added_to_a_coefficient_of_at_most_1() -> None:
    diagnoses = diagnose_function(lambda g, c: (min(1.0, c / math.hypot(*norms(g))) + 1e-3, math.hypot(*norms(g))))
    eps = ("another eps of the clip", "as if eps 0.001 were added to the coefficient")
    assert {each.cause for name, each in diagnoses.items() if not name.endswith(" 100.0")} == {eps}


def test_one_list_does_not_show_that_all_norms_are_too_large() -> None:
    diagnoses = diagnose_function(lambda g, c: by_norm(2.1 * math.hypot(*norms(g)), c), {"two": LISTS["two"]})
    assert [each.cause for each in diagnoses.values()] == [None, None, None]


@pytest.mark.parametrize(
    ("lists", "other"),
    [(("below 1",), ", or as if the threshold were 0.49 instead of 0.7"), (("below 1", "tiny"), "")],
)
def test_a_single_threshold_is_half_or_squared(lists: Sequence[str], other: str) -> None:
    tensors = {**LISTS, "below 1": [[0.6, 0.4], [0.3]]}
    diagnoses = diagnose_function(
        lambda g, c: by_norm(math.hypot(*norms(g)), c * c), {name: tensors[name] for name in lists}
    )
    square = "as if the call used the square of the threshold instead of the threshold"
    assert diagnoses["below 1 at 0.7"].cause == ("another threshold", square + other)


@pytest.mark.parametrize("coef", [0.8123, 0.9312])
def test_one_random_coefficient_shows_no_eps(coef: float) -> None:
    lists = {"below 1": [[0.6, 0.4], [0.3]]}
    diagnoses = diagnose_function(lambda g, c: (coef if c < 0.75 else 1.0, math.hypot(*norms(g))), lists)
    assert [each.cause and each.cause.kind for each in diagnoses.values()] == ["another threshold"]


@pytest.mark.parametrize(
    ("coefficient", "kind"),
    [(lambda n, c: c / max(c, n * n), "another norm type"), (lambda n, c: c / (1024 * n), "another threshold")],
)
def test_a_cause_that_explains_only_some_thresholds_is_not_named(
    monkeypatch: pytest.MonkeyPatch, coefficient: Callable[[float, float], float], kind: str
) -> None:
    """With a threshold of 1, the square of the coefficient is the coefficient of the squared norm."""
    monkeypatch.setitem(globals(), "THRESHOLDS", (0.1, 1.0, 5.0))
    random = np.random.default_rng(3)
    lists = {
        f"times {scale}": [list(scale * random.standard_normal(size)) for size in (7, 20, 3)] for scale in (1, 0.1)
    }
    lists["two"] = [list(random.standard_normal(30)), [20.0]]
    diagnoses = diagnose_function(lambda g, c: (coefficient(math.hypot(*norms(g)), c), math.hypot(*norms(g))), lists)
    assert {each.cause and each.cause.kind for each in diagnoses.values()} == {kind}


def test_the_last_gradient_is_left_out_of_each_list() -> None:
    diagnoses = diagnose_function(lambda g, c: by_norm(math.hypot(*norms(g[:-1])), c))
    assert {each.cause.kind for each in diagnoses.values() if each.cause} == {"left out"}
    assert all(each.cause for each in diagnoses.values())


def test_a_cause_that_another_case_contradicts_is_not_named() -> None:
    def sometimes(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = math.hypot(*norms(gradients))
        return (1.0 if 2 * threshold < norm < 3 * threshold else min(1.0, threshold / norm)), norm

    diagnoses = diagnose_function(sometimes)
    assert [each.cause for each in diagnoses.values()] == [None, None]
    assert diagnoses["one element at 1.23"].contradiction == (
        "as if nothing were clipped: the gradients are unchanged, but the case 'two at 0.7' contradicts this"
    )


@pytest.mark.parametrize(
    ("other_threshold", "contradiction"),
    [
        (
            lambda c: 1.42388 * c,
            "as if the threshold were rounded to an integer, but the case 'two at 0.7' contradicts this",
        ),
        (
            lambda c: c * c,
            "as if the call used the square of the threshold instead of the threshold, "
            "but the case 'two at 0.7' contradicts this",
        ),
    ],
)
def test_a_cause_agrees_with_the_cases_of_other_dtypes(
    other_threshold: Callable[[float], float], contradiction: str
) -> None:
    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = math.hypot(*norms(gradients))
        return by_norm(norm, other_threshold(threshold) if norm > 400 and threshold < 100 else threshold)

    diagnoses = diagnose_function(clip, {**LISTS, "float16": FLOAT16["float16"]})
    assert set(diagnoses) == {f"float16 at {threshold}" for threshold in THRESHOLDS[:2]}
    assert {each.cause for each in diagnoses.values()} == {None}
    assert diagnoses["float16 at 0.7"].contradiction == contradiction


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_an_eps_that_is_added_to_the_coefficient_explains_the_cases_of_every_dtype(eps: float) -> None:
    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = math.hypot(*norms(gradients))
        return min(1.0, threshold / norm + eps), norm

    diagnoses = diagnose_function(clip, {**LISTS, **FLOAT16, "large": [[3e4, -4e4], [1e4]]})
    assert {each.cause for each in diagnoses.values()} == {
        ("another eps of the clip", f"as if eps {eps:g} were added to the coefficient")
    }
    assert any("float16" in name for name in diagnoses)


@pytest.mark.parametrize(
    ("eps", "fault", "cause"),
    [
        (1e-10, "the norm is a number", ""),
        (1e-3, "the norm is a number", "another eps of the clip"),
        (1e-3, "", "another eps of the clip"),
    ],
)
def test_a_difference_of_the_form_has_no_cause_if_the_numbers_agree(eps: float, fault: str, cause: str) -> None:
    """A coefficient that is computed in float64 can look like another cause, but is only rounded otherwise."""
    results, cases = dict[tuple[str, str], JudgedResult](), []
    for name, values in LISTS.items():
        clip_case = case([dense(each) for each in values], "clip_by_global_norm", clip_norm=1.23)
        outcome = outcome_of(
            clip_case, lambda g, c: (min(1.0, c / (math.hypot(*norms(g)) + eps)), math.hypot(*norms(g))), 1.23
        )
        outcome.fault = fault
        cases.append(dataclasses.replace(clip_case, name=name))
        results[NATIVE, name] = judged_result.judge_result(
            (NATIVE, cases[-1]), oracle.expect(cases[-1]), outcome, FrameworkTable(), []
        )
    judged_result.choose_causes(cases, oracle.expect, {"torch": results})
    natives = [judged.native for judged in results.values()]
    assert {native.cause_kind for native in natives if native} - {""} == {cause} - {""}
    assert any(native and native.kind == ("form" if fault else "value") for native in natives)


def test_a_function_without_a_norm_that_changes_nothing_has_a_cause() -> None:
    clip_case = case([dense([3.0, 4.0]), dense([1.0])], "clip_by_global_norm", clip_norm=0.5)
    outcome = outcome_of(clip_case, lambda g, c: (1.0, math.nan), 0.5)
    outcome.norm = None
    call = diagnose.observe(clip_case, oracle.expect(clip_case), outcome)
    below = case([dense([3.0, 4.0]), dense([1.0])], "clip_by_global_norm", clip_norm=100.0)
    correct = diagnose.observe(below, oracle.expect(below), outcome)
    assert call
    assert correct
    (diagnosis,) = find_causes({"above": call, "below": correct}, ["above"]).values()
    assert diagnosis.cause == ("not clipped", "as if nothing were clipped: the gradients are unchanged")


def test_a_missing_result_of_zeros_keeps_its_cause() -> None:
    clip_case = case([dense([3.0, 4.0]), dense([0.0])], "clip_by_global_norm", clip_norm=1.0)
    outcome = outcome_of(clip_case, lambda g, c: by_norm(math.hypot(*norms(g)), c), 1.0)
    outcome.gradients = [*outcome.gradients[:1], None]  # type: ignore[index]
    judged = judged_result.judge_result((NATIVE, clip_case), oracle.expect(clip_case), outcome, FrameworkTable(), [])
    assert judged.native
    assert (judged.native.kind, judged.native.finite_size) == ("form", 0.0)
    assert judged.native.cause == "'gradient 1' is missing"


def test_a_mistake_for_one_dtype_alone_keeps_its_cause() -> None:
    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = math.hypot(*norms(gradients))
        return (1.0 if norm > 400 else min(1.0, threshold / norm)), norm

    diagnoses = diagnose_function(clip, {**LISTS, **FLOAT16})
    assert {each.cause and each.cause.kind for each in diagnoses.values()} == {"not clipped"}


def test_a_coefficient_that_multiplies_twice_in_one_case_alone_has_no_cause() -> None:
    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = math.hypot(*norms(gradients))
        coef = min(1.0, threshold / norm)
        return (coef * coef if len(gradients) == 3 else coef), norm

    diagnoses = diagnose_function(clip)
    assert set(diagnoses) == {f"three at {threshold}" for threshold in THRESHOLDS[:2]}
    assert {each.cause for each in diagnoses.values()} == {None}
    assert all("the coefficient were applied twice, but" in each.contradiction for each in diagnoses.values())


def test_a_second_mistake_in_one_case_does_not_hide_the_cause_of_the_others() -> None:
    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm = sum(norms(gradients)) * (1.5 if len(gradients) == 3 and threshold == 0.7 else 1)
        return by_norm(norm, threshold)

    diagnoses = diagnose_function(clip)
    assert diagnoses.pop("three at 0.7").cause is None
    words = "as if the call used the sum of the tensors' norms instead of the norm"
    assert {each.cause for each in diagnoses.values()} == {("another norm type", words)}

    def with_eps(gradients: Arrays, threshold: float) -> tuple[float, float]:
        norm, eps = math.hypot(*norms(gradients)), 0.5 if len(gradients) == 3 else 1e-3
        return min(1.0, threshold / (norm + eps)), norm

    assert diagnose_function(with_eps)["two at 0.7"].cause == (
        "another eps of the clip",
        "as if eps were 0.001 instead of 0",
    )


def test_a_gradient_that_is_left_out_for_its_shape_is_named() -> None:
    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        return by_norm(math.hypot(*norms([each for each in gradients if each.size != 2])), threshold)

    diagnoses = diagnose_function(clip, {name: LISTS[name] for name in ("one element each", "one tensor", "three")})
    assert set(diagnoses) == {f"three at {threshold}" for threshold in THRESHOLDS}
    assert {each.cause for each in diagnoses.values()} == {("left out", "as if 'gradient 1' were left out of the norm")}


BFLOAT16 = {"bfloat16": [[306.0, -77.5, 3.0], [153.0, -229.0]]}


def test_a_rounded_coefficient_is_named_although_sums_explain_the_results_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm that underflows in a float32 case is no evidence for sums in bfloat16."""
    monkeypatch.setitem(globals(), "THRESHOLDS", (10.3,))

    def clip(gradients: Arrays, threshold: float) -> tuple[float, float]:
        coef, norm = by_norm(math.sqrt(sum(float((np.float32(each) ** 2).sum()) for each in gradients)), threshold)
        return float(rounded(np.asarray(coef), "bfloat16")) if gradients[0][0] == 306 else coef, norm

    diagnoses = diagnose_function(clip, {**LISTS, **BFLOAT16, "squares underflow": [[1e-25, 1e-25]]})
    assert set(diagnoses) == {"bfloat16 at 10.3", "squares underflow at 10.3"}
    assert diagnoses["bfloat16 at 10.3"].cause == ("16 bits", "as if the coefficient were rounded to bfloat16")


def test_all_sums_in_16_bits_that_explain_the_norm_are_named() -> None:
    sentence = (
        "as if the squares were added up in bfloat16, or as if each square were rounded to bfloat16, or as if the "
    )
    sentence += "norm of each tensor were rounded to bfloat16"
    diagnoses = diagnose_function(lambda g, c: by_norm(420.0, c), BFLOAT16)
    assert {each.cause for each in diagnoses.values()} == {("16 bits", sentence)}


def test_an_infinite_norm_explains_no_finite_norm() -> None:
    diagnoses = diagnose_function(lambda g, c: (0.0, 0.0), {"squares overflow": [[1e20, 1.0]]})
    assert {each.cause and each.cause.kind for each in diagnoses.values()} == {"overflow"}
    for norm in (5.0, math.inf):
        call = Observation(before=[], expected=[], after=[], by="global", norm=norm)
        assert call.norm_fits([math.inf], 1e-6) == (norm == math.inf)


def test_a_single_case_has_the_cause_that_fits_it() -> None:
    diagnoses = diagnose_function(FUNCTIONS["sum of norms"][0], {"one element each": LISTS["one element each"]})
    assert {each.cause and each.cause.kind for each in diagnoses.values()} == {"another norm type"}


CLIP = """
import numpy as np

def clip(grads, max_norm):
    norm = sum(np.sqrt((g.astype(np.float64) ** 2).sum()) for g in grads)
    coef = np.float32(min(1.0, max_norm / norm))
    return [g * coef for g in grads], np.float32(norm)
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    cases = """
    [[gradients]]
    name = "one element each"
    tensors = [{ values = [3.0] }, { values = [4.0] }]
    [[gradients]]
    name = "two"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]
    [[cases]]
    gradients = ["one element each", "two"]
    calls = [{ call = "clip_by_global_norm", clip_norm = 0.7 }]
    """
    functions = "[frameworks.numpy.functions]\nclip_by_global_norm = 'clip.py:clip'"
    where = suite(tmp_path, cases, frameworks=f"[frameworks.numpy]\nmodes = ['native']\n{functions}")

    def call(code: str, *options: str) -> tuple[int, str]:
        (tmp_path / "clip.py").write_text(code, encoding="utf-8")
        out = () if "--case" in options else ("--out", str(tmp_path / "out"))
        return cli.main(["parity", "--suite", str(where), *out, *options]), capsys.readouterr().out

    return call


def test_the_report_names_the_cause_of_all_cases(run: Callable[..., tuple[int, str]]) -> None:
    status, printed = run(CLIP)
    assert status == 1
    cause = "as if the call used the sum of the tensors' norms instead of the norm"
    assert f"clip.py:clip: {cause} (numbers differ" in printed
    assert printed.count("2 cases, first: one element each: clip_by_global_norm(clip_norm=0.7)") == 1
    status, printed = run(CLIP, "--case", "two: clip_by_global_norm(clip_norm=0.7)")
    assert status == 1
    assert printed.count("This cause explains the chosen cases. For a cause that explains all cases, run without") == 1


def test_a_cause_that_no_case_shows_is_unknown(run: Callable[..., tuple[int, str]]) -> None:
    unexplained = CLIP.replace("max_norm / norm", "0.123456789 * max_norm / norm**0.3")
    status, printed = run(unexplained)
    assert status == 1
    assert "the cause is unknown" in printed
    printed = run(unexplained, "--case", "two: clip_by_global_norm(clip_norm=0.7)")[1]
    assert printed.count("More cases can show the cause: run without --case.") == 1
    assert "This cause" not in printed


def test_a_chosen_case_of_a_known_difference_passes(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """A single case does not distinguish a wrong eps from a wrong threshold."""
    with_eps = CLIP.replace("sum(np.sqrt((g.astype(np.float64) ** 2).sum()) for g in grads)", "total(grads)")
    with_eps = with_eps.replace("max_norm / norm", "max_norm / (norm + 0.00123)")
    with_eps += "\ndef total(grads):\n    return np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))\n"
    chosen = ("--case", "two: clip_by_global_norm(clip_norm=0.7)")
    status, printed = run(with_eps, *chosen)
    assert status == 1
    assert "as if the threshold were" in printed
    assert run(with_eps, "--accept")[0] == 0
    assert "eps" in (tmp_path / "known.toml").read_text(encoding="utf-8")
    assert run(with_eps)[0] == 0
    status, printed = run(with_eps, *chosen)
    assert status == 0
    assert run(with_eps.replace("0.00123", "0.0022"), *chosen)[0] == 1  # another size


def test_an_unknown_cause_is_reported_without_the_known_differences_of_other_cases(
    run: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    more = """
    [[gradients]]
    name = "three"
    tensors = [{ values = [1.0] }, { values = [2.0] }, { values = [5.0] }]
    [[cases]]
    gradients = ["three"]
    calls = [{ call = "clip_by_global_norm", clip_norm = 0.7 }]
    """
    with (tmp_path / "suite.toml").open("a", encoding="utf-8") as file:
        file.write(more)
    code = CLIP.replace("g * coef", "g * coef * np.abs(g) ** (len(g) - 1)")
    unknown = "the cause is unknown (in 2 other cases the cause is 'another norm type')"
    assert run(code)[1].count(unknown) == 1
    assert run(code, "--accept")[0] == 0
    known = (tmp_path / "known.toml").read_text(encoding="utf-8")
    (tmp_path / "known.toml").write_text(known.replace('"two: ', '"none: '), encoding="utf-8")
    assert run(code)[1].count("the cause is unknown. Case: ") == 1


def test_accept_replaces_the_entry_of_a_case_that_has_another_difference_now(
    run: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert run(CLIP, "--accept")[0] == 0
    other = CLIP.replace("norm = sum(", "norm = total(")
    other += "\ndef total(norms):\n    return np.sqrt(sum(norm * norm for norm in norms))\n"
    other = other.replace("[g * coef for g in grads]", "list(grads)")
    status, printed = run(other)
    assert status == 1
    listed = "; listed: "
    assert printed.count(listed) == 1
    assert printed.count("clip.py:clip: as if nothing were clipped: the gradients are unchanged (numbers differ") == 1
    assert "stale" not in printed
    assert run(other, "--accept")[0] == 0
    assert run(other)[0] == 0
    assert "the sum of the tensors' norms" not in (tmp_path / "known.toml").read_text(encoding="utf-8")
