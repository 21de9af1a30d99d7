"""`unified-clip compare` of clips by a norm that is not the total norm, and of clips without a known coefficient."""

from __future__ import annotations

from typing import Any

import pytest
from support.recordings import clip_line

from unified_clip.recording.report import sentences

EXACT_NORMS_AGREE = "the exact norms are equal (13), but "


@pytest.mark.parametrize(
    ("norms", "kind", "sentence"),
    [
        ({"passed_norm": 12.5}, "given norm", "b.jsonl passes the norm 12.5 to clip_by_global_norm. Compare the code"),
        (
            {"passed_norm": 12.5, "stored_norm": 12.5},
            "rows",
            "b.jsonl passes the norm 12.5 to clip_by_global_norm, without summing",
        ),
        ({"passed_norm": 12.5, "stored_norm": 12.0}, "given norm", "b.jsonl passes the norm 12.5"),
        ({"stored_norm": 12.5, "watched": True}, "rows", "clip_by_global_norm of b.jsonl clips by 12.5, without"),
    ],
)
def test_a_clip_by_a_norm_that_is_not_the_total_norm_is_named(
    compare_runs: Any, norms: Any, kind: str, sentence: str
) -> None:
    inexact = {**clip_line(1), **norms, "coef": 1 / 12.5}
    for comparison in (compare_runs([clip_line(1)], [inexact]), compare_runs([inexact], [clip_line(1)])):
        (finding,) = comparison.findings
        assert finding.kind == kind
    assert EXACT_NORMS_AGREE + sentence in compare_runs([clip_line(1)], [inexact]).findings[0].sentence
    assert compare_runs([inexact], [{**inexact, "passed_norm": None, "returned_norm": 12.5}]).first is None


def test_clips_of_both_runs_by_norms_that_are_not_the_total_norm(compare_runs: Any) -> None:
    rough, passed = (
        {**clip_line(1), key: norm, "coef": 1 / norm} for key, norm in (("returned_norm", 12.5), ("passed_norm", 12.0))
    )
    (finding,) = compare_runs([{**rough, "watched": True}], [passed]).findings
    assert finding.kind == "given norm"
    loop = [{**clip_line(1), "rule": "each", "norm": [3.0], "coef": [0.4], "parameters": {}, "stored_norm": [2.5]}]
    (finding,) = compare_runs(loop, [{**loop[0], "stored_norm": None, "coef": [1 / 3]}]).findings
    assert finding.kind == "rows"


NO_FACTOR = {"watched": True, "coef": None, "clipped": True}


def test_an_unknown_coefficient_is_reported_in_words(compare_runs: Any) -> None:
    unknown = {**clip_line(1), **NO_FACTOR}
    for pair, side in (([[clip_line(1)], [unknown]], "second"), ([[unknown], [clip_line(1)]], "first")):
        comparison = compare_runs(*pair, max_ulp=1e9)
        assert (comparison.first.stage, comparison.findings) == ("coefficient", [])
        text = "\n".join(sentences.report_lines(comparison))
        assert (
            f"in the {side} run, the clipped gradients are not a multiple of the gradients. The coefficient of the "
            in text
        )
        assert "Unexplained: " in text
        assert "NaN" not in text
        assert "nan" not in text


def test_unknown_coefficients_are_not_called_equal(compare_runs: Any) -> None:
    comparison = compare_runs(
        [clip_line(1), {**clip_line(2), **NO_FACTOR}], [clip_line(1), {**clip_line(2), **NO_FACTOR}]
    )
    assert comparison.first is None
    note = "Not all coefficients were compared in 1 of 2 calls: in one run, the clipped gradients are not"
    assert any(each.startswith(note) for each in sentences.report_lines(comparison))
    (agreement,) = [each for each in comparison.agreements if each.stage == "coefficient"]
    assert agreement.compared == 1
    unknown = {"watched": True, "coef": None, "clipped": None, "threshold": None}
    assert compare_runs([clip_line(1)], [{**clip_line(1), **unknown}]).first is None


@pytest.mark.parametrize(("sparse", "kind"), [(1, "rows"), (0, "inexact norm")])
def test_an_inexact_norm_of_a_framework_is_named(compare_runs: Any, sparse: int, kind: str) -> None:
    inexact = {"watched": True, "returned_norm": 12.5, "coef": 1 / 12.5, "sparse": sparse}
    (finding,) = compare_runs([clip_line(1)], [{**clip_line(1), **inexact}]).findings
    assert finding.kind == kind
    assert "the exact norms are equal (13), but clip_by_global_norm of b.jsonl returns 12.5" in finding.sentence
