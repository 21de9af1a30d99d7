"""`unified-clip parity --baseline`: changes since an earlier report, and which of them fail the run."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import pytest
from support.parity.baselines import failure_messages, report_with_known, torch_changes, torch_report
from support.parity.reports import clip_result, known, native, one_case

from unified_clip.parity.report import baseline, build, change_rows, junit, page
from unified_clip.parity.results import Change, FrameworkResult, ParityReport
from unified_clip.tensors.types import Stage


def expected_change(
    kind: Any, framework: str, what: str, case: str, before: str, after: str, worse: bool = False, why: str = ""
) -> Change:
    texts = {"kind": kind, "framework": framework, "what": what, "case": case, "before": before, "after": after}
    return Change(**texts, worse=worse, why=why)


def test_the_same_report_has_not_changed() -> None:
    old = torch_report(host=clip_result("different", math.inf, detail="raised"), native=native())
    old.known = [known(), known("no case shows this difference")]
    assert baseline.changes(old, old.model_copy(deep=True)) == []


def test_another_verdict_is_a_change_with_both_verdicts() -> None:
    (found_change,) = torch_changes(clip_result("close", 1.0), clip_result("different", 3.0))
    assert found_change == expected_change(
        "verdict", "torch", "host path", "one", "close, 1 ULP", "different, 3 ULP", worse=True
    )
    (found_change,) = torch_changes(clip_result("different", 3.0), clip_result())
    assert (found_change.before, found_change.after, found_change.worse) == ("different, 3 ULP", "equal", False)


def test_a_function_without_a_result_is_not_named() -> None:
    (found_change,) = torch_changes(native("crashed", None, "", function=None), native(), "native")
    assert (found_change.before, found_change.after) == ("crashed", "clip known, 0.01")


def test_another_size_differs_by_more_than_a_tenth() -> None:
    kinds = [
        [each.kind for each in torch_changes(native(norm=0.01), native(norm=size), "native")]
        for size in (0.01, 0.0105, 0.012, 0.005)
    ]
    assert kinds == [[], ["numbers"], ["size"], ["size"]]
    (found_change,) = torch_changes(native(norm=0.01), native(norm=0.02), "native")
    assert found_change == expected_change(
        "size", "torch", "framework's function", "one", "clip known, 0.01", "clip known, 0.02"
    )


def test_other_numbers_with_the_same_verdict_are_a_change() -> None:
    assert [
        each.kind for each in torch_changes(clip_result("close", 1.0, "b"), clip_result("close", 1.0, "c"), "device")
    ] == ["numbers"]


def test_a_case_with_another_exact_result_is_one_change() -> None:
    new = torch_report(host=clip_result(sha256="b"))
    new.cases[0].sha256 = {"norm": "b"}
    new.cases[0].differing_stages = []
    (found_change,) = baseline.changes(torch_report(), new)
    assert found_change.why.startswith("the exact result differs from the baseline, so the gradients or the call")
    assert found_change.failure == "not comparable"
    expected = expected_change("numbers", "", "the exact result", "one", "norm a", "norm b", True, found_change.why)
    assert found_change == expected.model_copy(update={"failure": found_change.failure})
    judged = build.with_changes(new, [found_change])
    assert judged.exit_code == 1
    lost = "FAIL: 1 result that cannot be compared with the baseline "
    why = found_change.why.partition(". ")[0]
    assert judged.verdict == f"{lost}(the exact result, one: {why})."
    (problem,) = judged.problems
    assert (problem.what, problem.detail, problem.cases) == ("the exact result", found_change.why, ["one"])
    assert failure_messages(judged) == [found_change.why]


def test_a_number_that_is_no_longer_compared_fails_the_run() -> None:
    def run(verdict: Any, norm: float | None) -> ParityReport:
        return torch_report(native=native(verdict, norm, "", function="clip.py:f", gradients=0.0))

    for before in (run("equal", 0.0), run("close", 1e-7), run("different", 0.5)):
        (found_change,) = baseline.changes(before, run("no norm", None))
        assert found_change.worse
        assert found_change.why.startswith(
            "the function no longer returns the norm, but the baseline compared the norm. To write DIRECTORY"
        )
        assert failure_messages(build.with_changes(run("no norm", None), [found_change])) == [found_change.why]
    assert not any(each.worse for each in baseline.changes(run("no norm", None), run("equal", 0.0)))
    assert not any(each.worse for each in baseline.changes(run("equal", 0.0), run("close", 1e-7)))
    accepted = torch_report(native=native("known", None, "raises", function="clip.py:f"))
    assert not any(each.worse for each in baseline.changes(run("equal", 0.0), accepted))


def test_another_cause_is_another_failure() -> None:
    def run(kind: str, cause: str, norm: float) -> ParityReport:
        return torch_report(native=native("different", norm, problem=f"{cause}.", cause=cause, cause_kind=kind))

    left_out, weighted = run("left out", "the norm leaves out 'b'", 0.5), run("weights", "'b' has the weight 0.5", 0.51)
    assert [each.worse for each in baseline.changes(left_out, weighted)] == [True]
    assert [each.worse for each in baseline.changes(left_out, run("left out", "the norm leaves out 'a'", 0.51))] == [
        True
    ]
    assert [each.worse for each in baseline.changes(left_out, run("left out", "so 'b' is left out", 0.51))] == [False]
    assert baseline.changes(left_out, run("weights", "the same numbers, which a later version explains", 0.5)) == []


def test_another_error_of_a_known_difference_fails_the_run() -> None:
    def run(message: str) -> ParityReport:
        return torch_report(native=native("known", None, "raises", detail=f"RuntimeError: {message}", sha256={}))

    (change,) = baseline.changes(run("no float64 at line 12"), run("another bug at line 12"))
    assert (change.worse, change.failure) == (True, "other error")
    assert change.why.startswith(
        "the error message of this known difference differs from the baseline: 'RuntimeError: another bug at line "
        "#' instead of 'RuntimeError: no float64 at line #'. If the new message is right, write a new baseline. "
    )
    assert baseline.changes(run("no float64 at line 12"), run("no float64 at line 13\nmore")) == []


def test_known_differences_with_the_same_reason_have_different_names() -> None:
    entries = [known("no case shows this difference", None), known("no case shows this difference", None), known()]
    names = [
        case.attrib["name"]
        for case in ElementTree.fromstring(junit.as_xml(report_with_known(*entries))).iter("testcase")
    ]
    assert [name for name in names if name.startswith("clip: so")] == ["clip: so", "clip: so (2)", "clip: so (3)"]
    judged = build.with_changes(
        report_with_known(*entries),
        baseline.changes(report_with_known(*entries[::2], known()), report_with_known(*entries)),
    )
    assert [each.excused for each in judged.problems] == [True, False]


def test_other_versions_are_changes() -> None:
    new = torch_report()
    new.versions["torch"] = "2.14"
    assert baseline.changes(torch_report(), new) == [expected_change("version", "torch", "", "", "2.13", "2.14")]


def test_new_and_missing_results_are_changes() -> None:
    old, new = (
        torch_report(host=clip_result(), device=clip_result()),
        torch_report(host=clip_result(), native=native("equal", 0.0, "")),
    )
    assert {(each.kind, each.what, each.before, each.after) for each in baseline.changes(old, new)} == {
        ("gone", "device path", "equal", ""),
        ("new", "framework's function", "", "clip equal"),
    }


def test_a_new_or_missing_framework_or_case_is_one_change() -> None:
    small, large = torch_report(), torch_report()
    large.frameworks.append("jax")
    large.cases[0].frameworks["jax"] = FrameworkResult(host=clip_result(), device=clip_result())
    large.cases.append(large.cases[0].model_copy(update={"name": "two"}, deep=True))
    new, gone = baseline.changes(small, large), baseline.changes(large, small)
    assert new == [expected_change("new", "jax", "", "", "", ""), expected_change("new", "", "", "two", "", "")]
    assert gone == [expected_change("gone", "jax", "", "", "", ""), expected_change("gone", "", "", "two", "", "")]
    strict, larger = build.with_strict(small), build.with_strict(large)
    assert [each.worse for each in baseline.changes(large, strict)] == [True, True]
    assert not any(each.worse for each in baseline.changes(small, larger))
    judged = build.with_changes(strict, baseline.changes(large, strict))
    assert judged.exit_code == 1
    assert (
        "2 results that cannot be compared with the baseline (jax: the result is in the baseline, but not in this run)"
        in judged.verdict
    )
    assert "two" in page.render(judged), "the page has no section of a case that was not run"
    why = f"the result is in the baseline, but not in this run. {baseline.ADVICE}"
    assert [(each.what, each.detail, each.cases) for each in judged.problems] == [
        ("jax", why, []),
        ("the suite", why, ["two"]),
    ]
    assert failure_messages(judged) == [why, why]
    large.cases[1].frameworks["jax"].host = clip_result("different", 3.0)
    worse = expected_change("new", "jax", "host path", "two", "", "different, 3 ULP", worse=True)
    assert baseline.changes(small, large) == [worse, *new]


def test_results_that_a_partial_run_leaves_out_are_not_run() -> None:
    large = torch_report(host=clip_result(), device=clip_result())
    large.cases.append(large.cases[0].model_copy(update={"name": "two"}, deep=True))
    del large.cases[1].frameworks["numpy"]
    one_mode = torch_report()
    assert {(each.kind, each.framework, each.what, each.case) for each in partial_changes(large, one_mode)} == {
        ("gone", "", "", "two"),
        ("not run", "torch", "device path", "one"),
    }
    small = torch_report()
    small.frameworks, small.cases = ["numpy"], [one_case(numpy=FrameworkResult(host=clip_result()))]
    assert {(each.kind, each.framework, each.case) for each in partial_changes(large, small)} == {
        ("not run", "torch", ""),
        ("not run", "", "two"),
    }
    assert {each.kind for each in baseline.changes(large, small)} == {"gone"}
    with_entry = report_with_known(known())
    with_entry.cases[0].frameworks["torch"].native = native("equal")
    removed = with_entry.model_copy(update={"known": []}, deep=True)
    assert [each.kind for each in partial_changes(with_entry, removed)] == ["gone"]
    removed.cases[0].frameworks["torch"].native = None
    assert {each.kind for each in partial_changes(with_entry, removed)} == {"not run"}
    strict = build.with_strict(small)
    judged = build.with_changes(strict, partial_changes(large, strict))
    why = "the result is in the baseline, but not in this run. Remove --frameworks and --without from the command"
    assert failure_messages(judged) == [why, why]
    assert judged.exit_code == 1


def partial_changes(old: ParityReport, new: ParityReport) -> list[Change]:
    return baseline.changes(old, new, is_partial=True)


def test_a_known_difference_with_another_size_is_a_change() -> None:
    old, new = report_with_known(known(size=0.01)), report_with_known(known(size=0.5))
    (moved,) = baseline.changes(old, new)
    assert (moved.kind, moved.before, moved.after) == ("size", "listed, size 0.01", "listed, size 0.5")


def test_another_reason_of_a_known_difference_does_not_fail_the_run() -> None:
    old = report_with_known(known(), known(size=0.5).model_copy(update={"reason": "two", "cause": "inf"}))
    entries = [old.known[0].model_copy(update={"reason": "we intend this"}), old.known[1]]
    (change,) = baseline.changes(old, build.with_strict(report_with_known(*entries)))
    assert (change.kind, change.worse, change.before, change.after) == ("reason", False, "so", "we intend this")
    assert change_rows.rows([change])[0][2] == "another reason"
    alike = [known(), known().model_copy(update={"cause": "inf"})]
    renamed = [each.model_copy(update={"reason": "we intend this"}) for each in alike]
    assert [each.kind for each in baseline.changes(report_with_known(*alike), report_with_known(*renamed))] == [
        "reason",
        "reason",
    ]
    for reasons in (("so", "two"), ("two", "so"), ("two", "three")):
        updates = zip(alike, reasons, strict=True)
        renamed = [entry.model_copy(update={"reason": reason}) for entry, reason in updates]
        changes = baseline.changes(report_with_known(*alike), build.with_strict(report_with_known(*renamed)))
        assert [(each.kind, each.after) for each in changes] == [
            ("reason", reason) for reason in reasons if reason != "so"
        ]
    swapped = [known().model_copy(update={"reason": "two"}), old.known[1].model_copy(update={"reason": "so"})]
    assert [each.kind for each in baseline.changes(old, report_with_known(*swapped))] == ["reason", "reason"]
    left = [known(size=0.5).model_copy(update={"cause": "inf"})]
    changes = baseline.changes(report_with_known(*alike), build.with_strict(report_with_known(*left)))
    assert "gone" in [each.kind for each in changes]
    others = [entries[0].model_copy(update={"cause": "overflow"}), entries[1]]
    changes = baseline.changes(old, build.with_strict(report_with_known(*others)))
    assert [(each.kind, each.worse) for each in changes] == [("gone", True), ("new", False)]


def report_with_differing_stages(*stages: Stage) -> ParityReport:
    report_ = torch_report()
    report_.cases[0].differing_stages = list(stages)
    return report_


NOTHING_WRONG = [torch_report(), torch_report(host=clip_result("crashed", math.inf, None)), build.build_report([], [])]


@pytest.mark.parametrize(
    "wrong",
    [
        torch_report(host=clip_result("different", 3.0)),
        torch_report(host=clip_result("different", math.inf, detail="raised ValueError")),
        torch_report(native=native("different", problem="not listed as a known difference")),
        report_with_differing_stages("norm"),
        report_with_known(known("no case shows this difference", None)),
        report_with_known(known(), known("no case shows this difference", None)),
        report_with_known(known("no case shows this difference", None), known()),
    ],
    ids=["ours", "ours raises", "native", "between frameworks", "known", "one of two alike", "the first of them"],
)
def test_a_failure_is_worse_if_the_baseline_does_not_have_it(wrong: ParityReport) -> None:
    for old in NOTHING_WRONG:
        assert [each.worse for each in baseline.changes(old, wrong)].count(True) == 1
        assert not any(each.worse for each in baseline.changes(wrong, old))
    assert not any(each.worse for each in baseline.changes(wrong, wrong))


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (torch_report(host=clip_result("different", 10.0)), torch_report(host=clip_result("different", 11.0)), False),
        (torch_report(host=clip_result("different", 10.0)), torch_report(host=clip_result("different", 12.0)), True),
        (torch_report(host=clip_result("different", 10.0)), torch_report(host=clip_result("different", 5.0)), False),
        (
            torch_report(host=clip_result("different", math.inf, detail="a")),
            torch_report(host=clip_result("different", math.inf, detail="b")),
            True,
        ),
        (torch_report(host=clip_result("close", 1.0)), torch_report(host=clip_result("close", 2.0)), False),
        (torch_report(host=clip_result()), torch_report(host=clip_result("crashed", math.inf, None)), False),
        (report_with_differing_stages("norm"), report_with_differing_stages("norm", "tensors"), True),
        (report_with_differing_stages("norm", "tensors"), report_with_differing_stages("norm"), False),
        (torch_report(native=native()), torch_report(native=native(norm=0.5)), False),
        (
            torch_report(native=native("different", problem="a")),
            torch_report(native=native("different", 0.5, problem="b")),
            True,
        ),
        (
            torch_report(native=native("different", problem="a")),
            torch_report(native=native("different", kind="raises", problem="b")),
            True,
        ),
    ],
)
def test_a_failure_of_the_baseline_is_worse_if_it_is_larger_or_another(
    old: ParityReport, new: ParityReport, worse: bool
) -> None:
    assert any(each.worse for each in baseline.changes(old, new)) == worse


def test_worse_changes_and_missing_frameworks_set_the_exit_status() -> None:
    def status(kind: Any, *changes: Change) -> list[int]:
        run = torch_report(host=clip_result(kind))
        return [run.exit_code, build.with_changes(run, list(changes)).exit_code]

    moved = expected_change("size", "torch", "host path", "one", "", "")
    worse = moved.model_copy(update={"worse": True})
    assert status("equal") == [0, 0]
    assert status("equal", moved) == [0, 0]
    assert status("different", moved) == [1, 0]
    assert status("different", moved, worse) == [1, 1]
    assert status("crashed", moved) == [3, 3]
    assert status("missing") == [3, 3]


def change_table(*changes: Change) -> list[list[str]]:
    return change_rows.rows(changes)


def test_worse_changes_come_first_and_similar_changes_are_one_line() -> None:
    changes = [expected_change("size", "torch", "host path", name, f"close, {name}", "close, 9") for name in ("1", "2")]
    changes += [
        expected_change("verdict", "torch", "host path", "3", before, "equal") for before in ("close, 1", "flushed")
    ]
    assert change_table(*changes) == [
        ["", "torch, host path", "another size", "close, 1", "close, 9", "2 cases, first 1"],
        ["", "torch, host path", "another verdict", "close, 1", "equal", "3"],
        ["", "torch, host path", "another verdict", "flushed", "equal", "3"],
    ]
    old, new = (
        torch_report(host=clip_result("close", 1.0), native=native()),
        torch_report(host=clip_result("different", 2.0), native=native()),
    )
    new.versions["torch"] = "2.14"
    assert [row[:3] for row in change_table(*baseline.changes(old, new))] == [
        ["fails", "torch, host path", "another verdict"],
        ["", "torch", "another version"],
    ]
