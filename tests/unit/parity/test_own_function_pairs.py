"""The user's functions of two frameworks are compared with each other."""

from __future__ import annotations

import math
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from support.parity.cases import WORKED, case, dense
from support.parity.reports import native, one_case, report

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import own_function_pairs
from unified_clip.parity.report import page, terminal, view, write
from unified_clip.parity.results import FrameworkResult, OwnPair
from unified_clip.parity.suite.schema import FrameworkTable


def outcome_of(norm: float, *gradients: list[float], raised: Any = ()) -> CallOutcome:
    return CallOutcome(dense(norm), [dense(values) for values in gradients], raised=raised, name="clip.py:f")


def test_functions_of_two_frameworks_are_compared_with_each_other() -> None:
    clip_case = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    first = outcome_of(5.0, [0.3, 0.4], [0.1, 0.2])
    row = CallOutcome(dense(5.0), [dense([[0.3, 0.4]]), dense([0.1, 0.2])], name="clip.py:f")
    seconds: list[tuple[Any, float | None, str, CallOutcome | None]] = [
        ("equal", 0.0, "", first),
        ("close", 1.5e-6, "", outcome_of(5.0, [0.3, 0.4000006], [0.1, 0.2])),
        ("different", 0.2, "", outcome_of(5.0, [0.3, 0.5], [0.1, 0.2])),
        ("known", 1 / 6, "", outcome_of(6.0, [0.3, 0.4], [0.1, 0.2])),
        ("known", None, "inf or NaN in the norm", outcome_of(math.inf, [0.3, 0.4], [0.1, 0.2])),
        ("known", None, "shapes", outcome_of(5.0, [0.3, 0.4, 0.1, 0.2])),
        ("known", None, "shapes", row),
        ("different", None, "only one function raises", outcome_of(5.0, raised=["KeyError"])),
        ("known", None, "long", None),
    ]
    for verdict, size, detail, second in seconds:
        natives = {name: native(function="clip.py:f", verdict=kind) for name, kind in (("a", "equal"), ("b", verdict))}
        natives["c"] = native("equal", function="optax.clip")
        for outcomes in ({"a": first, "b": second, "c": first}, {"a": second, "b": first, "c": first}):
            (pair,) = own_function_pairs.compare(clip_case, natives, outcomes, dict.fromkeys("abc", FrameworkTable()))
            assert (pair.left, pair.right, pair.verdict) == ("a", "b", verdict)
            assert pair.size == (None if size is None else pytest.approx(size, rel=0.1))
            assert detail in pair.detail


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
    assert line in view.glance(run)
    assert "## Your functions compared with each other" in write.as_markdown(run)
    assert "| known | jax and numpy | known | 5.0e-01 | numpy: not clipped |" in write.as_markdown(run)
    unknown = wrong.model_copy(update={"cause": ""})
    (case, *_) = cases
    other = case.model_copy(update={"frameworks": {**results, "numpy": FrameworkResult(native=unknown)}})
    assert view.pairs_rows(report(other))[0][-1] == "numpy: the cause is unknown"
    html = page.render(run)
    assert f"<p>{line}</p>" in html
    assert "<td>jax and numpy</td><td>known</td><td>5.0e-01</td><td>numpy: not clipped</td>" in html
    (own,) = [each for each in fromstring(write.as_xml(run)) if each.get("name") == "between your functions"]
    assert [own.get(key) for key in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    text = "\n".join(terminal.case_lines(run))
    assert "your functions for jax and numpy, compared with each other: known, by 50 %" in text
