"""A clip function called with several lists of gradients: the cause that agrees with all of its results, or none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
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
from unified_clip.parity.suite import load
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.schema import FrameworkTable
from unified_clip.tensors.arithmetic import rounded
from unified_clip.tensors.types import Dense, densify, encode

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Function = Callable[[Arrays, float], tuple[Arrays, float | None]]


def diagnoses(
    function: Function, cases: Mapping[str, Case], read: Callable[[Dense], Array] = Dense.values
) -> dict[str, Diagnosis]:
    """Return the diagnosis of each case in which the function differs. read: what the function gets of a tensor."""
    calls, differing = dict[str, Observation](), []
    for name, clip_case in cases.items():
        outcome = outcome_of(function, clip_case, read)
        deviation = measure.measure(clip_case, oracle.expect(clip_case), outcome)
        call = diagnose.observe(clip_case, oracle.expect(clip_case), outcome)
        assert deviation
        assert call
        calls[name] = call
        differing += [name] if deviation.kind else []
    return find_causes(calls, differing)


def outcome_of(function: Function, clip_case: Case, read: Callable[[Dense], Array] = Dense.values) -> CallOutcome:
    expected = oracle.expect(clip_case)
    inputs = [each for each in map(densify, clip_case.gradients) if each]
    with np.errstate(all="ignore"):
        results, norm = function([read(each) for each in inputs], clip_case.arguments["clip_norm"])
        norm_dtype = expected.norm.dtype if expected.norm else "float32"
        tensors = iter([dense(np.asarray(each), before.dtype) for each, before in zip(results, inputs, strict=True)])
        returned = None if norm is None else encode(np.asarray(norm, np.float64), norm_dtype)
    return CallOutcome(returned, [each and next(tensors) for each in clip_case.gradients], name="clip.py:f")


def as_array(tensor: Dense) -> Array:
    """A copy of a tensor. NumPy has no bfloat16, so such a tensor becomes float32."""
    return tensor.values().astype(np.float32) if tensor.dtype == "bfloat16" else tensor.array.copy()


def kinds(found: Mapping[str, Diagnosis]) -> set[str]:
    return {each.cause.kind if each.cause else "" for each in found.values()}


def causes(found: Mapping[str, Diagnosis]) -> set[tuple[str, str] | None]:
    return {each.cause and tuple(each.cause) for each in found.values()}


# -- the parts of functions


def total(grads: Arrays) -> float:
    return math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))


def norms(grads: Arrays) -> list[float]:
    return [total([each]) for each in grads]


def least(norm: float, limit: float) -> float:
    return min(1.0, limit / norm) if norm else 1.0


def by(coef: Callable[[float, float], float]) -> Function:
    """Multiply by a coefficient of the norm n and the threshold c, and return the norm."""
    return lambda grads, c: ([g * coef(total(grads), c) for g in grads], total(grads))


def by_norm(measured: Callable[[Arrays], float], *, returns_it: bool = True) -> Function:
    return lambda grads, c: (
        [g * least(measured(grads), c) for g in grads],
        measured(grads) if returns_it else total(grads),
    )


def of_each(change: Callable[[Array, float, float], Array]) -> Function:
    """Change each gradient, by the threshold and the total norm, and return the norm."""
    return lambda grads, c: ([change(g, c, total(grads)) for g in grads], total(grads))


right = by(least)


def limited(grads: Arrays, bound: float) -> Arrays:
    return [np.clip(g, -bound, bound) for g in grads]


def squares(grads: Arrays, dtype: type) -> Array:
    return np.concatenate([g.ravel() for g in grads]).astype(dtype) ** 2


def in_float16(number: float) -> float:
    return float(np.float16(number))


def in_bfloat16(number: float) -> float:
    return float(rounded(np.float64(number), "bfloat16"))


def with_bfloat16_sums(grads: Arrays) -> float:
    square = 0.0
    for gradient in grads:
        square = in_bfloat16(square + in_bfloat16((gradient.astype(np.float64) ** 2).sum()))
    return math.sqrt(square)


def one_after_the_other(grads: Arrays, limit: float) -> tuple[Arrays, float]:
    """Clip the gradients one after the other, each by the total norm of the whole list at this time."""
    results = list(grads)
    for index, gradient in enumerate(grads):
        results[index] = gradient * least(total(results), limit)
    return results, total(grads)


# -- the suite of `unified-clip parity init`


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    path = tmp_path_factory.mktemp("init") / "parity"
    assert cli.main(["parity", "init", "--suite", str(path)]) == 0
    return list(load.read(path).cases)


@pytest.fixture(scope="module")
def init_cases(all_cases: list[Case]) -> dict[str, Case]:
    return {each.name: each for each in all_cases if each.call_name == "clip_by_global_norm"}


EPS, TYPE, THRESHOLD = "another eps of the clip", "another norm type", "another threshold"
RANGE = ("overflow", "scaled gradients")

INIT: dict[str, tuple[Function, tuple[str, ...]]] = {
    # -- right
    "minimum": (right, ()),
    "condition": (by(lambda n, c: c / n if n > c else 1.0), ()),
    "maximum": (by(lambda n, c: 1.0 if math.isinf(c) else c / max(n, c)), ()),
    # -- the condition
    "squared norm above the threshold": (by(lambda n, c: c / n if n * n > c else 1.0), ("another condition",)),
    "the same, and a norm that is rounded otherwise": (
        lambda grads, c: (by(lambda n, c: c / n if n * n > c else 1.0)(grads, c)[0], total(grads) * (1 + 2.0**-23)),
        ("another condition",),
    ),
    "maximum in place of minimum": (
        by(lambda n, c: max(1.0, c / n) if n else 1.0), ("another condition", "not clipped", "overflow")
    ),
    "inverted condition": (
        by(lambda n, c: c / n if 0 < n < c < math.inf else 1.0), ("another condition", "not clipped")
    ),
    "0 switches clipping off": (by(lambda n, c: least(n, c) if c else 1.0), ("not clipped",)),
    "no clip": (lambda grads, c: (grads, total(grads)), ("not clipped",)),
    "no minimum": (by(lambda n, c: c / n if n else 1.0), RANGE),
    "minimum of the coefficient and the threshold": (by(lambda n, c: min(c / n, c) if n else 1.0), RANGE),
    # -- eps
    "eps": (by(lambda n, c: least(n + 1e-6, c)), (EPS,)),
    **{
        f"eps {eps} inside the root": (by(lambda n, c, eps=eps: least(math.sqrt(n * n + eps), c)), (EPS,))  # type: ignore[misc]
        for eps in (1e-10, 3e-10, 1e-12)
    },
    **{
        f"eps {eps} after the division": (by(lambda n, c, eps=eps: min(1.0, c / n + eps) if n else 1.0), (EPS,))  # type: ignore[misc]
        for eps in (1e-8, 1e-6, 3e-5, 1e-3)
    },
    "eps in the returned norm": (by_norm(lambda grads: total(grads) + 1e-6), (EPS,)),
    "compared without eps": (by(lambda n, c: c / (n + 1e-6) if n > c else 1.0), (EPS,)),
    # -- the threshold
    "squared threshold": (by(lambda n, c: least(n, c * c)), (THRESHOLD,)),
    "scaled to a norm of 1": (by(lambda n, c: 1 / n if n > c else 1.0), (THRESHOLD,)),
    "1 as the threshold": (by(lambda n, c: 1 / n if n else 1.0), (THRESHOLD,)),
    "integer part of the threshold": (by(lambda n, c: least(n, int(c) if c < math.inf else c)), (THRESHOLD,)),
    "rounded threshold": (by(lambda n, c: least(n, round(c) if c < math.inf else c)), (THRESHOLD,)),
    # -- the rule
    "by value": (of_each(lambda g, c, n: np.clip(g, -c, c)), ("another rule",)),
    "per tensor": (of_each(lambda g, c, n: g * least(total([g]), c)), ("per tensor for global",)),
    # -- the norm
    "mean of the squared norms": (by_norm(lambda grads: total(grads) / len(grads) ** 0.5), (TYPE,)),
    "largest norm": (by_norm(lambda grads: max(norms(grads))), (TYPE,)),
    "largest element": (by_norm(lambda grads: max(np.abs(g).max() for g in grads)), (TYPE,)),
    "squared norm": (by(lambda n, c: least(n * n, c)), (TYPE,)),
    **{
        f"{words}, {returns_it=}": (by_norm(combine, returns_it=returns_it), (kind,))
        for words, (combine, kind) in {
            "sum of norms": (lambda grads: sum(norms(grads)), TYPE),
            "the first gradient alone": (lambda grads: total(grads[:1]), "left out"),
            "the last gradient alone": (lambda grads: total(grads[-1:]), "left out"),
        }.items()
        for returns_it in (True, False)
    },
    "the last gradient left out": (by_norm(lambda grads: total(grads[:-1])), ("left out",)),
    "gradients without axes left out": (by_norm(lambda grads: total([g for g in grads if g.ndim])), ("left out",)),
    # -- the precision
    "squares in float16": (
        by_norm(lambda grads: math.sqrt(sum((g.astype(np.float16) ** 2).sum(dtype=float) for g in grads))),
        ("16 bits", "overflow"),
    ),
    "float16 sums": (
        by_norm(lambda grads: math.sqrt(np.add.accumulate(squares(grads, np.float16))[-1])), ("16 bits", "overflow")
    ),
    **{
        f"gradients in {dtype} for the norm": (
            by_norm(lambda grads, dtype=dtype: total([rounded(g.astype(float), dtype) for g in grads])), ("16 bits",)  # type: ignore[misc]
        )
        for dtype in ("float16", "bfloat16")
    },
    "coefficient in float16": (by(lambda n, c: in_float16(least(n, c))), ("16 bits",)),
    "norm in float16 that is not returned": (by(lambda n, c: least(in_float16(n), c)), ("16 bits",)),
    "bfloat16 sums": (by_norm(with_bfloat16_sums), ("16 bits",)),
    "bfloat16 sums and root": (by_norm(lambda grads: in_bfloat16(with_bfloat16_sums(grads))), ("16 bits",)),
    "norm in bfloat16": (by_norm(lambda grads: in_bfloat16(total(grads))), ("16 bits",)),
    "norm of each tensor in bfloat16": (
        by_norm(lambda grads: math.hypot(*map(in_bfloat16, norms(grads)))), ("16 bits",)
    ),
    # -- the results
    "inf gives NaN": (by(lambda n, c: float(np.float64(c) * min(1 / n, 1 / np.float64(c)) if n else 1.0)), ("NaN",)),
    "zeros give NaN": (by(lambda n, c: float(np.float64(min(n, c)) / n)), ("NaN",)),
    "sign": (of_each(lambda g, c, n: -g * least(n, c)), ("signs",)),
    "lost signs": (of_each(lambda g, c, n: np.abs(g) * least(n, c)), ("signs",)),
    "averages over 3 micro-batches": (lambda grads, c: right([g / 3 for g in grads], c), ("scaled gradients",)),
    "the coefficient twice": (by(lambda n, c: least(n, c) ** 2), ("clipped twice",)),
    "inverse coefficient": (by(lambda n, c: float(n / np.float64(c)) if n > c else 1.0), ("coefficient", "overflow")),
    "norm of the clipped gradients": (
        lambda grads, c: (right(grads, c)[0], total(right(grads, c)[0])), ("norm after the clip",)
    ),
    "norm of the clipped gradients in float32": (
        lambda grads, c: (
            right(grads, c)[0], float(np.sqrt(np.add.accumulate(squares(right(grads, c)[0], np.float32))[-1]))
        ),
        ("norm after the clip",),
    ),
    # -- no known cause
    "above the square of the threshold": (by(lambda n, c: c / n if n > c * c else 1.0), ("",)),
    **{
        f"above {factor} times the threshold": (by(lambda n, c, factor=factor: c / n if n > factor * c else 1.0), ("",))  # type: ignore[misc]
        for factor in (2, 0.5, 1.001, 0.999)
    },
    "half the norm is returned": (lambda grads, c: (right(grads, c)[0], total(grads) / 2), ("",)),
    "zero as the norm": (lambda grads, c: (right(grads, c)[0], 0.0), ("",)),
    "eps on the threshold": (by(lambda n, c: least(n, c + 1e-6)), ("",)),
    "eps on both": (by(lambda n, c: (c + 1e-6) / (n + 1e-6) if n > c else 1.0), ("",)),
    "eps subtracted": (by(lambda n, c: min(1.0, c / (n - 1e-6))), ("",)),
    "at least 1e-3 as the norm": (by(lambda n, c: min(1.0, c / max(n, 1e-3))), ("",)),
    "at least 1e-6 as the norm": (by(lambda n, c: min(1.0, c / max(n, 1e-6))), ("",)),
    "at least 1e-2 as the coefficient": (by(lambda n, c: max(least(n, c), 1e-2)), ("",)),
    "at most 100 as the norm": (by(lambda n, c: least(min(n, 100.0), c)), ("",)),
    "coefficient with 6 digits": (by(lambda n, c: round(least(n, c), 6)), ("",)),
    "soft": (by(lambda n, c: float(1 / (1 + n / np.float64(c)))), ("",)),
    "root of the norm": (by_norm(lambda grads: math.sqrt(total(grads))), ("",)),
    "one after the other": (one_after_the_other, ("",)),
}  # fmt: skip
"""A function, and the kinds of causes in the suite of `init`: none of a right function, '' of an unknown cause."""


@pytest.mark.parametrize("name", INIT)
def test_the_suite_of_init_names_the_cause_of_a_function(name: str, init_cases: dict[str, Case]) -> None:
    function, expected = INIT[name]
    found = kinds(diagnoses(function, init_cases, as_array))
    assert (found - {""} or found) == {*expected}


ONE_LIST: dict[str, tuple[Function, str]] = {
    "the first 65536 elements alone": (by_norm(lambda grads: total([g.ravel()[: 1 << 16] for g in grads])), "long"),
    "four axes left out": (by_norm(lambda grads: total([g for g in grads if g.ndim < 4])), "long"),
    "one matrix of three axes": (by_norm(lambda grads: total([g[0] if g.ndim == 3 else g for g in grads])), "long"),
    "0 switches clipping off": (by(lambda n, c: least(n, c) if c else 1.0), "signs and shapes"),
}


@pytest.mark.parametrize("name", ONE_LIST)
def test_a_list_of_the_suite_shows_a_mistake_that_the_other_lists_hide(name: str, init_cases: dict[str, Case]) -> None:
    function, shown_by = ONE_LIST[name]
    assert {init_cases[found].gradients_name for found in diagnoses(function, init_cases, as_array)} == {shown_by}


def test_a_clip_by_value_in_one_case_is_not_the_cause_of_a_case_that_a_correct_case_contradicts(
    init_cases: dict[str, Case],
) -> None:
    def clip(grads: Arrays, limit: float) -> tuple[Arrays, float | None]:
        if total(grads) < 1e-3 or limit == 11.3:  # the lists of small norms, and "long"
            return limited(grads, limit), total(grads)
        return (grads, total(grads)) if limit == 55650.0 else right(grads, limit)

    found = diagnoses(clip, init_cases)
    assert "another rule" not in kinds(found)
    assert "contradicts this" in found["long: clip_by_global_norm(clip_norm=11.3)"].contradiction
    assert "large norm: clip_by_global_norm(clip_norm=55650.0)" in found


def test_an_unknown_cause_is_reported_with_the_causes_of_the_other_cases(init_cases: dict[str, Case]) -> None:
    def clip(grads: Arrays, limit: float) -> tuple[Arrays, float | None]:
        results, norm = by_norm(lambda grads: total(grads[:-1]))(grads, limit)
        return [each * np.abs(each) for each in results] if limit == 5.1 else results, norm

    found = diagnoses(clip, init_cases)
    assert kinds(found) == {"left out", ""}
    unknown = [each.contradiction for each in found.values() if not each.cause]
    assert unknown == [f"in {len(found) - 1} other cases the cause is 'left out'"]


def test_the_suite_has_other_norms(all_cases: list[Case]) -> None:
    norms_of = {float(oracle.expect(each).norm.values()) for each in all_cases if "norm_type" in each.arguments}  # type: ignore[union-attr]
    assert norms_of == {21.5, 6.0}


# -- lists of gradients


def random_list(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape) * 10 ** random.uniform(-0.5, 0.5) for shape in shapes]


BLOCK = ((6, 5), (6,))
LISTS: dict[str, list[Any]] = {
    "two": [[3.0, 4.0], [1.0, 2.0]],
    "one element each": [[3.0], [4.0]],
    "one element": [[3.0]],
    "one tensor": [[3.0, -4.0, 1.5]],
    "all equal": [[0.5] * 4, [0.5] * 4],
    "three": [[3.0, -4.0, 1.0], [1.0, 2.0], [0.5, -0.25, 0.125, 1.5]],
    "tiny": [[3e-4], [4e-4]],
    "below 1": [[0.6, 0.4], [0.3]],
    "large": [[3e4, -4e4], [1e4]],
    "squares underflow": [[1e-25, 1e-25]],
    "squares overflow": [[1e20, 1.0]],
    "float16": [[300.0, 300.0]],
    "large float16": [[300.0], [450.0, 20.0]],
    "bfloat16": [[306.0, -77.5, 3.0], [153.0, -229.0]],
    "model": random_list(1, *BLOCK * 12, (3, 6)),
    "next step": random_list(2, *BLOCK * 12, (3, 6)),
    "one axis": random_list(3, (4,), (2,), (1,), (5,)),
    "scalar": random_list(4, (), (3,), (2, 2)),
    "one": random_list(5, (4,)),
    "None is last": [*random_list(6, (4,)), None],
    "tiny bias": [np.full(3000, 0.3), np.array([1e-4])],
    "long": [np.ones(100_000), *(np.full((1, 10), 1 + number / 10) for number in range(6))],
    "two axes": [list(np.random.default_rng(3).standard_normal(30)), [20.0]],
}
LISTS["small"] = [each * 1e-4 for each in LISTS["model"]]
LISTS["equal norms"] = [-each for each in LISTS["model"]]
LISTS["equal norms"][4] = LISTS["equal norms"][4] * total(LISTS["model"][-1:]) / total(LISTS["model"][4:5])
"""The norm of the fifth gradient is that of the last one."""

DTYPES = {"float16": "float16", "large float16": "float16", "bfloat16": "bfloat16"}
FLAT = ("two", "one element each", "one element", "one tensor", "all equal", "three", "tiny")
THRESHOLDS = (0.7, 1.23, 100.0)


def cases_of(lists: Sequence[str], thresholds: Sequence[float]) -> dict[str, Case]:
    cases = {}
    for name in lists:
        tensors = [None if each is None else dense(each, DTYPES.get(name, "float32")) for each in LISTS[name]]
        for threshold in thresholds if name != "tiny" else (1.3e-4,):
            clip_case = case(tensors, "clip_by_global_norm", clip_norm=threshold)
            cases[f"{name} at {threshold}"] = dataclasses.replace(clip_case, names=[])
    return cases


def of_lists(function: Function, *lists: str, at: Sequence[float] = THRESHOLDS) -> dict[str, Diagnosis]:
    return diagnoses(function, cases_of(lists, at))


def by_counted(counted: Callable[[Arrays], Arrays]) -> Function:
    """Clip by the norm of some of the gradients."""
    return by_norm(lambda grads: total(counted(grads)))


def unless(is_left_out: Callable[[Array], bool], *, counts_it: bool) -> Function:
    """Do not scale some of the gradients."""

    def function(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        norm = total([each for each in grads if counts_it or not is_left_out(each)])
        return [each if is_left_out(each) else each * least(norm, limit) for each in grads], norm

    return function


def instead(of: str) -> str:
    return f"as if the call used {of} instead of the norm"


MODELS = (("model", "next step"), (0.7, 3.1))
ALL = (FLAT, THRESHOLDS)
LAST = "as if gradient 24 of shape [3, 6] were {} the norm"
AXIS = "all gradients with 1 axis"
FLOATS = (*FLAT, "float16", "large float16", "large")

CAUSES: dict[str, tuple[Function, tuple[Sequence[str], Sequence[float]], str, str]] = {
    "sum of norms": (by_norm(lambda g: sum(norms(g))), ALL, TYPE, instead("the sum of the tensors' norms")),
    "norm_type 1": (
        by_norm(lambda g: sum(np.abs(each).sum() for each in g)), ALL, TYPE, "as if norm_type were 1 instead of 2"
    ),
    "largest norm": (by_norm(lambda g: max(norms(g))), ALL, TYPE, instead("the largest norm of a tensor")),
    "square": (by_norm(lambda g: total(g) ** 2), ALL, TYPE, instead("the square of the norm")),
    "root of the mean": (
        by_norm(lambda g: total(g) / math.sqrt(sum(each.size for each in g))), ALL, TYPE,
        instead("the root mean square of all elements"),
    ),
    "the square is returned": (
        lambda g, c: (right(g, c)[0], total(g) ** 2), ALL, TYPE,
        "as if the square of the norm were returned in place of the norm",
    ),
    "half": (
        by_norm(lambda g: total(g) / math.sqrt(2)), MODELS, TYPE, instead("the norm divided by the square root of 2")
    ),
    "both": (by_norm(lambda g: total([*g, *g])), MODELS, TYPE, instead("the norm times the square root of 2")),
    "without min": (
        by(lambda n, c: c / n), ALL, "scaled gradients",
        "as if gradients with a small norm were scaled up to the threshold",
    ),
    **{
        f"times {factor}": (
            by(lambda n, c, factor=factor: factor * least(n, c)), ALL, "scaled gradients",  # type: ignore[misc]
            f"as if every gradient were {factor} times as large",
        )
        for factor in (0.5, 0.99, 1.00005, 2)
    },
    "eps": (by(lambda n, c: least(n + 1e-3, c)), ALL, EPS, "as if eps were 0.001 instead of 0"),
    **{
        f"eps {eps} on the coefficient": (
            by(lambda n, c, eps=eps: min(1.0, c / n + eps)), (FLOATS, THRESHOLDS), EPS,  # type: ignore[misc]
            f"as if eps {eps:g} were added to the coefficient",
        )
        for eps in (1e-6, 1e-3)
    },
    "norm / threshold": (
        by(lambda n, c: min(1.0, n / c)), ALL, "coefficient",
        "as if the coefficient were min(1, norm / threshold) instead of min(1, threshold / norm)",
    ),
    "twice the norm": (by_norm(lambda g: 2 * total(g)), ALL, "coefficient", "as if the norm were 2 times as large"),
    "0.3 as the threshold": (
        by(lambda n, c: least(n, 0.3)), ALL, THRESHOLD, "as if the threshold were 0.3 in all calls"
    ),
    "the squared threshold of a single case": (
        by(lambda n, c: least(n, c * c)), (("below 1",), (0.7,)), THRESHOLD,
        "as if the call used the square of the threshold instead of the threshold, or as if the threshold were 0.49 "
        "instead of 0.7",
    ),
    "in one dtype alone": (
        by(lambda n, c: 1.0 if n > 400 else least(n, c)), ((*FLAT, "float16", "large float16"), THRESHOLDS),
        "not clipped", "as if nothing were clipped: the gradients are unchanged",
    ),
    # With a threshold of 1, the square of the coefficient is the coefficient of the squared norm.
    "the squared norm, with one threshold of 1": (
        by(lambda n, c: c / max(c, n * n)), (("two axes", "three"), (0.1, 1.0, 5.0)), TYPE,
        instead("the square of the norm"),
    ),
    "all sums in 16 bits": (
        lambda g, c: ([each * least(420.0, c) for each in g], 420.0), (("bfloat16",), THRESHOLDS), "16 bits",
        "as if the norm were computed in bfloat16",
    ),
    # -- gradients that a norm leaves out or counts twice
    AXIS: (
        by_counted(lambda g: [each for each in g if each.ndim != 1]), (("model", "next step", "one axis"), (0.7, 3.1)),
        "left out", f"as if {AXIS} were left out of the norm",
    ),
    "at most 1 axis": (
        by_counted(lambda g: [each for each in g if each.ndim > 1]), (("model", "one axis", "scalar"), (0.7, 3.1)),
        "left out", "as if all gradients with at most 1 axis were left out of the norm",
    ),
    "the last gradient": (by_counted(lambda g: g[:24]), MODELS, "left out", LAST.format("left out of")),
    "the last of each list, one of which has None there": (
        by_counted(lambda g: g[:-1] if len(g) > 1 else g), (("model", "None is last"), (0.7, 3.1)), "left out",
        LAST.format("left out of"),
    ),
    "the last of two lists, in one of which another has the same norm": (
        by_counted(lambda g: g[:-1]), (("equal norms", "model"), (0.7, 3.1)), "left out", LAST.format("left out of")
    ),
    "the last gradients": (
        by_counted(lambda g: g[:21]), MODELS, "left out", "as if the last 4 gradients were left out of the norm"
    ),
    "the first gradients": (
        by_counted(lambda g: g[3:]), MODELS, "left out", "as if the first 3 gradients were left out of the norm"
    ),
    "counted twice": (
        by_counted(lambda g: [*g, g[-1]]), MODELS, "repeated parameter", LAST.format("counted twice in")
    ),
    "not scaled": (
        unless(lambda each: each.ndim == 1, counts_it=True), MODELS, "not scaled",
        f"the call returned {AXIS} unchanged, although the norm includes {AXIS}",
    ),
    "neither scaled nor counted": (
        unless(lambda each: each.ndim == 1, counts_it=False), MODELS, "left out",
        f"the call returned {AXIS} unchanged, and the norm leaves out {AXIS}",
    ),
    "a gradient below rounding": (
        unless(lambda each: each.size == 1, counts_it=False), (("tiny bias",), (1e-5, 2e-5)), "not scaled",
        "the call returned gradient 1 unchanged",
    ),
    "left out for its shape": (
        by_counted(lambda g: [each for each in g if each.size != 2]),
        (("one element each", "one tensor", "three"), THRESHOLDS), "left out",
        "as if gradient 1 of shape [2] were left out of the norm",
    ),
    "off by more than rounding": (by_counted(lambda g: [g[0], *g[2::2]]), (("long",), (0.7,)), "", ""),
    # -- results that are rounded otherwise
    "nothing clipped, and another norm": (
        lambda g, c: ([*g], total(g) * (1 + 2.0**-23)), (("one axis", "one"), (0.7,)), "not clipped",
        "as if nothing were clipped: the gradients are unchanged",
    ),
    "own norms": (
        of_each(lambda g, c, n: g * least(total([g]), c)), (("model",), (1e-5, 3e-5)), "per tensor for global",
        "as if each gradient were clipped by its own norm instead of the total norm",
    ),
    "own norms with eps": (
        of_each(lambda g, c, n: g * least(total([g]) + 1e-6, c)), (("small",), (1e-5, 3e-5)), "per tensor for global",
        "as if each gradient were clipped by its own norm instead of the total norm, and as if eps were 1e-06 instead "
        "of 0",
    ),
    "the first gradient twice": (
        lambda g, c: (
            [each * (least(total(g), c) * (1 + 2.0**-23)) ** (1 if number else 2) for number, each in enumerate(g)],
            total(g),
        ),
        (("model", "one axis", "one", "None is last"), (0.1, 0.2)), "clipped twice",
        "as if the coefficient were applied twice to gradient 0",
    ),
    "the sign of the first gradient": (
        lambda g, c: (
            [each * (least(total(g), c) * (1 + 2.0**-23)) * (1 if number else -1) for number, each in enumerate(g)],
            total(g),
        ),
        (("model",), (0.7, 3.1)), "signs", "as if gradient 0 were multiplied by -1",
    ),
    "without a norm, and nothing clipped": (
        lambda g, c: ([*g], None), (("two",), (0.7, 100.0)), "not clipped",
        "as if nothing were clipped: the gradients are unchanged",
    ),
}  # fmt: skip
"""A function, lists and thresholds, and the cause of all its differences."""


@pytest.mark.parametrize("name", CAUSES)
def test_all_differences_of_a_function_have_the_cause_that_agrees_with_all_its_cases(name: str) -> None:
    function, (lists, thresholds), kind, sentence = CAUSES[name]
    assert causes(of_lists(function, *lists, at=thresholds)) == {(kind, sentence) if kind else None}


def test_a_threshold_that_explains_unchanged_gradients_of_another_case_is_named() -> None:
    found = of_lists(by(lambda n, c: least(n, 2 * c)), *FLAT)
    assert kinds(found) == {THRESHOLD}
    assert found["all equal at 1.23"].cause == (THRESHOLD, "as if the threshold were 2.46 instead of 1.23")


SOMETIMES: dict[str, tuple[Function, Sequence[str], dict[str, str]]] = {
    "nothing clipped between two norms": (
        by(lambda n, c: 1.0 if 2 * c < n < 3 * c else least(n, c)), FLAT,
        {
            "one element at 1.23": "as if nothing were clipped: the gradients are unchanged, but the case 'two at 0.7'",
            "all equal at 0.7": "",
        },
    ),
    "another threshold in one dtype": (
        by(lambda n, c: least(n, 1.42388 * c if n > 400 and c < 100 else c)), (*FLAT, "float16"),
        {"float16 at 0.7": "as if the threshold were rounded to an integer, but the case", "float16 at 1.23": ""},
    ),
    "the square of the threshold in one dtype": (
        by(lambda n, c: least(n, c * c if n > 400 and c < 100 else c)), (*FLAT, "float16"),
        {"float16 at 0.7": "the square of the threshold instead of the threshold, but the case", "float16 at 1.23": ""},
    ),
    "twice in one list": (
        lambda g, c: ([each * least(total(g), c) ** (2 if len(g) == 3 else 1) for each in g], total(g)), FLAT,
        {f"three at {limit}": "the coefficient were applied twice, but" for limit in THRESHOLDS[:2]},
    ),
    "other factors": (
        by(lambda n, c: {0.7: 1.00018, 1.23: 1.00088, 100.0: 1.0007}[c] * least(n, c)), ("two",),
        {f"two at {limit}": "" for limit in THRESHOLDS},
    ),
    "a larger norm, in one list": (
        by_norm(lambda g: 2.1 * total(g)), ("two",), {f"two at {limit}": "" for limit in THRESHOLDS}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOMETIMES)
def test_a_cause_that_another_case_contradicts_is_not_named(name: str) -> None:
    function, lists, contradictions = SOMETIMES[name]
    found = of_lists(function, *lists)
    assert (found.keys(), causes(found)) == (contradictions.keys(), {None})
    for each, words in contradictions.items():
        assert words in found[each].contradiction


def test_a_second_mistake_in_one_case_does_not_hide_the_cause_of_the_others() -> None:
    def clip(grads: Arrays, limit: float) -> tuple[Arrays, float | None]:
        factor = 1.5 if len(grads) == 3 and limit == 0.7 else 1
        return by_norm(lambda grads: factor * sum(norms(grads)))(grads, limit)

    found = of_lists(clip, *FLAT)
    assert found.pop("three at 0.7").cause is None
    assert causes(found) == {(TYPE, instead("the sum of the tensors' norms"))}


def test_a_rounded_coefficient_is_named_although_sums_explain_the_results_too() -> None:
    """A norm that underflows in a float32 case is no evidence for sums in bfloat16."""

    def clip(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        norm = math.sqrt(sum(float((np.float32(each) ** 2).sum()) for each in grads))
        coef = in_bfloat16(least(norm, limit)) if grads[0][0] == 306 else least(norm, limit)
        return [each * coef for each in grads], norm

    found = of_lists(clip, *FLAT, "bfloat16", "squares underflow", at=[10.3])
    assert set(found) == {"bfloat16 at 10.3", "squares underflow at 10.3"}
    assert found["bfloat16 at 10.3"].cause == ("16 bits", "as if the coefficient were rounded to bfloat16")


def test_an_unchanged_result_alone_shows_no_gradients_that_the_norm_leaves_out() -> None:
    """A clip by value changes nothing if all elements are below the threshold, but the norm is above."""
    above = max(float(np.abs(each).max()) for each in LISTS["model"]) + 0.1
    found = of_lists(of_each(lambda g, c, n: np.clip(g, -c, c)), "model", "one axis", at=(0.7, above))
    assert above < total(LISTS["model"])
    assert f"model at {above}" in found
    assert kinds(found) == {"another rule"}


def test_an_infinite_norm_explains_no_finite_norm() -> None:
    assert kinds(of_lists(lambda g, c: ([0 * each for each in g], 0.0), "squares overflow")) == {"overflow"}
    for norm in (5.0, math.inf):
        call = Observation(before=[], expected=[], after=[], by="global", norm=norm)
        assert call.norm_fits([math.inf], 1e-6) == (norm == math.inf)


def test_results_in_16_bits_do_not_show_that_one_of_many_gradients_is_counted_twice() -> None:
    tensors = [dense(each, "bfloat16") for each in random_list(7, *[(3,)] * 60)]
    clip_case = case(tensors, "clip_by_global_norm", clip_norm=0.7)
    outcome = outcome_of(lambda g, c: ([each * 0.98 * c / total(g) for each in g], None), clip_case)
    cause = diagnose.diagnose(clip_case, oracle.expect(clip_case), outcome)
    assert cause is None or cause.kind != "repeated parameter"


def test_a_number_of_gradients_that_fits_hides_no_other_cause() -> None:
    """In bfloat16, 256 + 1 is 256, as if the norm had only 256 of the 400 gradients."""
    clip_case = case([dense([1.0], "bfloat16")] * 400, "clip_by_global_norm", clip_norm=1.0)
    clipped = [dense([0.0625], "bfloat16")] * 400
    cause = diagnose.diagnose(clip_case, oracle.expect(clip_case), CallOutcome(dense(16.0), clipped))
    assert cause == ("16 bits", "as if the squares were added up in bfloat16")


def test_a_list_in_another_order_is_named_in_spite_of_rounding() -> None:
    (clip_case,) = cases_of(["model"], [3.1]).values()
    exact = oracle.expect(clip_case).gradients or []
    results = [each and dense(np.nextafter(np.float32(each.values()), np.float32(9))) for each in exact]
    ordered = CallOutcome(oracle.expect(clip_case).norm, [results[index] for index in sorted(range(25), key=str)])
    cause = diagnose.diagnose(clip_case, oracle.expect(clip_case), ordered)
    assert cause
    assert cause.sentence == "gradient 2, gradient 3, gradient 4 and 20 others are in another order"


# -- judged results


@pytest.mark.parametrize(
    ("eps", "fault", "cause"),
    [(1e-10, "the norm is a number", ""), (1e-3, "the norm is a number", EPS), (1e-3, "", EPS)],
)
def test_a_difference_of_the_form_has_no_cause_if_the_numbers_agree(eps: float, fault: str, cause: str) -> None:
    """A coefficient that is computed in float64 can look like another cause, but is only rounded otherwise."""
    results, cases = dict[tuple[str, str], JudgedResult](), []
    for name, each in cases_of(FLAT, [1.23]).items():
        cases.append(dataclasses.replace(each, name=name))
        outcome = outcome_of(by(lambda n, c: least(n + eps, c)), each)
        outcome.fault = fault
        results[NATIVE, name] = judged_result.judge_result(
            (NATIVE, cases[-1]), oracle.expect(each), outcome, FrameworkTable(), []
        )
    judged_result.choose_causes(cases, oracle.expect, {"torch": results})
    natives = [judged.native for judged in results.values()]
    assert {native.cause_kind for native in natives if native} - {""} == {cause} - {""}
    assert any(native and native.kind == ("form" if fault else "value") for native in natives)


def test_a_missing_result_of_zeros_keeps_its_cause() -> None:
    clip_case = case([dense([3.0, 4.0]), dense([0.0])], "clip_by_global_norm", clip_norm=1.0)
    outcome = outcome_of(right, clip_case)
    outcome.gradients = [*outcome.gradients[:1], None]  # type: ignore[index]
    judged = judged_result.judge_result((NATIVE, clip_case), oracle.expect(clip_case), outcome, FrameworkTable(), [])
    assert judged.native
    assert (judged.native.kind, judged.native.finite_size) == ("form", 0.0)
    assert judged.native.cause == "gradient 1 is missing"


# -- the command

CLIP = """
import numpy as np

def clip(grads, max_norm):
    norm = sum(np.sqrt((g.astype(np.float64) ** 2).sum()) for g in grads)
    coef = np.float32(min(1.0, max_norm / norm))
    return [g * coef for g in grads], np.float32(norm)
"""
SUITE = """
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
ONE_CASE = ("--case", "two: clip_by_global_norm(clip_norm=0.7)")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    functions = "[frameworks.numpy.functions]\nclip_by_global_norm = 'clip.py:clip'"
    where = suite(tmp_path, SUITE, frameworks=f"[frameworks.numpy]\nmodes = ['native']\n{functions}")

    def call(code: str, *options: str) -> tuple[int, str]:
        (tmp_path / "clip.py").write_text(code, encoding="utf-8")
        out = () if "--case" in options else ("--out", str(tmp_path / "out"))
        return cli.main(["parity", "--suite", str(where), *out, *options]), capsys.readouterr().out

    return call


def write_reasons(known: Path) -> list[str]:
    text = known.read_text(encoding="utf-8").replace('reason = ""', 'reason = "ours"')
    known.write_text(text, encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("reason")]


def test_the_report_names_the_cause_of_all_cases_or_that_it_is_unknown(run: Callable[..., tuple[int, str]]) -> None:
    status, printed = run(CLIP)
    assert status == 1
    assert f"clip.py:clip: {instead('the sum of the tensors' + chr(39) + ' norms')} (numbers differ" in printed
    assert printed.count("2 cases, such as 'one element each: clip_by_global_norm(clip_norm=0.7)'") == 1
    assert run(CLIP, *ONE_CASE)[1].count("This cause explains the chosen cases.") == 1
    unexplained = CLIP.replace("max_norm / norm", "0.123456789 * max_norm / norm**0.3")
    assert "the cause is unknown" in run(unexplained)[1]
    assert run(unexplained, *ONE_CASE)[1].count("More cases can show the cause: run without --case.") == 1


def test_a_chosen_case_of_a_known_difference_passes(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """A single case does not distinguish a wrong eps from a wrong threshold."""
    with_eps = CLIP.replace("sum(np.sqrt((g.astype(np.float64) ** 2).sum()) for g in grads)", "total(grads)")
    with_eps = with_eps.replace("max_norm / norm", "max_norm / (norm + 0.00123)")
    with_eps += "\ndef total(grads):\n    return np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))\n"
    status, printed = run(with_eps, *ONE_CASE)
    assert (status, "as if the threshold were" in printed) == (1, True)
    assert run(with_eps, "--accept")[0] == 0
    assert run(with_eps)[0] == 1, "whoever wrote the function writes the reason"
    assert write_reasons(tmp_path / "known.toml") == ['reason = "ours" # as if eps were 0.00123 instead of 0']
    assert (run(with_eps)[0], run(with_eps, *ONE_CASE)[0]) == (0, 0)
    assert run(with_eps.replace("0.00123", "0.0022"), *ONE_CASE)[0] == 1  # another size


def test_accept_replaces_the_entry_of_a_case_that_has_another_difference_now(
    run: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert run(CLIP, "--accept")[0] == 0
    write_reasons(tmp_path / "known.toml")
    other = CLIP.replace("norm = sum(", "norm = total(").replace("[g * coef for g in grads]", "list(grads)")
    other += "\ndef total(norms):\n    return np.sqrt(sum(norm * norm for norm in norms))\n"
    status, printed = run(other)
    assert (status, printed.count("; listed: "), "stale" in printed) == (1, 1, False)
    assert run(other, "--accept")[0] == 0
    write_reasons(tmp_path / "known.toml")
    status, printed = run(other)
    assert (status, "0 results of your functions are right, and 2 known differences are accepted" in printed) == (
        0,
        True,
    )
    assert "the sum of the tensors' norms" not in (tmp_path / "known.toml").read_text(encoding="utf-8")
