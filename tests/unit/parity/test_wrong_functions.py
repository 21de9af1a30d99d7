"""The suite of `unified-clip parity init` names the causes of wrong clip functions, and passes correct ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unified_clip import cli
from unified_clip.causes.explain import find_causes as find_causes_of
from unified_clip.causes.observation import Observation
from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import diagnose, oracle
from unified_clip.parity.known import measure
from unified_clip.parity.suite import load
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.arithmetic import rounded
from unified_clip.tensors.types import Dense, densify, encode

Arrays = list[np.ndarray[Any, Any]]
Function = Callable[[Arrays, float], tuple[Arrays, float]]


@pytest.fixture
def all_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["parity", "init"]) == 0
    return list(load.read(Path("parity")).cases)


@pytest.fixture
def init_cases(all_cases: list[Case]) -> list[Case]:
    return [case for case in all_cases if case.call_name == "clip_by_global_norm"]


def find_causes(function: Function, cases: list[Case]) -> dict[str, tuple[str, str]]:
    calls, differing = dict[str, Observation](), []
    for case in cases:
        inputs = [dense for each in case.gradients if (dense := densify(each))]
        with np.errstate(all="ignore"):
            results, norm = function([array_of(each) for each in inputs], case.arguments["clip_norm"])
        tensors = [
            encode(rounded(np.asarray(each, np.float64), before.dtype), before.dtype)
            for each, before in zip(results, inputs, strict=True)
        ]
        outcome = CallOutcome(encode(np.asarray(norm, np.float64), oracle.expect(case).norm.dtype), tensors, name="f")
        deviation = measure.measure(case, oracle.expect(case), outcome)
        call = diagnose.observe(case, oracle.expect(case), outcome)
        assert deviation
        assert call
        calls[case.name] = call
        differing += [case.name] if deviation.kind else []
    diagnoses = find_causes_of(calls, differing)
    return {name: tuple(each.cause or ("", each.contradiction)) for name, each in diagnoses.items()}


def array_of(tensor: Dense) -> np.ndarray[Any, Any]:
    """A copy of a tensor. NumPy has no bfloat16, so such a tensor becomes float32."""
    return tensor.values().astype(np.float32) if tensor.dtype == "bfloat16" else tensor.array.copy()


def total(grads: Arrays) -> float:
    return math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))


def clip_by(coef: Callable[[float, float], float]) -> Function:
    return lambda grads, limit: ([g * coef(total(grads), limit) for g in grads], total(grads))


def clip_by_norm(measure: Callable[[Arrays], float], *, returns_it: bool = True) -> Function:
    return lambda grads, limit: (
        [g * clip_arrays(measure(grads), limit) for g in grads],
        measure(grads) if returns_it else total(grads),
    )


def sum_of_norms(grads: Arrays) -> float:
    return sum(total([g]) for g in grads)


def root_mean_square(gradient: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(gradient.astype(np.float64) ** 2)))


def limited(grads: Arrays, bound: float = 0.2) -> Arrays:
    return [np.clip(g, -bound, bound) for g in grads]


def norm_in_float32(grads: Arrays) -> float:
    squares = np.concatenate([g.ravel() for g in grads]).astype(np.float32) ** 2
    return float(np.sqrt(np.add.accumulate(squares)[-1]))


def in_float16(number: float) -> float:
    return float(np.float16(number))


def norm_with_float16_sums(grads: Arrays) -> float:
    squares = np.concatenate([g.ravel() for g in grads]).astype(np.float16) ** 2
    return math.sqrt(np.add.accumulate(squares)[-1])


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
        results[index] = gradient * clip_arrays(total(results), limit)
    return results, total(grads)


def clip_arrays(norm: float, limit: float) -> float:
    return min(1.0, limit / norm) if norm else 1.0


RIGHT: dict[str, Function] = {
    "minimum": clip_by(clip_arrays),
    "condition": clip_by(lambda n, c: c / n if n > c else 1.0),
    "maximum": clip_by(lambda n, c: 1.0 if math.isinf(c) else c / max(n, c)),
}

MEAN_SQUARES = "the tensors' root mean squares"

WRONG: dict[str, tuple[Function, set[str]]] = {
    "squared norm above the threshold": (clip_by(lambda n, c: c / n if n * n > c else 1.0), {"another condition"}),
    "squared norm above the threshold, and a norm that is rounded otherwise": (
        lambda grads, limit: (
            [g * (limit / total(grads) if total(grads) ** 2 > limit else 1.0) for g in grads],
            total(grads) * (1 + 2.0**-23),
        ),
        {"another condition"},
    ),
    "inf gives NaN": (
        clip_by(lambda n, c: float(np.float64(c) * min(1 / n, 1 / np.float64(c)) if n else 1.0)),
        {"NaN"},
    ),
    "zeros give NaN": (clip_by(lambda n, c: float(np.float64(min(n, c)) / n)), {"NaN"}),
    "eps inside the root": (
        clip_by(lambda n, c: clip_arrays(math.sqrt(n * n + 1e-10), c)),
        {"another eps of the clip"},
    ),
    "an unusual eps inside the root": (
        clip_by(lambda n, c: clip_arrays(math.sqrt(n * n + 3e-10), c)),
        {"another eps of the clip"},
    ),
    "eps": (clip_by(lambda n, c: clip_arrays(n + 1e-6, c)), {"another eps of the clip"}),
    "sign": (lambda grads, limit: ([-g * clip_arrays(total(grads), limit) for g in grads], total(grads)), {"signs"}),
    "lost signs": (
        lambda grads, limit: ([np.abs(g) * clip_arrays(total(grads), limit) for g in grads], total(grads)),
        {"signs"},
    ),
    "by value": (lambda grads, limit: ([np.clip(g, -limit, limit) for g in grads], total(grads)), {"another rule"}),
    "by value and then by norm": (lambda grads, limit: RIGHT["minimum"](limited(grads), limit), {"another rule"}),
    "by norm and then by value": (
        lambda grads, limit: (limited(RIGHT["minimum"](grads, limit)[0]), total(grads)),
        {"another rule"},
    ),
    "by value, but with the norm before it": (
        lambda grads, limit: ([g * clip_arrays(total(grads), limit) for g in limited(grads)], total(grads)),
        {"another rule"},
    ),
    "mean of the squared norms": (
        lambda grads, limit: (
            [g * clip_arrays(total(grads) / len(grads) ** 0.5, limit) for g in grads],
            total(grads) / len(grads) ** 0.5,
        ),
        {"another norm type"},
    ),
    **{
        f"averages over {count} micro-batches": (
            lambda grads, limit, count=count: RIGHT["minimum"]([g / count for g in grads], limit),  # type: ignore[misc]
            {"scaled gradients"},
        )
        for count in (3, 4)
    },
    "squared threshold": (clip_by(lambda n, c: clip_arrays(n, c * c)), {"another threshold"}),
    **{
        f"eps {eps:g} after the division": (
            clip_by(lambda n, c, eps=eps: min(1.0, c / n + eps) if n else 1.0),  # type: ignore[misc]
            {"another eps of the clip"},
        )
        for eps in (1e-8, 1e-6, 3e-5, 1e-3)
    },
    "eps in the returned norm": (clip_by_norm(lambda grads: total(grads) + 1e-6), {"another eps of the clip"}),
    "the threshold is compared without eps": (
        clip_by(lambda n, c: c / (n + 1e-6) if n > c else 1.0),
        {"another eps of the clip"},
    ),
    "scaled to a norm of 1": (clip_by(lambda n, c: 1 / n if n > c else 1.0), {"another threshold"}),
    "the smallest eps inside the root": (
        clip_by(lambda n, c: clip_arrays(math.sqrt(n * n + 1e-12), c)),
        {"another eps of the clip"},
    ),
    "per tensor": (
        lambda grads, limit: ([g * clip_arrays(total([g]), limit) for g in grads], total(grads)),
        {"per tensor for global"},
    ),
    **{
        f"sum of norms, {returns_it=}": (clip_by_norm(sum_of_norms, returns_it=returns_it), {"another norm type"})
        for returns_it in (True, False)
    },
    "largest norm": (clip_by_norm(lambda grads: max(total([g]) for g in grads)), {"another norm type"}),
    "largest element": (clip_by_norm(lambda grads: max(np.abs(g).max() for g in grads)), {"another norm type"}),
    "maximum in place of minimum": (
        clip_by(lambda n, c: max(1.0, c / n) if n else 1.0),
        {"another condition", "not clipped", "overflow"},
    ),
    "inverted condition": (
        clip_by(lambda n, c: c / n if 0 < n < c < math.inf else 1.0),
        {"another condition", "not clipped"},
    ),
    **{
        f"{words}, {returns_it=}": (clip_by_norm(combine, returns_it=returns_it), {"another norm type"})
        for words, combine in {
            f"the norm of {MEAN_SQUARES}": lambda grads: math.hypot(*map(root_mean_square, grads)),
            f"the root mean square of {MEAN_SQUARES}": lambda grads: root_mean_square(
                np.array([*map(root_mean_square, grads)])
            ),
            f"the sum of {MEAN_SQUARES}": lambda grads: sum(map(root_mean_square, grads)),
        }.items()
        for returns_it in (True, False)
    },
    "squares in float16": (
        clip_by_norm(lambda grads: math.sqrt(sum((g.astype(np.float16) ** 2).sum(dtype=float) for g in grads))),
        {"16 bits", "overflow"},
    ),
    **{
        f"gradients in {dtype} for the norm": (
            clip_by_norm(lambda grads, dtype=dtype: total([rounded(g.astype(float), dtype) for g in grads])),  # type: ignore[misc]
            {"16 bits"},
        )
        for dtype in ("float16", "bfloat16")
    },
    "norm of the clipped gradients in float32": (
        lambda grads, limit: (
            [g * clip_arrays(total(grads), limit) for g in grads],
            norm_in_float32([g * clip_arrays(total(grads), limit) for g in grads]),
        ),
        {"norm after the clip"},
    ),
    "no minimum": (clip_by(lambda n, c: c / n if n else 1.0), {"overflow", "scaled gradients"}),
    "minimum of the coefficient and the threshold": (
        clip_by(lambda n, c: min(c / n, c) if n else 1.0),
        {"overflow", "scaled gradients"},
    ),
    "coefficient in float16": (clip_by(lambda n, c: in_float16(clip_arrays(n, c))), {"16 bits"}),
    "norm in float16 that is not returned": (clip_by(lambda n, c: clip_arrays(in_float16(n), c)), {"16 bits"}),
    "norm of the clipped gradients": (
        lambda grads, limit: (
            [g * clip_arrays(total(grads), limit) for g in grads],
            total([g * clip_arrays(total(grads), limit) for g in grads]),
        ),
        {"norm after the clip"},
    ),
    "the coefficient twice": (clip_by(lambda n, c: clip_arrays(n, c) ** 2), {"clipped twice"}),
    "the last gradient left out": (clip_by_norm(lambda grads: total(grads[:-1])), {"left out"}),
    "gradients without axes left out": (clip_by_norm(lambda grads: total([g for g in grads if g.ndim])), {"left out"}),
    "the same threshold everywhere": (clip_by(lambda n, c: 1 / n if n else 1.0), {"another threshold"}),
    "float16 sums": (clip_by_norm(norm_with_float16_sums), {"16 bits", "overflow"}),
    "bfloat16 sums": (clip_by_norm(lambda grads: with_bfloat16_sums(grads)), {"16 bits"}),
    "bfloat16 sums and root": (clip_by_norm(lambda grads: in_bfloat16(with_bfloat16_sums(grads))), {"16 bits"}),
    "norm in bfloat16": (clip_by_norm(lambda grads: in_bfloat16(total(grads))), {"16 bits"}),
    "norm of each tensor in bfloat16": (
        clip_by_norm(lambda grads: math.hypot(*(in_bfloat16(total([g])) for g in grads))),
        {"16 bits"},
    ),
    **{
        f"the {which} gradient alone, {returns_it=}": (
            clip_by_norm(lambda grads, part=part: total(grads[part]), returns_it=returns_it),  # type: ignore[misc]
            {"left out"},
        )
        for which, part in (("first", slice(0, 1)), ("last", slice(-1, None)))
        for returns_it in (True, False)
    },
    "integer part of the threshold": (
        clip_by(lambda n, c: clip_arrays(n, int(c) if c < math.inf else c)),
        {"another threshold"},
    ),
    "rounded threshold": (clip_by(lambda n, c: clip_arrays(n, round(c) if c < math.inf else c)), {"another threshold"}),
    "0 switches clipping off": (clip_by(lambda n, c: clip_arrays(n, c) if c else 1.0), {"not clipped"}),
    "no clip": (lambda grads, limit: (grads, total(grads)), {"not clipped"}),
    "inverse coefficient": (
        clip_by(lambda n, c: float(n / np.float64(c)) if n > c else 1.0),
        {"coefficient", "overflow"},
    ),
    "squared norm": (clip_by(lambda n, c: clip_arrays(n * n, c)), {"another norm type"}),
}


UNKNOWN: dict[str, Function] = {
    "above the square of the threshold": clip_by(lambda n, c: c / n if n > c * c else 1.0),
    "above twice the threshold": clip_by(lambda n, c: c / n if n > 2 * c else 1.0),
    "above half the threshold": clip_by(lambda n, c: c / n if n > c / 2 else 1.0),
    "above 1.001 times the threshold": clip_by(lambda n, c: c / n if n > 1.001 * c else 1.0),
    "above 0.999 times the threshold": clip_by(lambda n, c: c / n if n > 0.999 * c else 1.0),
    "half the norm is returned": lambda grads, limit: (RIGHT["minimum"](grads, limit)[0], total(grads) / 2),
    "eps on the threshold": clip_by(lambda n, c: clip_arrays(n, c + 1e-6)),
    "eps on both": clip_by(lambda n, c: (c + 1e-6) / (n + 1e-6) if n > c else 1.0),
    "eps subtracted": clip_by(lambda n, c: min(1.0, c / (n - 1e-6))),
    "at least 1e-3 as the norm": clip_by(lambda n, c: min(1.0, c / max(n, 1e-3))),
    "at least 1e-6 as the norm": clip_by(lambda n, c: min(1.0, c / max(n, 1e-6))),
    "at least 1e-2 as the coefficient": clip_by(lambda n, c: max(clip_arrays(n, c), 1e-2)),
    "at most 100 as the norm": clip_by(lambda n, c: clip_arrays(min(n, 100.0), c)),
    "coefficient with 6 digits": clip_by(lambda n, c: round(clip_arrays(n, c), 6)),
    "soft": clip_by(lambda n, c: float(1 / (1 + n / np.float64(c)))),
    "root of the norm": clip_by_norm(lambda grads: math.sqrt(total(grads))),
    "one after the other": one_after_the_other,
    "zero as the norm": lambda grads, limit: (RIGHT["minimum"](grads, limit)[0], 0.0),
}
"""Wrong functions without a known cause."""


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_function_passes(name: str, init_cases: list[Case]) -> None:
    assert find_causes(RIGHT[name], init_cases) == {}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_fails_with_its_cause(name: str, init_cases: list[Case]) -> None:
    function, kinds = WRONG[name]
    assert {kind for kind, _ in find_causes(function, init_cases).values() if kind} == kinds


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_wrong_function_without_a_known_cause_fails_and_has_no_other_cause(name: str, init_cases: list[Case]) -> None:
    assert {kind for kind, _ in find_causes(UNKNOWN[name], init_cases).values()} == {""}


def test_a_clip_by_value_in_one_case_is_not_the_cause_of_a_case_that_a_correct_case_contradicts(
    init_cases: list[Case],
) -> None:
    def clip(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        norm = total(grads)
        if norm < 1e-3 or limit == 11.3:  # the lists of small norms, and "long"
            return [np.clip(g, -limit, limit) for g in grads], norm
        if limit == 55650.0:
            return grads, norm
        return RIGHT["minimum"](grads, limit)

    found_causes = find_causes(clip, init_cases)
    assert {kind for kind, _ in found_causes.values() if kind == "another rule"} == set()
    assert "contradicts this" in found_causes["long: clip_by_global_norm(clip_norm=11.3)"][1]
    assert "large norm: clip_by_global_norm(clip_norm=55650.0)" in found_causes


def test_a_single_call_shows_an_eps_that_is_added_to_the_coefficient(init_cases: list[Case]) -> None:
    (large,) = [case for case in init_cases if case.name.startswith("large norm") and "=4.7)" in case.name]
    ((kind, _),) = find_causes(WRONG["eps 1e-06 after the division"][0], [large]).values()
    assert kind == "another eps of the clip"


ONE_LIST: dict[str, tuple[Function, set[str]]] = {
    "the first 65536 elements alone": (
        clip_by_norm(lambda grads: total([g.ravel()[: 1 << 16] for g in grads])),
        {"long"},
    ),
    "four axes left out": (clip_by_norm(lambda grads: total([g for g in grads if g.ndim < 4])), {"long"}),
    "one matrix of three axes": (
        clip_by_norm(lambda grads: total([g[0] if g.ndim == 3 else g for g in grads])),
        {"long"},
    ),
    "0 switches clipping off": (clip_by(lambda n, c: clip_arrays(n, c) if c else 1.0), {"signs and shapes"}),
}


@pytest.mark.parametrize("name", ONE_LIST)
def test_a_list_of_the_suite_shows_a_mistake_that_the_other_lists_hide(name: str, init_cases: list[Case]) -> None:
    function, lists = ONE_LIST[name]
    gradients = {case.name: case.gradients_name for case in init_cases}
    assert {gradients[name] for name in find_causes(function, init_cases)} == lists


def test_the_norm_in_bfloat16_differs_with_squares_in_bfloat16(init_cases: list[Case]) -> None:
    (case,) = [each for each in init_cases if each.gradients_name == "bfloat16"]
    grads = [array_of(dense) for each in case.gradients if (dense := densify(each))]
    assert {each.dtype for each in case.gradients if each} == {"bfloat16"}
    norms = [total(grads), in_bfloat16(total(grads)), with_bfloat16_sums(grads)]
    assert [f"{norm:.6g}" for norm in norms] == ["418.929", "418", "419.676"]


def test_the_suite_has_other_norms(all_cases: list[Case]) -> None:
    cases = [case for case in all_cases if "norm_type" in case.arguments]
    assert [(case.call_name, float(oracle.expect(case).norm.values())) for case in cases] == [
        ("clip_grad_norm_", 21.5),
        ("clip_grad_norm_", 6.0),
    ]


def test_one_limit_of_elements_explains_all_cases(init_cases: list[Case]) -> None:
    def limited_by_norm(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        return limited(RIGHT["minimum"](grads, limit)[0], 0.1 * total(grads)), total(grads)

    causes = find_causes(limited_by_norm, init_cases)
    assert {kind for kind, _ in causes.values()} == {""}
    assert any("[-0.939415, 0.939415] after" in text and "contradicts this" in text for _, text in causes.values())


def test_an_unknown_cause_is_reported_with_the_causes_of_the_other_cases(init_cases: list[Case]) -> None:
    def clip(grads: Arrays, limit: float) -> tuple[Arrays, float]:
        results, norm = clip_by_norm(lambda grads: total(grads[:-1]))(grads, limit)
        return [each * np.abs(each) for each in results] if limit == 5.1 else results, norm

    causes = find_causes(clip, init_cases)
    known = [kind for kind, _ in causes.values() if kind]
    assert set(known) == {"left out"}
    unknown = [text for kind, text in causes.values() if not kind]
    assert unknown == [f"in {len(known)} other cases the cause is 'left out'"]
