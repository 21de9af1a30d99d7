"""`unified-clip parity --baseline`: functions whose results have other bits than in the baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.parity.baselines import torch_changes, torch_report
from support.parity.cases import ONE_CASE, suite
from support.parity.reports import native, one_case, report

from unified_clip import cli
from unified_clip.parity.report import baseline, build
from unified_clip.parity.results import FrameworkResult, ParityReport


def test_a_result_with_other_bits_and_the_same_distance_is_reported() -> None:
    old, new = (native(sha256={"norm": digest}) for digest in "ab")
    assert [each.kind for each in torch_changes(old, new, "native")] == ["numbers"]
    assert baseline.notes(torch_report(native=old), torch_report(native=new)) == []


def test_a_baseline_whose_bits_cannot_be_compared_is_reported() -> None:
    new = native(sha256={"norm": "b"})
    older = torch_report(native=native(sha256={"norm": "a"}))
    older.versions["torch"] = "2.12"
    assert [each.kind for each in baseline.changes(older, torch_report(native=new))] == ["version"]
    assert baseline.notes(older, torch_report(native=new)) == [
        "The bits that the frameworks' functions returned were not compared with the baseline, because the baseline "
        "is from other versions (torch 2.12). Only the sizes of differences were compared."
    ]


def after_an_upgrade(**fields: Any) -> tuple[ParityReport, ParityReport]:
    old, new = (torch_report(native=native("close", 1e-7, "", sha256={"norm": digest}, **fields)) for digest in "ab")
    old.versions["torch"], new.versions["torch"] = "2.12", "2.13"
    old.processor, new.processor = "one", "two"
    return old, new


def test_with_strict_bits_other_bits_fail_the_run_after_an_upgrade() -> None:
    old, new = after_an_upgrade()
    assert not any(each.worse for each in baseline.changes(old, new))
    (change,) = [each for each in baseline.changes(old, new, strict_bits=True) if each.worse]
    assert (change.kind, change.case) == ("numbers", "one")
    assert change.why.startswith(
        "the bits of this result differ from the baseline, and --strict-bits requires equal bits"
    )
    assert baseline.notes(old, new, strict_bits=True) == []
    judged = build.with_changes(new, baseline.changes(old, new, strict_bits=True))
    assert judged.exit_code == 1
    assert "1 result with other bits than in the baseline (torch, framework's function clip, one)" in judged.verdict
    assert [(problem.cases, problem.excused) for problem in judged.problems] == [(["one"], False)]


def test_with_strict_bits_equal_bits_pass() -> None:
    old, new = after_an_upgrade()
    assert [each.kind for each in baseline.changes(old, old, strict_bits=True)] == []
    assert not any(each.worse for each in baseline.changes(new, new, strict_bits=True))


def test_strict_bits_needs_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", "--strict-bits"]) == 2
    assert "Add --baseline FILE, or remove --strict-bits" in capsys.readouterr().err


def test_a_run_of_functions_only_does_not_count_unified_clips_results() -> None:
    verdict = report(one_case(torch=FrameworkResult(native=native("close", 1e-7, "")))).verdict
    assert verdict == "PASS: unified_clip itself did not run."


CLIP = """
import numpy as np

def clip(grads, max_norm):
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads)) + {eps}
    return [(g * np.float32(min(1.0, max_norm / norm))).astype(g.dtype) for g in grads], np.float32(norm)
"""

KNOWN = """
[[known]]
framework = "numpy"
function = "clip.py:clip"
kind = "value"
size = 1e-3
within = 4.0
cause = "any"
cases = ["*"]
reason = "we add to the norm"
"""


@pytest.mark.parametrize(("options", "expected"), [((), 0), (("--strict-bits",), 1)])
def test_other_bits_of_a_known_difference_fail_the_run_only_with_strict_bits(
    options: tuple[str, ...], expected: int, tmp_path: Path
) -> None:
    functions = "[frameworks.numpy.functions]\nclip_by_global_norm = 'clip.py:clip'"
    cases = ONE_CASE.replace('{ call = "global_norm" }', '{ call = "clip_by_global_norm", clip_norm = 0.7 }')
    command = ["parity", "--suite", str(suite(tmp_path, cases, KNOWN, f"[frameworks.numpy]\n{functions}")), "--out"]
    (tmp_path / "clip.py").write_text(CLIP.format(eps="5e-3"), encoding="utf-8")
    assert cli.main([*command, str(tmp_path / "old")]) == 0
    (tmp_path / "clip.py").write_text(CLIP.format(eps="5.1e-3"), encoding="utf-8")
    old = tmp_path / "old" / "parity.json"
    assert cli.main([*command, str(tmp_path / "new"), "--baseline", str(old), *options]) == expected
    written = json.loads((tmp_path / "new" / "parity.json").read_text(encoding="utf-8"))
    (change,) = (each for each in written["baseline"] if each["what"] == "your function")
    assert (change["kind"], change["worse"]) == ("numbers", bool(expected))


def test_a_result_within_the_tolerance_may_change_its_bits() -> None:
    """The suite's tolerance counts such a difference as rounding."""

    def run(digest: str, verdict: Any) -> ParityReport:
        judged = torch_report(native=native(verdict, 1e-7, "", sha256={"norm": digest}))
        judged.processor = "one"
        return judged

    for verdict in ("close", "known"):
        assert not any(judged_.worse for judged_ in baseline.changes(run("a", verdict), run("b", verdict)))
