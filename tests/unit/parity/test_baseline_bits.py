"""`unified-clip parity --baseline`: functions whose results have other bits than in the baseline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.parity.baselines import torch_changes, torch_report, write_baseline
from support.parity.cases import ONE_CASE, suite
from support.parity.reports import known, native, one_case, report

from unified_clip import cli
from unified_clip.parity.report import baseline, build
from unified_clip.parity.results import Change, FrameworkResult, ParityReport


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
    old, new = after_an_upgrade(second_call="equal")
    assert not any(each.worse for each in baseline.changes(old, new))
    assert baseline.changed_bits(old, new) == []
    assert baseline.changed_bits(old, new, strict_bits=True) == [("torch", "one")]
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


def test_with_strict_bits_a_function_that_is_not_deterministic_does_not_fail_the_run() -> None:
    old, new = after_an_upgrade(second_call="different")
    assert not any(each.worse for each in baseline.changes(old, new, strict_bits=True))
    (note,) = baseline.notes(old, new, strict_bits=True)
    assert "is not deterministic" in note


def test_with_strict_bits_equal_bits_pass() -> None:
    old, new = after_an_upgrade()
    assert [each.kind for each in baseline.changes(old, old, strict_bits=True)] == []
    assert not any(each.worse for each in baseline.changes(new, new, strict_bits=True))


def test_strict_bits_needs_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", "--strict-bits"]) == 2
    assert "Add --baseline FILE, or remove --strict-bits" in capsys.readouterr().err


def test_a_run_of_functions_only_does_not_count_unified_clips_results() -> None:
    verdict = report(one_case(torch=FrameworkResult(native=native("close", 1e-7, "")))).verdict
    assert verdict == "PASS: 1 case on numpy, torch: unified_clip itself did not run."


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


@pytest.fixture
def run_changed_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, Change]]:
    """Run a function, then another one with the first report as the baseline. Return the status and what is printed."""
    functions = "[frameworks.numpy.functions]\nclip_by_global_norm = 'clip.py:clip'"
    cases = ONE_CASE.replace('{ call = "global_norm" }', '{ call = "clip_by_global_norm", clip_norm = 0.7 }')
    where = suite(tmp_path, cases, KNOWN, f"[frameworks.numpy]\n{functions}")

    def run(eps: str, *options: str, processor: str = "", known: str = KNOWN) -> tuple[int, str, Change]:
        command = ["parity", "--suite", str(where), "--out"]
        (tmp_path / "clip.py").write_text(CLIP.format(eps="5e-3"), encoding="utf-8")
        assert cli.main([*command, str(tmp_path / "old")]) == 0
        old = tmp_path / "old" / "parity.json"
        data = json.loads(old.read_text(encoding="utf-8"))
        write_baseline(tmp_path, {**data, "processor": processor or data["processor"]})
        (tmp_path / "clip.py").write_text(CLIP.format(eps=eps), encoding="utf-8")
        (tmp_path / "known.toml").write_text(known, encoding="utf-8")
        capsys.readouterr()
        status = cli.main([*command, str(tmp_path / "new"), "--baseline", str(tmp_path / "old.json"), *options])
        written = json.loads((tmp_path / "new" / "parity.json").read_text(encoding="utf-8"))
        (found_change,) = (each for each in written["baseline"] if each["what"] == "your function")
        return status, capsys.readouterr().out, Change.model_validate(found_change)

    return run


def test_a_function_that_has_changed_within_a_known_difference_fails_the_run(
    run_changed_function: Callable[..., Any],
) -> None:
    status, printed, found_change = run_changed_function("5.1e-3")
    assert (status, found_change.worse) == (1, True)
    assert found_change.after == "clip.py:clip known, 0.001, with the same bits in a second call"
    assert found_change.why.startswith("the bits of this known difference differ from the baseline, and a second call")
    place = "numpy, your function clip.py:clip"
    assert f"FAIL: 1 case on numpy: 1 known difference with other bits than in the baseline ({place}, " in printed
    assert (
        f"{place}: worked example: clip_by_global_norm(clip_norm=0.7): the bits of this known difference differ"
        in printed
    )


def test_a_changed_function_is_accepted_by_another_reason_in_the_list(run_changed_function: Callable[..., Any]) -> None:
    status, _, found_change = run_changed_function("5.1e-3", known=KNOWN.replace("we add to", "we now add 5.1e-3 to"))
    assert (status, found_change.worse, found_change.why) == (0, False, "")


def test_a_function_that_is_not_deterministic_is_reported_without_failing_the_run(
    run_changed_function: Callable[..., Any],
) -> None:
    status, printed, found_change = run_changed_function("5e-3 + 4e-3 * np.random.default_rng().random()")
    assert (status, found_change.worse) == (0, False)
    assert found_change.after.endswith("not deterministic: a second call returned other bits")
    assert "clip.py:clip (numpy) is not deterministic: in 1 case, a second call returned other bits." in printed


def test_other_bits_on_another_processor_do_not_fail_the_run(run_changed_function: Callable[..., Any]) -> None:
    status, printed, found_change = run_changed_function("5.1e-3", processor="VAX, 1 cores")
    assert (status, found_change.worse) == (0, False)
    why = "because the baseline is from another processor (VAX, 1 cores)."
    assert f"Changed bits in results of your functions do not fail this run, {why}" in printed
    status, printed, found_change = run_changed_function("5.1e-3", "--strict-bits", processor="VAX, 1 cores")
    assert (status, found_change.worse) == (1, True)
    assert "FAIL: 1 case on numpy: 1 result with other bits than in the baseline (numpy, your function" in printed


def test_only_changed_cases_are_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (torch_report(native=native(sha256={"norm": digest})) for digest in "ab")
    old.processor = new.processor = "one"
    assert baseline.changed_bits(old, new) == [("torch", "one")]
    assert baseline.changed_bits(old, old) == []
    new.versions["torch"] = "2.14"
    assert baseline.changed_bits(old, new) == []


def test_a_result_within_the_tolerance_may_change_its_bits() -> None:
    """The suite's tolerance counts such a difference as rounding."""

    def run(digest: str, verdict: Any) -> ParityReport:
        judged = torch_report(native=native(verdict, 1e-7, "", sha256={"norm": digest}, second_call="equal"))
        judged.processor = "one"
        return judged

    assert not any(judged_.worse for judged_ in baseline.changes(run("a", "close"), run("b", "close")))
    listed_in_both = [run(digest, "known") for digest in "ab"]
    for judged_ in listed_in_both:
        judged_.known = [known()]
    assert [judged_.worse for judged_ in baseline.changes(*listed_in_both)] == [True]
