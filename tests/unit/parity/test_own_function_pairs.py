"""The user's functions of two frameworks are compared with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
from support.parity.cases import WORKED, case, dense
from support.parity.reports import native, one_case, report

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import own_function_pairs
from unified_clip.parity.report import junit, markdown, page, terminal_case
from unified_clip.parity.results import CaseResult, FrameworkResult, OwnPair
from unified_clip.parity.suite.schema import FrameworkTable
from unified_clip.tensors.types import Dense


def outcome_of(norm: float, *gradients: list[float], raised: Any = ()) -> CallOutcome:
    return CallOutcome(dense(norm), [dense(values) for values in gradients], raised=raised, name="clip.py:f")


def test_functions_of_two_frameworks_are_compared_with_each_other() -> None:
    clip_case = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    first = outcome_of(5.0, [0.3, 0.4], [0.1, 0.2])
    second_outcomes = {
        ("equal", "equal"): first,
        ("close", "close, by 1.5e-06"): outcome_of(5.0, [0.3, 0.4000006], [0.1, 0.2]),
        ("different", "different, by 20 %"): outcome_of(5.0, [0.3, 0.5], [0.1, 0.2]),
        ("known", "known, by 17 %"): outcome_of(6.0, [0.3, 0.4], [0.1, 0.2]),
        ("known", "known, only one function returns inf or NaN in the norm"): outcome_of(
            math.inf, [0.3, 0.4], [0.1, 0.2]
        ),
        ("known", "known, the functions return gradients of different shapes"): outcome_of(5.0, [0.3, 0.4, 0.1, 0.2]),
        ("different", "different, only one function raises an error"): outcome_of(5.0, raised=["KeyError"]),
        ("known", "known, the list of gradients is long, so each result was compared only with the exact result"): None,
    }
    for (verdict, words), second in second_outcomes.items():
        natives = {name: native(function="clip.py:f", verdict=kind) for name, kind in (("a", "equal"), ("b", verdict))}  # type: ignore[arg-type]
        natives["c"] = native("equal", function="optax.clip")
        outcomes = {"a": first, "b": second, "c": first}
        swapped = {"a": second, "b": first, "c": first}
        (other,) = own_function_pairs.compare(clip_case, natives, swapped, dict.fromkeys("abc", FrameworkTable()))
        assert own_function_pairs.in_words(other) == words
        (pair,) = own_function_pairs.compare(clip_case, natives, outcomes, dict.fromkeys("abc", FrameworkTable()))
        assert own_function_pairs.in_words(pair) == words
        assert (pair.left, pair.right, pair.verdict) == ("a", "b", verdict)


def test_functions_that_return_the_same_numbers_in_other_shapes_differ() -> None:
    clip_case = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    row, column = (
        CallOutcome(dense(5.0), [Dense("float32", np.ones(shape, np.float32))], name="clip.py:f")
        for shape in ((1, 4), (2, 2))
    )
    natives = {name: native(function="clip.py:f", verdict="known") for name in "ab"}
    (pair,) = own_function_pairs.compare(
        clip_case, natives, {"a": row, "b": column}, dict.fromkeys("ab", FrameworkTable())
    )
    assert own_function_pairs.in_words(pair) == "known, the functions return gradients of different shapes"


def cases_with_own_results(*calls: tuple[str, str], pairs: Sequence[tuple[str, str]] = ()) -> list[CaseResult]:
    cases = []
    for framework, call in calls:
        result = FrameworkResult(native=native("equal", function="clip.py:f"))
        changes: dict[str, Any] = {"call": call, "own_pairs": []}
        if pairs:
            changes["own_pairs"] = [OwnPair(left=a, right=b, verdict="equal", size=0.0, detail="") for a, b in pairs]
        cases.append(one_case(f"{framework} {call}", **{framework: result}).model_copy(update=changes))
    return cases


def test_functions_that_were_not_compared_are_named() -> None:
    jax = FrameworkTable(functions={"clip_by_global_norm": "j.py:f"})
    torch = FrameworkTable(functions={"clip_grad_norm_": "t.py:f"})
    both = {"torch": torch, "jax": jax}
    (note,) = own_function_pairs.uncompared(
        cases_with_own_results(("torch", "clip_grad_norm_"), ("jax", "clip_by_global_norm")), both
    )
    assert note == (
        "Your functions that were not compared with each other: t.py:f (torch, clip_grad_norm_), j.py:f (jax, "
        "clip_by_global_norm). Two functions are compared if both are listed under the same name and run in the same "
        "case. See docs/own-functions.md#your-functions-with-each-other."
    )
    same = {"torch": FrameworkTable(functions={"clip_by_global_norm": "t.py:f"}), "jax": jax}
    calls = [(name, "clip_by_global_norm") for name in same]
    (note,) = own_function_pairs.uncompared(cases_with_own_results(*calls), same)
    assert "other: t.py:f (torch, clip_by_global_norm), j.py:f (jax, clip_by_global_norm). Two functions" in note
    assert own_function_pairs.uncompared(cases_with_own_results(*calls, pairs=[("torch", "jax")]), same) == []
    assert own_function_pairs.uncompared(cases_with_own_results(("torch", "clip_grad_norm_")), both) == []
    adapted = {
        "torch": FrameworkTable(functions={**torch.functions, "clip_by_global_norm": "t.py:adapter"}),
        "jax": jax,
    }
    cases = cases_with_own_results(("torch", "clip_grad_norm_")) + cases_with_own_results(
        *calls, pairs=[("torch", "jax")]
    )
    assert own_function_pairs.uncompared(cases, adapted) == []
    third = {**same, "numpy": FrameworkTable(functions={"clip_by_value": "n.py:f"})}
    cases = cases_with_own_results(*calls, pairs=[("torch", "jax")]) + cases_with_own_results(
        ("numpy", "clip_by_value")
    )
    (note,) = own_function_pairs.uncompared(cases, third)
    assert "other: n.py:f (numpy, clip_by_value). Two functions" in note
    assert own_function_pairs.uncompared(cases_with_own_results(("jax", "clip_by_global_norm")), {"jax": jax}) == []


def test_reports_have_the_comparison_of_functions_with_each_other() -> None:
    pairs = [
        OwnPair(left="jax", right="numpy", verdict=verdict, size=0.5, detail="")
        for verdict in ("different", "known", "equal")
    ]
    wrong = native("known", 0.5, kind="value", cause="not clipped", function="clip.py:f")
    results = {"jax": FrameworkResult(native=native("equal", kind="")), "numpy": FrameworkResult(native=wrong)}
    cases = [one_case(pair.verdict, **results).model_copy(update={"own_pairs": [pair]}) for pair in pairs]
    run = report(*cases)
    line = "Your functions for jax and numpy, compared with each other: 1 different, 1 equal, 1 known."
    assert line in markdown.glance(run)
    assert "## Your functions compared with each other" in markdown.as_markdown(run)
    assert "| known | jax and numpy | known | 5.0e-01 | numpy: not clipped |" in markdown.as_markdown(run)
    unknown = wrong.model_copy(update={"cause": ""})
    (case, *_) = cases
    other = case.model_copy(update={"frameworks": {**results, "numpy": FrameworkResult(native=unknown)}})
    assert markdown.own_pairs_rows(report(other))[0][-1] == "numpy: the cause is unknown"
    html = page.render(run)
    assert f"<p>{line}</p>" in html
    assert "<td>jax and numpy</td><td>known</td><td>5.0e-01</td><td>numpy: not clipped</td>" in html
    (own,) = [each for each in fromstring(junit.as_xml(run)) if each.get("name") == "between your functions"]
    assert [own.get(key) for key in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    text = "\n".join(terminal_case.lines(run))
    assert "your functions for jax and numpy, compared with each other: known, by 50 %" in text
