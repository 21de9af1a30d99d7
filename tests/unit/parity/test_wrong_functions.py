"""The suite of `unified-clip parity init` names the causes of wrong clip functions, and passes correct ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unified_clip import cli
from unified_clip.causes.consistent import consistent_causes
from unified_clip.causes.observation import Observation
from unified_clip.parity.judge import diagnose, oracle
from unified_clip.parity.known import measure
from unified_clip.parity.outcome import CallOutcome
from unified_clip.parity.suite import load
from unified_clip.parity.suite.cases import Case
from unified_clip.tensors.types import densify, encode

Arrays = list[np.ndarray[Any, Any]]
Function = Callable[[Arrays, float], tuple[Arrays, float]]


@pytest.fixture
def init_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases of `init` that call `clip_by_global_norm`."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["parity", "init"]) == 0
    return [case for case in load.read(Path("parity")).cases if case.call_name == "clip_by_global_norm"]


def find_causes(function: Function, cases: list[Case]) -> dict[str, tuple[str, str]]:
    """The kind and the sentence of the cause of each difference, by the name of the case. ('', '') if it is unknown."""
    calls, differing = dict[str, Observation](), []
    for case in cases:
        inputs = [dense for each in case.gradients if (dense := densify(each))]
        with np.errstate(all="ignore"):
            results, norm = function([each.array.copy() for each in inputs], case.arguments["clip_norm"])
        tensors = [
            encode(np.asarray(each, np.float64), before.dtype) for each, before in zip(results, inputs, strict=True)
        ]
        outcome = CallOutcome(encode(np.asarray(norm, np.float64), oracle.expect(case).norm.dtype), tensors, name="f")
        deviation = measure.measure(case, oracle.expect(case), outcome)
        call = diagnose.observe(case, oracle.expect(case), outcome)
        assert deviation
        assert call
        calls[case.name] = call
        differing += [case.name] if deviation.kind else []
    diagnoses = consistent_causes(calls, differing)
    return {name: tuple(each.cause or ("", each.contradiction)) for name, each in diagnoses.items()}


def total(grads: Arrays) -> float:
    return math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))


def clip_by(coef: Callable[[float, float], float]) -> Function:
    """A function that multiplies by a coefficient, and returns the total norm."""
    return lambda grads, limit: ([g * coef(total(grads), limit) for g in grads], total(grads))


def clip_arrays(norm: float, limit: float) -> float:
    return min(1.0, limit / norm) if norm else 1.0


RIGHT: dict[str, Function] = {
    "minimum": clip_by(clip_arrays),
    "condition": clip_by(lambda n, c: c / n if n > c else 1.0),
    "maximum": clip_by(lambda n, c: 1.0 if math.isinf(c) else c / max(n, c)),
}

CONDITION = "as when gradients are scaled to the threshold only if "
BETWEEN = "the norm is above c times the threshold, with a c between "
SQUARED = "the norm is above the square of the threshold"
SIGNS = "as when 'gradient 0'{} are multiplied by -1"

WRONG: dict[str, tuple[Function, set[tuple[str, str]]]] = {
    "above twice the threshold": (
        clip_by(lambda n, c: c / n if n > 2 * c else 1.0),
        {("another condition", f"{CONDITION}{SQUARED}, or if {BETWEEN}1.003 and 2.774")},
    ),
    "above half the threshold": (
        clip_by(lambda n, c: c / n if n > c / 2 else 1.0),
        {("another condition", f"{CONDITION}{BETWEEN}0.4979 and 0.9973")},
    ),
    "above the square of the threshold": (
        clip_by(lambda n, c: c / n if n > c * c else 1.0),
        {("another condition", f"{CONDITION}{SQUARED}, or if {BETWEEN}1.003 and 2.774")},
    ),
    "squared norm above the threshold": (
        clip_by(lambda n, c: c / n if n * n > c else 1.0),
        {
            ("another condition", f"{CONDITION}the square of the norm is above the threshold"),
            (
                "scaled gradients",
                "as when gradients are always scaled to the threshold, even if their norm is below it",
            ),
        },
    ),
    "inf gives NaN": (
        clip_by(lambda n, c: float(np.float64(c) * min(1 / n, 1 / np.float64(c)) if n else 1.0)),
        {("NaN", "every element is NaN, but none should be")},
    ),
    "zeros give NaN": (
        clip_by(lambda n, c: float(np.float64(min(n, c)) / n)),
        {("NaN", "every element is NaN, but none should be")},
    ),
    "eps inside the root": (
        clip_by(lambda n, c: clip_arrays(math.sqrt(n * n + 1e-10), c)),
        {("another eps", "as with eps 1e-10 inside the root of the norm")},
    ),
    "an unusual eps inside the root": (
        clip_by(lambda n, c: clip_arrays(math.sqrt(n * n + 3e-10), c)),
        {("another eps", "as with eps 4.15775e-07 instead of 0, or as with eps 3e-10 inside the root of the norm")},
    ),
    "eps": (clip_by(lambda n, c: clip_arrays(n + 1e-6, c)), {("another eps", "as with eps 1e-06 instead of 0")}),
    "sign": (
        lambda grads, limit: ([-g * clip_arrays(total(grads), limit) for g in grads], total(grads)),
        {("signs", SIGNS.format(each)) for each in (" and 'gradient 1'", ", 'gradient 1' and 'gradient 2'")},
    ),
    "lost signs": (
        lambda grads, limit: ([np.abs(g) * clip_arrays(total(grads), limit) for g in grads], total(grads)),
        {("signs", "wrong signs in 'gradient 0', 'gradient 1' and 'gradient 2', and no other difference")},
    ),
    "by value": (
        lambda grads, limit: ([np.clip(g, -limit, limit) for g in grads], total(grads)),
        {
            ("another rule", "as when each element is clipped to the threshold, in place of the norm"),
            (
                "",
                "as when each gradient is clipped by its own norm instead of the total norm, but the case "
                "'worked example: clip_by_global_norm(clip_norm=1.77)' contradicts this",
            ),
        },
    ),
    "mean of the squared norms": (
        lambda grads, limit: (
            [g * clip_arrays(total(grads) / len(grads) ** 0.5, limit) for g in grads],
            total(grads) / len(grads) ** 0.5,
        ),
        {("another norm type", "as with the root of the mean of the squared norms instead of the norm")},
    ),
    "squared threshold": (
        clip_by(lambda n, c: clip_arrays(n, c * c)),
        {("another threshold", "as with the square of the threshold instead of the threshold")},
    ),
    "squared norm": (
        clip_by(lambda n, c: clip_arrays(n * n, c)),
        {("another norm type", "as with the square of the norm instead of the norm")},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_function_passes(name: str, init_cases: list[Case]) -> None:
    assert find_causes(RIGHT[name], init_cases) == {}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_fails_with_its_cause(name: str, init_cases: list[Case]) -> None:
    function, causes = WRONG[name]
    found_causes = find_causes(function, init_cases)
    assert found_causes
    assert set(found_causes.values()) == causes
